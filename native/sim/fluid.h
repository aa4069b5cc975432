/* The simulated fleet as a fluid: flows, queues and the probes that cross them. See fluid.c for the model. */
#ifndef FT_FLUID_H
#define FT_FLUID_H

#include <stdint.h>

enum { FL_TIERS = 6 }; /* columns of a path: host up, leaf up, spine up, core down, spine down, leaf down */

enum { FL_ALIVE = 0, FL_DEAD = 1, FL_SILENT = 2 }; /* a NIC that passes nothing; and one whose agent is gone too */

typedef struct fl_sim fl_sim;

typedef struct {
  int64_t start_ns; /* system time at t = 0 */
  int64_t step_ns;
  double packet_bytes, probe_bytes;
  double load_most;                       /* of the packet-scale queue */
  double mark_begin, mark_full, mark_most; /* Kmin and Kmax as shares of the buffer; Pmax */
  double gain;                            /* g of DCQCN */
  double increase_share;                  /* additive increase, share of line rate a timer period */
  double timer_ns;                        /* alpha and increase timer */
  double least_share;                     /* least rate, share of line rate */
  double idle_ns;                         /* after so long without data a flow starts at line rate again */
  double flowlet_ns;                      /* after a gap of so long a flow that has ways takes any of them; 0: never */
  double slow_room_bytes;                 /* what a slowed sender's own queue holds */
  int lossless;                           /* what exceeds a buffer waits at its sender */
  double rate_pps;                        /* requests a second and NIC */
  int64_t spacing_ns;                     /* of a coded pair; 0: single probes */
  double turn_least_ns, turn_most_ns;
  double timeout_ns;       /* a request without an answer is lost */
  double early_least_ns;   /* evidence of a loss comes at max(this, 4 x the path's recent longest round trip) */
  double evidence_gap_ns;  /* least time between two pieces of evidence of one NIC */
  double evidence_slow_ns; /* and where losses that were told merely go on */
  double evidence_beat_ns; /* longest time between two */
  double noise_ns, quantum_ns;
  uint64_t seed;
} fl_settings;

typedef struct { /* one piece of evidence: rows [row, row + rows) of the evidence rows */
  int32_t nic;
  int64_t row, rows;
  double at, interval_ns; /* ns since t = 0 */
} fl_event;

typedef struct {
  int32_t group; /* of all */
  int32_t lost, answered, late, loss_streak;
  double first_lost, last_lost, answered_sent, arrived, timeout_ns; /* ns since t = 0; -1: none */
} fl_row;

typedef struct {
  int32_t job;
  int64_t iteration;
  double begin, end;
} fl_iteration;

fl_sim *fl_new(const fl_settings *settings, int32_t nics, int32_t links, const int64_t *rate_bps,
               const int64_t *delay_ns, const int64_t *buffer_bytes, const int8_t *kind);
void fl_free(fl_sim *sim);

int fl_set_clock(fl_sim *sim, int32_t nic, int64_t offset_ns, double drift_ppb, double wander, int64_t epoch_ns,
                 uint64_t seed, int64_t step_ns, int64_t step_at_ns);
int fl_set_names(fl_sim *sim, int32_t nic, const char *text, int64_t size);

/* Probe groups, ordered by NIC; then the links of each one's requests and answers. 0, or -1 without memory. */
int fl_set_groups(fl_sim *sim, int64_t groups, const int32_t *nic, const int32_t *peer, const int32_t *path);
int fl_set_legs(fl_sim *sim, const int64_t *start, const int32_t *link, const uint8_t *reached, const int64_t *back_start,
                const int32_t *back_link, const uint8_t *back_reached);

