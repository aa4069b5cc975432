/* The fluid simulation of a fleet: flows, queues, and the probes that cross them. See fluid.c for the
 * model. */
#ifndef FT_FLUID_H
#define FT_FLUID_H

#include <stdint.h>

enum { FL_TIERS = 6 }; /* columns of a route: host up, leaf up, spine up, core down, spine down, leaf down */

enum {
    FL_ALIVE = 0,
    FL_DEAD = 1,
    FL_SILENT = 2
}; /* a NIC that passes nothing; and one whose agent is dead as well */

typedef struct fl_sim fl_sim;

typedef struct {
    int64_t start_ns; /* system time at t = 0 */
    int64_t step_ns;
    double packet_bytes, probe_bytes;
    double max_load;                        /* upper limit of the packet-scale queue's load */
    double mark_begin, mark_full, max_mark; /* Kmin and Kmax as shares of the buffer; Pmax */
    double gain;                            /* g of DCQCN */
    double increase_share;                  /* additive increase per timer period, share of line rate */
    double timer_ns;                        /* timer of alpha and of increase */
    double min_rate_share;                  /* lowest rate, share of line rate */
    double idle_ns;                         /* idle time after which a flow starts at line rate again */
    double flowlet_ns;        /* gap after which a flow with routes takes any of them; 0: never */
    double slow_sender_bytes; /* size of a slowed sender's own queue */
    int lossless;             /* bytes beyond a buffer wait at their sender */
    double rate_pps;          /* requests per second and NIC */
    int64_t spacing_ns;       /* spacing of a coded pair; 0: single probes */
    double min_response_ns, max_response_ns;
    double timeout_ns; /* time after which a request is lost */
    double
        min_early_timeout_ns; /* a loss is reported after max(this, 4 x the longest recent round trip of the path) */
    double min_report_gap_ns; /* shortest time between two reports of one NIC */
    double repeat_report_ns;  /* shortest time between reports of losses that merely continue */
    double max_report_gap_ns; /* longest time between two reports */
    double noise_ns, quantum_ns;
    uint64_t seed;
} fl_settings;

typedef struct { /* an evidence report: elements [row, row + rows) of the evidence rows */
    int32_t nic;
    int64_t row, rows;
    double at, interval_ns; /* ns since t = 0 */
} fl_event;

typedef struct {
    int32_t group; /* index over all groups */
    int32_t lost, answered, late, loss_streak;
    double first_lost, last_lost, answered_sent, arrived, timeout_ns; /* ns since t = 0; -1: none */
} fl_row;

typedef struct {
    int32_t job;
    int64_t iteration;
    double begin, end;
    int64_t times, entries; /* offset of [2, entries] begins and ends of its entries; entries 0: not traced */
} fl_iteration;

fl_sim *fl_new(const fl_settings *settings, int32_t nics, int32_t links, const int64_t *rate_bps,
               const int64_t *delay_ns, const int64_t *buffer_bytes, const int8_t *kind);
void fl_free(fl_sim *sim);

int fl_set_clock(fl_sim *sim, int32_t nic, int64_t offset_ns, double drift_ppb, double wander,
                 int64_t epoch_ns, uint64_t seed, int64_t step_ns, int64_t step_at_ns);
int fl_set_names(fl_sim *sim, int32_t nic, const char *text, int64_t size);

/* Set the probe groups, ordered by NIC, and the links of their requests and answers. Return 0, or -1
 * without memory. */
int fl_set_groups(fl_sim *sim, int64_t groups, const int32_t *nic, const int32_t *peer, const int32_t *path);
int fl_set_legs(fl_sim *sim, const int64_t *start, const int32_t *link, const uint8_t *reached,
                const int64_t *back_start, const int32_t *back_link, const uint8_t *back_reached);

int64_t fl_add_flow(fl_sim *sim, int32_t src, double line_bps);
int fl_set_flow_path(fl_sim *sim, int64_t flow, const int32_t *link, int64_t hops, int reached);
/* Set the routes that switches draw from for each flowlet: [routes, FL_TIERS] links by tier, -1: none.
 * Return 0 or -1. */
int fl_set_flow_routes(fl_sim *sim, int64_t flow, int64_t routes, const int32_t *link);
void fl_set_flow_limits(fl_sim *sim, int64_t flow, double demand_bps, double limit_bps);
void fl_set_flow_line(fl_sim *sim, int64_t flow, double line_bps); /* highest rate of its sender */
int fl_flow_send(fl_sim *sim, int64_t flow, double bytes);         /* below 0: endless; 0: stop */

