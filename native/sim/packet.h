/* Packet-level simulation of FIFO output queues; see packet.c. Times are in picoseconds from the start. */
#ifndef FABRICTIME_PACKET_H
#define FABRICTIME_PACKET_H

#include <stdint.h>

enum ft_flow_kind { FT_POISSON, FT_BURSTY, FT_MESSAGE };
enum { FT_DELIVERED = -1, FT_NO_ROUTE = -2 }; /* end of a path */

/* A packet in a link's list: queued, in service or on the wire. */
struct ft_packet {
    int64_t at_ps; /* arrival of its last bit at the link's far end */
    int32_t hop;   /* position of this link in `ft_sim.hops` */
    int32_t owner; /* flow, or number of the probe */
    int32_t next;  /* next in the list, or next free place; -1: none */
    uint16_t bytes;
    uint8_t marked, probe; /* probe: 0 flow's packet, 1 request, 2 answer */
};

struct ft_queue {
    int64_t free_ps;     /* when all accepted packets have left */
    int64_t last_ps;     /* the sums below are complete up to this time */
    int64_t slot_end_ps; /* end of the present slot */
    int64_t delay_ps, buffer_ps;
    uint64_t byte_fx; /* service time of a byte, ps * 2^16 */
    double area;      /* integral of the backlog over the present slot, ps^2 */
    int64_t busy_ps;
    int64_t deepest_ps, bytes;
    int32_t drops;
    int32_t first, last;                /* of its list, -1: empty */
    int64_t mark_from_ps, mark_full_ps; /* ECN marking by backlog; INT64_MAX: none */
    double mark_share;
    double loss; /* share of packets lost on the wire */
};

/* Rate control by DCQCN; one for each flow that uses it. */
struct ft_control {
    double rate, target, alpha;
    int64_t notified_ps, decay_at_ps, rise_at_ps, last_notified_ps;
    int64_t bytes;
    int32_t timer_steps, byte_steps, rules;
};

struct ft_rules {
    double g, additive, hyper, min_rate;
    int64_t notify_every_ps, decay_ps, rise_ps, rise_bytes;
    int32_t fast_steps;
};

/* The fields of every packet come first: one cache line. */
struct ft_flow {
    int32_t path;        /* its first position in `ft_sim.hops` */
    int32_t source_slot; /* in the tree of sources, -1: not waiting to send */
    int32_t control;     /* -1: none */
    uint16_t packet_bytes;
    uint8_t kind, pending;
    uint64_t rng;
    double rate; /* bit/s: mean of Poisson flows, peak of bursts, pace of messages */
    int64_t stop_ps, sent_bytes, delivered_bytes;
    int64_t size;    /* bytes of the message */
    int64_t left;    /* bytes still to send (messages; < 0: endless), packets left of this burst (bursty) */
    double burst;    /* mean packets of a burst */
    double pause_ps; /* mean between bursts */
    int64_t notify_delay_ps; /* delay of the reverse route without queues */
    int64_t dropped_bytes, dropped, marked, start_ps, done_ps;
};

/* A stream of probes: one NIC, peer and path. */
struct ft_prober {
    int32_t forward, reverse;
    uint16_t bytes;
    uint8_t second; /* the next probe is the second of a pair */
    int64_t spacing_ps, stop_ps;
    int64_t
        jitter_ps; /* >= 0: a probe in each slot of gap_ps, at most this long after its begin; < 0: exponential gaps */
    int64_t slot_start_ps;
    double gap_ps;
    uint64_t rng;
};

struct ft_probe {
    int64_t sent_ps; /* first bit on the first link */
    int64_t wait_ps; /* wait in the first link's queue before that */
    int64_t forward_ps, turnaround_ps, reverse_ps;
    int32_t prober;
    int32_t fate; /* 0 in flight, 1 answered, 2 lost */
};

struct ft_start {
    int64_t at_ps;
    int64_t id;
};

/* Winner tree: leaf `id` is at capacity + id, node 1 holds the first event. */
struct ft_tree {
    struct ft_start *node;
    int32_t capacity;
};

struct ft_sim {
    int32_t links;
    int64_t slot_ps, now_ps, events;
    uint64_t seed, rng;
    struct ft_queue *queue;
    struct ft_tree arrivals; /* by link */
    struct ft_tree sources;  /* by seat */
    int32_t *slot_owner;     /* flow, or -1 - prober */
    int32_t *free_seats;
    int32_t seats, n_free;
    struct ft_start *waiting; /* binary heap of flows that start later */
    int64_t n_waiting, waiting_capacity;
    struct ft_packet *packet; /* all places */
    int64_t packet_capacity;
    int32_t free_packet; /* first free place, -1: none */
    int32_t *hops;       /* concatenated paths, each ended by FT_DELIVERED or FT_NO_ROUTE */
    int64_t n_hops, hop_capacity;
    struct ft_flow *flow;
    int64_t n_flows, flow_capacity;
    struct ft_control *control;
    int64_t n_controls, control_capacity;
    struct ft_rules *rules;
    int64_t n_rules, rules_capacity;
    struct ft_prober *prober;
    int64_t n_probers, prober_capacity;
    struct ft_probe *probe; /* probes not yet taken; the first has number `first_probe` */
    int64_t n_probes, probe_capacity, first_probe;
    /* exact sums of slots from `first_slot` on, [slot][link] */
    int64_t first_slot, slot_capacity;
    float *depth, *deepest, *busy;
    int64_t *bytes;
    int32_t *drops;
};

int ft_sim_open(struct ft_sim *sim, int32_t links, int64_t slot_ps, uint64_t seed);
void ft_sim_close(struct ft_sim *sim);
/* Functions that return int return 0 without memory. */
int ft_sim_add_path(struct ft_sim *sim, const int32_t *links, int64_t n, int reached, int32_t *first);
int ft_sim_add_flow(struct ft_sim *sim, struct ft_flow flow, int64_t start_ps, const struct ft_rules *rules);
int ft_sim_add_prober(struct ft_sim *sim, struct ft_prober prober, int64_t start_ps);
void ft_sim_set_path(struct ft_sim *sim, int64_t flow, int32_t first);
/* Run up to `until_ps`, at most `events`. Return 1: done, 0: not yet, -1: no memory, the simulation is
 * unusable. */
int ft_sim_run(struct ft_sim *sim, int64_t until_ps, int64_t events);
/* Bytes of flows (0) or probes (1) that are queued or on a wire. */
int64_t ft_sim_in_flight(const struct ft_sim *sim, int probes);
/* Complete the sums of every link up to now. */
void ft_sim_settle(struct ft_sim *sim);
/* Return the number of probes from the first untaken one on with a known result, and forget them. */
int64_t ft_sim_decided(const struct ft_sim *sim);
void ft_sim_forget_probes(struct ft_sim *sim, int64_t n);
void ft_sim_forget_slots(struct ft_sim *sim, int64_t n);

#endif