int64_t fl_add_flow(fl_sim *sim, int32_t src, double line_bps);
int fl_set_flow_path(fl_sim *sim, int64_t flow, const int32_t *link, int64_t hops, int reached);
/* Ways among which switches draw anew for each flowlet: [ways, FL_TIERS] links by tier, -1: none. 0, or -1. */
int fl_set_flow_ways(fl_sim *sim, int64_t flow, int64_t ways, const int32_t *link);
void fl_set_flow_limits(fl_sim *sim, int64_t flow, double demand_bps, double limit_bps);
int fl_flow_send(fl_sim *sim, int64_t flow, double bytes); /* below 0: without end; 0: stop */

/* `members` 0: a phase begins when all of the one before is done. Else each flow of a phase is between two of them,
 * `from` and `to`, and begins once both have done all that they send and get in the phases before. */
int64_t fl_add_job(fl_sim *sim, int64_t phases, const int64_t *phase_start, const int64_t *flow, const double *bytes,
                   double gap_ns, double begin_ns, int32_t members, const int32_t *from, const int32_t *to);
void fl_stop_job(fl_sim *sim, int64_t job);

void fl_set_link(fl_sim *sim, int32_t link, int up, double loss, double share, double base_load);
void fl_set_nic(fl_sim *sim, int32_t nic, int dead, double rate_pps);
/* A NIC's probes in turns: turn k begins at `at_ns` + k * `turn_ns`, its pair goes the way `way`[k % turns], a group of
 * the NIC's own from 0, -1: any. `turns` 0: at random again. Another rate ends it. 0, or -1 without memory. */
int fl_set_turns(fl_sim *sim, int32_t nic, double at_ns, double turn_ns, int64_t turns, const int32_t *way);

int fl_advance(fl_sim *sim, double until_ns); /* whole steps; -1 without memory */
double fl_now(const fl_sim *sim);

/* The Avro body of a NIC's batch since its last one, valid until the next call. NULL without memory. */
const uint8_t *fl_flush(fl_sim *sim, int32_t nic, int64_t run, int64_t batch, int64_t *size, int64_t *samples);
int64_t fl_read_clock(fl_sim *sim, int32_t nic, double at);

int64_t fl_events(const fl_sim *sim, const fl_event **events, const fl_row **rows);
/* The Avro body of the LinkEvent that one piece of evidence makes, valid until the next call. NULL without memory. */
const uint8_t *fl_event_body(fl_sim *sim, int64_t event, const uint8_t *shard, int64_t shard_size, int64_t run,
                             int64_t number, int kind, int64_t *size);
void fl_clear_events(fl_sim *sim);
int64_t fl_iterations(const fl_sim *sim, const fl_iteration **found);
void fl_clear_iterations(fl_sim *sim);

/* Sums since t = 0, and what is so now; each array [links], NULL: not wanted. */
void fl_link_sums(fl_sim *sim, double *depth_byte_steps, double *packet_byte_steps, double *busy_steps,
                  double *bytes, double *dropped_bytes, double *depth_bytes);
void fl_link_most(fl_sim *sim, double *most_bytes); /* deepest since the last call */
int64_t fl_steps(const fl_sim *sim);

int64_t fl_flows(const fl_sim *sim);
int64_t fl_working(const fl_sim *sim); /* flows and links that are looked at in each step */
int64_t fl_listed(const fl_sim *sim);
/* [flows, 7]: bytes sent, bytes sent again, steps with something to send, steps held by the sender's own side, steps
 * held by a slow receiver, rate allowed (bit/s), bytes left (negative: no end); and whether each is at work. */
void fl_flow_sums(fl_sim *sim, double *sevens, uint8_t *active);
void fl_flow_sums_of(fl_sim *sim, int64_t flow, double *seven, uint8_t *active);
double fl_flow_backlog(const fl_sim *sim, int64_t flow);

void fl_totals(const fl_sim *sim, int64_t *sent, int64_t *answered, int64_t *lost, int64_t *in_flight);

/* The packet-scale queue alone, for tests: n waits (ns) at one load, at times spaced apart. */
void fl_packet_waits(uint64_t seed, double load, double service_ns, double spacing_ns, int64_t n, double *out);

#endif
