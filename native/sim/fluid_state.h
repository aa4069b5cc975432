/* State of the fluid simulation, shared by its parts: fluid.c, flows.c, probes.c and queue_law.c. */
#ifndef FABRICTIME_SIM_FLUID_STATE_H
#define FABRICTIME_SIM_FLUID_STATE_H

#include <stdint.h>
#include <stdlib.h>

#include "../core/clockmodel.h"
#include "fluid.h"
#include "rng.h"

enum {
    CALENDAR_STEPS = 4096,       /* length of the calendar of probes */
    FAST_RECOVERY_PERIODS = 5,   /* timer periods of fast recovery */
    HYPER_INCREASE_PERIODS = 15, /* timer periods before hyper increase */
    QUIET_STEPS = 20,            /* steps without a queue before a flow is quiet */
    RECOVERY_LOSSES = 3,         /* after a streak of this many losses an answer is reported at once */
    REPORTED_LOSSES = 8          /* losses of a streak that are reported at once, each */
};
#define NO_LIMIT  1e300
#define SAME_LOAD 0.002 /* change of a link's load that keeps its packet-scale queue's law */
#define STOPPED   1e-4  /* share of a link's rate below which it passes nothing */
typedef struct {        /* a link in a step; the first line is what flows need */
    double offered, pass, keep, gone, unmarked, loss;
    double last;                       /* bytes per step that its load was computed for */
    uint8_t plain, listed, tier, back; /* back: bytes that do not fit return to the sender */
    double fixed, capacity, orphan, open, given, bytes;
    float share;
} hot_t;

typedef struct { /* a link as probes see it */
    double q0, q1, ns_per_byte, delay_ns;
    double waited, waited_at; /* the packet-scale work last drawn, and its time (ns) */
    float load, waited_load, loss, drop;
    float share;
    uint8_t up;
} link_t;

typedef struct { /* parameters that rarely change, and sums */
    double buffer, mark_begin, mark_full;
    double depth, packet, dropped, max_depth;
    int64_t since; /* first step that is missing in the sums; since then the load has not changed */
    uint8_t crowded;
} rest_t;

typedef struct {
    int32_t path[FL_TIERS];
    double waiting[FL_TIERS];
} route_t;

typedef struct {
    double left, line, rate, target, alpha, stage, demand, limit, idle_since;
    double sent, again, busy, own, receiver;
    int64_t cuts;           /* of its rate, each by a notification of congestion */
    double fixed;           /* bytes per step while quiet */
    int64_t since;          /* first step that is missing in the sums, while quiet */
    int32_t job, at;        /* at: position in the list of working flows, -1 if idle or quiet */
    int32_t entry;          /* entry of its job that it sends now */
    int32_t routes, *route; /* [routes, FL_TIERS], from which switches draw */
    int32_t quiet_steps;    /* consecutive steps without a queue, a mark or a loss */
    uint8_t reached, quiet;
} flow_t;

typedef struct {
    int64_t phases, phase, open, iteration;
    int64_t *phase_start, *flow;
    double *bytes;
    double gap, begin, due, idle_since;
    double *times; /* [2, entries] begin and end of each entry in this iteration, -1: not yet; NULL: not
                                    traced */
    int32_t members, *from, *to; /* [entries] the two members of each flow of a phase */
    int32_t *phase_of, *open_of; /* [members] the phase of each, and the number of its unfinished flows */
    uint8_t waiting, stopped;
} job_t;

enum { FLYING, DONE, GONE, LOST };

typedef struct {
    double t, sent, due;
    int64_t t1, t2, t3, t4;
    int16_t hop;
    uint8_t leg, state, declared_lost;
} probe_t;

typedef struct {
    probe_t probe[2];
    int32_t group;
    uint8_t size, open, nodes;
} pair_t;

typedef struct {
    int32_t group, paired;
    int64_t sent, forward, response, back;
} sample_t;

typedef struct {
    int32_t nic, peer, path;
    int64_t start[2];
    int16_t hops[2];
    uint8_t reached[2];
    int32_t lost_b;
    int32_t lost, answered, late, loss_streak; /* the first three: since the NIC's last evidence report */
    double first_lost, last_lost, answered_sent, arrived, longest;
} group_t;

typedef struct {
    ft_clock clock;
    double gap_ns, rate_pps, reported_at;
    double slots_at, slot_ns; /* ns: beginning of slot 0; length of a slot */
    int64_t slot, slots;      /* next slot; slots of the schedule, 0: probes leave at random */
    int32_t *slot_group;      /* [slots] groups relative to the NIC's first; -1: any */
    int64_t group, groups;
    sample_t *samples;
    int64_t count, capacity;
    char *name;
    int64_t name_size;
    uint8_t dead, due;
} nic_t;

struct fl_sim {
    fl_settings s;
    int32_t nics, links;
    int64_t step;
    double t, end, dt;
    rng_t chance, marks, flowlets; /* flowlets: draws their routes */
    double spare;
    int has_spare;
    hot_t *hot;
    link_t *link;
    rest_t *rest;
    int32_t *listed[FL_TIERS];
    int32_t listed_n[FL_TIERS];
    int32_t slowed;              /* number of links below their full rate */
    int tier[FL_TIERS], tiers;   /* the tiers of this fabric, in the order of a path */
    int32_t *crowded, crowded_n; /* links with quiet flows that cannot pass on all bytes */
    nic_t *nic;
    double *next_send, *beat_at;
    int32_t *due, due_n;
    group_t *group;
    int64_t groups;
    int32_t *leg_link[2];
    pair_t *pair;
    int32_t *next; /* 4 nodes for each pair: two hops, two time-outs */
    int64_t pairs, free_n;
    int32_t *free;
    int32_t bucket[CALENDAR_STEPS];
    flow_t *flow;
    route_t *route;
    int64_t flows, flow_capacity;
    int32_t *work;
    double *carry, *unmarked, *want, *unsent, *lost;
    int64_t working;
    job_t *job;
    int64_t jobs, job_capacity;
    fl_event *event;
    int64_t events, event_capacity;
    fl_row *row;
    int64_t rows, row_capacity;
    fl_iteration *iteration;
    int64_t iterations, iteration_capacity;
    double *times; /* of the traced iterations that ended */
    int64_t times_n, times_capacity;
    uint8_t *out;
    int64_t out_capacity;
    int32_t *order;
    int64_t order_capacity;
    int64_t sent, answered, lost_n, in_flight;
    double half, fade, periods;
    int failed;
};

/* Make `*array` hold `wanted` elements. Return 0, or -1 without memory. */
static inline int grow(void *array, int64_t *capacity, int64_t wanted, size_t size) {
    if (wanted <= *capacity) return 0;
    int64_t more = *capacity < 16 ? 16 : *capacity * 2;
    while (more < wanted) more *= 2;
    void *fresh = realloc(*(void **)array, (size_t)more * size);
    if (!fresh) return -1;
    *(void **)array = fresh;
    *capacity = more;
    return 0;
}

/* queue_law.c */
double fl_packet_wait(rng_t *r, link_t *l, double t, double load, double service_ns);

/* flows.c */
void fl_settle_link(fl_sim *m, int32_t at);
void fl_settle_flow(fl_sim *m, flow_t *f);
void fl_step_flows(fl_sim *m);
void fl_end_step(fl_sim *m);

/* probes.c */
void fl_step_probes(fl_sim *m);

#endif