/* `members` 0: a phase begins when all flows of the phase before are done. Otherwise each flow of a phase
 * connects two members, `from` and `to`, and begins once both have finished the phases before. */
int64_t fl_add_job(fl_sim *sim, int64_t phases, const int64_t *phase_start, const int64_t *flow,
                   const double *bytes, double gap_ns, double begin_ns, int32_t members, const int32_t *from,
                   const int32_t *to);
void fl_stop_job(fl_sim *sim, int64_t job);
/* Set the time between two iterations, also for a job that waits now; INFINITY: the next one never begins. */
void fl_set_job_gap(fl_sim *sim, int64_t job, double gap_ns);
/* Keep the begin and end of every entry of a job. Return 0, or -1 without memory. */
int fl_trace_job(fl_sim *sim, int64_t job);
/* Return the [2, entries] times of a traced job's present iteration, NULL if it is not traced; -1: not yet. `begin`
 * is below 0 while the job waits. */
const double *fl_job_times(const fl_sim *sim, int64_t job, int64_t *entries, int64_t *iteration,
                           double *begin);

void fl_set_link(fl_sim *sim, int32_t link, int up, double loss, double share, double base_load);
void fl_set_nic(fl_sim *sim, int32_t nic, int dead, double rate_pps);
/* Give a NIC a probe schedule: slot k begins at `at_ns` + k * `slot_ns`, and its pair goes to group
 * `route`[k % slots] of the NIC, -1: any. `slots` 0: probe at random again, as after a rate change. Return
 * 0, or -1 without memory. */
int fl_set_schedule(fl_sim *sim, int32_t nic, double at_ns, double slot_ns, int64_t slots,
                    const int32_t *group);

int fl_advance(fl_sim *sim, double until_ns); /* whole steps; -1 without memory */
double fl_now(const fl_sim *sim);

/* Return the Avro body of a NIC's batch since its last one, valid until the next call; NULL without
 * memory. */
const uint8_t *fl_flush(fl_sim *sim, int32_t nic, int64_t run, int64_t batch, int64_t *size,
                        int64_t *samples);
int64_t fl_read_clock(fl_sim *sim, int32_t nic, double at);

int64_t fl_events(const fl_sim *sim, const fl_event **events, const fl_row **rows);
/* Return the Avro body of the LinkEvent for an evidence report, valid until the next call; NULL without
 * memory. */
const uint8_t *fl_event_body(fl_sim *sim, int64_t event, const uint8_t *shard, int64_t shard_size,
                             int64_t run, int64_t number, int kind, int64_t *size);
void fl_clear_events(fl_sim *sim);
int64_t fl_iterations(const fl_sim *sim, const fl_iteration **found);
const double *fl_iteration_times(const fl_sim *sim);
void fl_clear_iterations(fl_sim *sim);

/* Sums since t = 0, and the present depth; each array is [links] or NULL. */
void fl_link_sums(fl_sim *sim, double *depth_byte_steps, double *packet_byte_steps, double *busy_steps,
                  double *bytes, double *dropped_bytes, double *depth_bytes);
void fl_link_max(fl_sim *sim, double *max_bytes); /* deepest since the last call */
int64_t fl_steps(const fl_sim *sim);

int64_t fl_flows(const fl_sim *sim);
int64_t fl_working(const fl_sim *sim); /* flows and links that are computed in each step */
int64_t fl_listed(const fl_sim *sim);
/* [flows, 7]: bytes sent, bytes sent again, steps with data, steps limited by the sender's own side, steps
 * limited by a slow receiver, rate allowed (bit/s), bytes left (negative: endless); and 1 for each active
 * flow. */
void fl_flow_sums(fl_sim *sim, double *sevens, uint8_t *active);
void fl_flow_sums_of(fl_sim *sim, int64_t flow, double *seven, uint8_t *active);
void fl_flow_cuts(const fl_sim *sim, int64_t *cuts); /* [flows] cuts of each flow's rate since t = 0 */
double fl_flow_backlog(const fl_sim *sim, int64_t flow);

void fl_totals(const fl_sim *sim, int64_t *sent, int64_t *answered, int64_t *lost, int64_t *in_flight);

/* Draw n waits (ns) of the packet-scale queue alone, for tests: at one load, at evenly spaced times. */
void fl_packet_waits(uint64_t seed, double load, double service_ns, double spacing_ns, int64_t n,
                     double *out);

#endif
