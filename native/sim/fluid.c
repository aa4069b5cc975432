/* The simulated fleet as a fluid, in steps of `step_ns`; probes cross it one by one, at times of their own.
 *
 * Flows. In a step a flow offers what its rate, its limits and its data allow. Links are served tier by tier, the
 * way that packets go. What a link cannot pass on in the step waits in its queue; each flow's part of the queue is
 * kept, and leaves in proportion to what is there (FIFO at the grain of a step). What exceeds the buffer goes back to
 * its sender at once where the fabric is lossless (a pause that holds up the right flows alone: no head-of-line
 * blocking), else it is dropped and sent again. At the first link the NIC itself divides the port among its flows: what does not fit is not sent
 * and waits in memory, but for a slowed sender, whose own queue fills.
 *
 * Flowlets. Where `flowlet_ns` is set, switches spread flowlets and not flows, as LetFlow does (Vanini et al., NSDI
 * 2017): the first packet of a flow that comes so long after the one before it is led over any way, drawn evenly, and
 * those that follow it closely go after it. The gap before a flow's first packet is the time since its last data; while
 * it sends, packets of a step are taken to be evenly spaced, so a gap is a packet's time at the rate of that step: only
 * a flow that is slowed to less than a packet in `flowlet_ns` is led anew in the midst of its data. RDMA at line rate
 * has no gaps but those between its messages. What is on the old way still gets there.
 *
 * Flows that send the same step after step and meet no queue are quiet: they cost nothing until a link on their way
 * has more than it can pass on, or loses packets; their sums, and those of links with nothing else, are made up later.
 *
 * Rate control in the manner of DCQCN (Zhu et al., SIGCOMM 2015). A link marks packets with a probability that rises
 * from 0 at Kmin to Pmax at Kmax of its queue, and is 1 beyond. A flow whose packets of a step carry a mark
 * (probability 1 - (1 - p)^packets) cuts: alpha = (1 - g) alpha + g, target = rate, rate *= 1 - alpha / 2.
 * Otherwise, per timer period: alpha *= 1 - g, rate = (rate + target) / 2, and from the sixth period on the target
 * grows by a constant, from the sixteenth on by ten times as much. Left out: the byte counter, PFC, and all that is quicker than a step. A loss
 * counts as a mark.
 *
 * Packet-scale queue. Below saturation a real queue still moves, by the chance of packets that come together: at
 * load r an M/D/1 queue's. By Pollaczek and Khinchine (Benes 1963) its stationary work is the sum of N terms, N
 * geometric, P(N = n) = (1 - r) r^n, each uniform in (0, S), S one packet's time: the residuals of a constant
 * service. So mean r S / (2 (1 - r)) and second moment 2 mean^2 + r S^2 / (3 (1 - r)) are exact, as is the whole
 * law. Two crossings, d apart, find the same work with probability exp(-d / tau) and else draw anew, which leaves the
 * law as it is and makes the autocorrelation exp(-d / tau). tau is the process's own integral correlation time at
 * both ends: 3 S / 8 where r is small (one packet's triangle), and r S / (1 - r)^2 in heavy traffic (reflected
 * Brownian motion of drift 1 - r and variance r S: Abate and Whitt 1987). Beyond `load_most` the law stays as there:
 * the standing queue is the fluid's.
 *
 * Probes. Requests leave each NIC by Poisson times, as coded pairs, to one of its groups (peer and path) drawn
 * evenly. Each hop adds, at the time of the crossing, the fluid queue (linear within a step), the packet-scale queue,
 * the probe's serialisation and the link's fixed delay. What is not within this step waits in a calendar. */
#include "fluid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../core/clockmodel.h"
#include "../core/decode.h"

enum {
  DEEP = 4096, /* steps that the calendar of probes looks ahead */
  FAST = 5,    /* timer periods of fast recovery */
  HYPER = 15,  /* and those after which a rate rises quickly */
  CALM = 20,   /* steps without a queue after which a flow is quiet */
  BACK = 3,    /* losses in a row after which an answer is told at once */
  GROWS = 8    /* losses in a row up to which each one is told at once */
};
#define ENDLESS 1e300
#define SAME 0.002 /* change of a link's load within which its packet-scale queue's law stays */
#define STOPPED 1e-4 /* share of a link's rate below which nothing moves */

typedef struct { uint64_t s[4]; } rng_t;

typedef struct { /* what a step asks of a link; the first line is what flows ask */
  double offered, pass, keep, gone, unmarked, loss;
  double last; /* bytes of the step that its load was found for */
  uint8_t plain, listed, tier, back; /* back: what does not fit was not sent */
  double fixed, capacity, orphan, open, given, bytes;
  float share;
} hot_t;

typedef struct { /* what a probe asks of a link */
  double q0, q1, ns_per_byte, delay_ns;
  double waited, waited_at; /* the packet-scale work last found, and when (ns) */
  float load, waited_load, loss, drop;
  float share;
  uint8_t up;
} link_t;

typedef struct { /* what only changes seldom, and sums */
  double buffer, mark_begin, mark_full;
  double depth, packet, dropped, most;
  int64_t since; /* step from which on sums are missing: since then each step was nearly as the last one */
  uint8_t crowded;
} rest_t;

typedef struct {
  int32_t path[FL_TIERS];
  double waiting[FL_TIERS];
} way_t;

typedef struct {
  double left, line, rate, target, alpha, stage, demand, limit, idle_since;
  double sent, again, busy, own, receiver;
  double fixed;  /* bytes a step while quiet */
  int64_t since; /* step from which on sums are missing, while quiet */
  int32_t job, at; /* position in the list of those at work, -1: idle or quiet */
  int32_t entry;   /* of its job, that it sends now */
  int32_t ways, *way; /* [ways, FL_TIERS] that switches draw from */
  int32_t calm;    /* steps in a row without a queue, a mark or a loss */
  uint8_t reached, quiet;
} flow_t;

typedef struct {
  int64_t phases, phase, open, iteration;
  int64_t *phase_start, *flow;
  double *bytes;
  double gap, begin, due;
  int32_t members, *from, *to; /* [entries] the two members of each flow of a phase */
  int32_t *phase_of, *open_of; /* [members] where each is, and how many flows it waits for there */
  uint8_t waiting, stopped;
} job_t;

enum { FLYING, DONE, GONE, LOST };

typedef struct {
  double t, sent, due;
  int64_t t1, t2, t3, t4;
  int16_t hop;
  uint8_t leg, state, told;
} probe_t;

typedef struct {
  probe_t probe[2];
  int32_t group;
  uint8_t size, open, nodes;
} pair_t;

typedef struct {
  int32_t group, paired;
  int64_t sent, forward, turn, back;
} sample_t;

typedef struct {
  int32_t nic, peer, path;
  int64_t start[2];
  int16_t hops[2];
  uint8_t reached[2];
  int32_t lost_b;
  int32_t lost, answered, late, loss_streak; /* the first three: since the NIC's last piece of evidence */
  double first_lost, last_lost, answered_sent, arrived, longest;
} group_t;

typedef struct {
  ft_clock clock;
  double gap_ns, rate_pps, told_at;
  double turns_at, turn_ns; /* ns: when turn 0 begins; from turn to turn */
  int64_t turn, turns;      /* the next one; how many make a round, 0: probes go out at random */
  int32_t *turn_way;        /* [turns] groups of the NIC's own, from 0; -1: any */
  int64_t group, groups;
  sample_t *samples;
  int64_t count, room;
  char *name;
  int64_t name_size;
  uint8_t dead, due;
} nic_t;

struct fl_sim {
  fl_settings s;
  int32_t nics, links;
  int64_t step;
  double t, end, dt;
  rng_t chance, marks, turns; /* the last: which way flowlets go */
  double spare;
  int has_spare;
  hot_t *hot;
  link_t *link;
  rest_t *rest;
  int32_t *listed[FL_TIERS];
  int32_t listed_n[FL_TIERS];
  int32_t slowed; /* links with less than their rate */
  int tier[FL_TIERS], tiers; /* those that this fabric has, in the order of a path */
  int32_t *crowded, crowded_n; /* links that quiet flows cross, and that cannot take all */
  nic_t *nic;
  double *next_send, *beat_at;
  int32_t *due, due_n;
  group_t *group;
  int64_t groups;
  int32_t *leg_link[2];
  pair_t *pair;
  int32_t *next; /* of 4 nodes a pair: two hops, two time-outs */
  int64_t pairs, free_n;
  int32_t *free;
  int32_t bucket[DEEP];
  flow_t *flow;
  way_t *way;
  int64_t flows, flow_room;
  int32_t *work;
  double *carry, *unmarked, *want, *unsent, *lost;
  int64_t working;
  job_t *job;
  int64_t jobs, job_room;
  fl_event *event;
  int64_t events, event_room;
  fl_row *row;
  int64_t rows, row_room;
  fl_iteration *iteration;
  int64_t iterations, iteration_room;
  uint8_t *out;
  int64_t out_room;
  int32_t *order;
  int64_t order_room;
  int64_t sent, answered, lost_n, in_flight;
  double half, fade, periods;
  int failed;
};

/* --- chance: xoshiro256++ (Blackman and Vigna 2021), seeded by a 64-bit mixer --- */

static uint64_t mixed(uint64_t *state) {
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static void rng_seed(rng_t *r, uint64_t seed) {
  for (int i = 0; i < 4; i++) r->s[i] = mixed(&seed);
}

static inline uint64_t turned(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static inline uint64_t rng_next(rng_t *r) {
  uint64_t *s = r->s, found = turned(s[0] + s[3], 23) + s[0], t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = turned(s[3], 45);
  return found;
}

static inline double unit(rng_t *r) { return ((double)(rng_next(r) >> 11) + 0.5) * 0x1p-53; } /* in (0, 1) */

static inline uint32_t below(rng_t *r, uint32_t n) { return (uint32_t)(((rng_next(r) >> 32) * n) >> 32); }

static double normal(fl_sim *m, rng_t *r) { /* Marsaglia's polar method */
  if (m->has_spare) {
    m->has_spare = 0;
    return m->spare;
  }
  double x, y, w;
  do {
    x = 2 * unit(r) - 1;
    y = 2 * unit(r) - 1;
    w = x * x + y * y;
  } while (w >= 1 || w == 0);
  w = sqrt(-2 * log(w) / w);
  m->spare = y * w;
  m->has_spare = 1;
  return x * w;
}

/* --- the packet-scale queue --- */

/* Stationary work of M/D/1 at `load`, in units of one service. Beyond 16 terms their sum is a normal deviate's. */
static double packet_work(rng_t *r, double load) {
  double u = unit(r);
  if (u >= load) return 0;
  double n = floor(log(u) / log(load));
  if (n < 1) n = 1; /* u just below load */
  if (n <= 16) {
    double sum = 0;
    for (int i = (int)n; i > 0; i--) sum += unit(r);
    return sum;
  }
  double a = sqrt(-2 * log(unit(r))) * cos(6.283185307179586 * unit(r));
  double sum = n / 2 + a * sqrt(n / 12);
  return sum > 0 ? sum : 0;
}

/* The work (ns) that a crossing at t finds; `service_ns` is one packet's. */
static inline double packet_wait(rng_t *r, link_t *l, double t, double load, double service_ns) {
  double idle = 1 - load, tau = service_ns * (0.375 + load / (idle * idle)), d = fabs(t - l->waited_at);
  if (d > 8 * tau || fabs(load - l->waited_load) > 0.05 || unit(r) >= exp(-d / tau)) {
    l->waited = packet_work(r, load) * service_ns;
    l->waited_load = (float)load;
    l->waited_at = t;
  }
  return l->waited;
}

void fl_packet_waits(uint64_t seed, double load, double service_ns, double spacing_ns, int64_t n, double *out) {
  rng_t r;
  link_t l = {.waited_at = -1e18};
  rng_seed(&r, seed);
  for (int64_t i = 0; i < n; i++) {
    double t = (double)i * spacing_ns;
    out[i] = packet_wait(&r, &l, t, load, service_ns);
    l.waited_at = t;
  }
}

/* --- making and ending --- */

fl_sim *fl_new(const fl_settings *settings, int32_t nics, int32_t links, const int64_t *rate_bps,
               const int64_t *delay_ns, const int64_t *buffer_bytes, const int8_t *kind) {
  static const uint8_t tier_of[FL_TIERS] = {0, 5, 1, 4, 2, 3}; /* by LinkKind */
  fl_sim *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  m->s = *settings;
  m->nics = nics;
  m->links = links;
  m->dt = (double)settings->step_ns;
  m->end = m->dt;
  rng_seed(&m->chance, settings->seed * 2 + 1);
  rng_seed(&m->marks, settings->seed * 2 + 2);
  rng_seed(&m->turns, ~settings->seed);
  m->periods = m->dt / settings->timer_ns;
  m->half = pow(0.5, m->periods);
  m->fade = pow(1 - settings->gain, m->periods);
  m->hot = aligned_alloc(64, (sizeof *m->hot * (size_t)links + 63) / 64 * 64);
  m->link = calloc((size_t)links, sizeof *m->link);
  m->rest = calloc((size_t)links, sizeof *m->rest);
  m->nic = calloc((size_t)nics, sizeof *m->nic);
  m->due = calloc((size_t)nics, sizeof *m->due);
  m->next_send = calloc((size_t)nics, sizeof *m->next_send);
  m->beat_at = calloc((size_t)nics, sizeof *m->beat_at);
  m->crowded = calloc((size_t)links, sizeof *m->crowded);
  int64_t tiers[FL_TIERS] = {0};
  for (int32_t i = 0; i < links; i++) tiers[tier_of[kind[i]]]++;
  for (int c = 0; c < FL_TIERS; c++)
    if (tiers[c]) m->tier[m->tiers++] = c;
  int whole = m->hot && m->link && m->rest && m->nic && m->next_send && m->beat_at && m->due && m->crowded;
  for (int c = 0; c < FL_TIERS; c++) {
    m->listed[c] = calloc((size_t)tiers[c] + 1, sizeof(int32_t));
    whole = whole && m->listed[c];
  }
  if (!whole) {
    fl_free(m);
    return NULL;
  }
  for (int i = 0; i < DEEP; i++) m->bucket[i] = -1;
  for (int32_t i = 0; i < links; i++) {
    double buffer = (double)buffer_bytes[i];
    m->hot[i] = (hot_t){.capacity = (double)rate_bps[i] / 8e9 * m->dt, .share = 1, .pass = 1, .unmarked = 1,
                        .plain = 1, .tier = tier_of[kind[i]]};
    m->hot[i].open = m->hot[i].capacity;
    m->link[i] = (link_t){.ns_per_byte = 8e9 / (double)rate_bps[i], .delay_ns = (double)delay_ns[i],
                          .waited_at = -1e18, .share = 1, .up = 1};
    m->rest[i] = (rest_t){.buffer = buffer, .mark_begin = settings->mark_begin * buffer,
                          .mark_full = settings->mark_full * buffer};
  }
  for (int32_t n = 0; n < nics; n++) {
    ft_clock_init(&m->nic[n].clock, 0, 0, 0, 0, 0, 0, 0);
    m->next_send[n] = INFINITY;
    m->nic[n].told_at = -1e18;
    m->beat_at[n] = (double)(n % 97 + 1) / 97 * settings->evidence_beat_ns; /* not all at once */
    fl_set_nic(m, n, 0, settings->rate_pps);
  }
  return m;
}

void fl_free(fl_sim *m) {
  if (!m) return;
  for (int32_t n = 0; m->nic && n < m->nics; n++) {
    free(m->nic[n].samples);
    free(m->nic[n].name);
    free(m->nic[n].turn_way);
  }
  for (int64_t j = 0; j < m->jobs; j++) {
    free(m->job[j].phase_start);
    free(m->job[j].flow);
    free(m->job[j].bytes);
    free(m->job[j].from);
    free(m->job[j].to);
    free(m->job[j].phase_of);
    free(m->job[j].open_of);
  }
  for (int64_t f = 0; f < m->flows; f++) free(m->flow[f].way);
  for (int c = 0; c < FL_TIERS; c++) free(m->listed[c]);
  void *all[] = {m->hot, m->link, m->rest, m->nic, m->next_send, m->beat_at, m->due, m->crowded, m->group, m->leg_link[0], m->leg_link[1], m->pair, m->next,
                 m->free, m->flow, m->way, m->work, m->carry, m->unmarked, m->want, m->unsent, m->lost, m->job,
                 m->event, m->row, m->iteration, m->out, m->order, m};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Make room for one more of `*array`; 0, or -1 without memory. */
static int grow(void *array, int64_t *room, int64_t wanted, size_t size) {
  if (wanted <= *room) return 0;
  int64_t more = *room < 16 ? 16 : *room * 2;
  while (more < wanted) more *= 2;
  void *fresh = realloc(*(void **)array, (size_t)more * size);
  if (!fresh) return -1;
  *(void **)array = fresh;
  *room = more;
  return 0;
}

int fl_set_clock(fl_sim *m, int32_t nic, int64_t offset_ns, double drift_ppb, double wander, int64_t epoch_ns,
                 uint64_t seed, int64_t step_ns, int64_t step_at_ns) {
  ft_clock_init(&m->nic[nic].clock, offset_ns, drift_ppb, wander, epoch_ns, seed, step_ns, step_at_ns);
  return 0;
}

int fl_set_names(fl_sim *m, int32_t nic, const char *text, int64_t size) {
  free(m->nic[nic].name);
  m->nic[nic].name = malloc((size_t)size + 1);
  if (!m->nic[nic].name) return -1;
  memcpy(m->nic[nic].name, text, (size_t)size);
  m->nic[nic].name_size = size;
  return 0;
}

int64_t fl_read_clock(fl_sim *m, int32_t nic, double at) {
  return ft_clock_read(&m->nic[nic].clock, m->s.start_ns + llrint(at));
}

static int64_t stamp(fl_sim *m, int32_t nic, double at) {
  int64_t quantum = (int64_t)m->s.quantum_ns;
  double noise = m->s.noise_ns > 0 ? m->s.noise_ns * normal(m, &m->chance) : 0;
  int64_t whole = (int64_t)at;
  int64_t reading = ft_clock_read(&m->nic[nic].clock, m->s.start_ns + whole) + llrint(at - (double)whole + noise);
  if (quantum <= 1) return reading;
  int64_t over = reading % quantum;
  if (over < 0) over += quantum;
  return reading - over + (over * 2 >= quantum ? quantum : 0);
}

/* --- probe groups --- */

int fl_set_groups(fl_sim *m, int64_t groups, const int32_t *nic, const int32_t *peer, const int32_t *path) {
  group_t *fresh = calloc((size_t)groups + 1, sizeof *fresh);
  if (!fresh) return -1;
  free(m->group);
  m->group = fresh;
  m->groups = groups;
  for (int32_t n = 0; n < m->nics; n++) m->nic[n].groups = 0;
  for (int64_t g = 0; g < groups; g++) {
    nic_t *own = &m->nic[nic[g]];
    if (!own->groups) own->group = g;
    own->groups++;
    fresh[g] = (group_t){.nic = nic[g], .peer = peer[g], .path = path[g], .first_lost = -1, .last_lost = -1,
                         .answered_sent = -1, .arrived = -1};
  }
  for (int32_t n = 0; n < m->nics; n++) fl_set_nic(m, n, m->nic[n].dead, m->nic[n].rate_pps);
  return 0;
}

int fl_set_legs(fl_sim *m, const int64_t *start, const int32_t *link, const uint8_t *reached, const int64_t *back_start,
                const int32_t *back_link, const uint8_t *back_reached) {
  const int64_t *starts[2] = {start, back_start};
  const int32_t *links[2] = {link, back_link};
  const uint8_t *ends[2] = {reached, back_reached};
  for (int leg = 0; leg < 2; leg++) {
    int64_t n = starts[leg][m->groups];
    int32_t *fresh = malloc(sizeof *fresh * (size_t)(n + 1));
    if (!fresh) return -1;
    memcpy(fresh, links[leg], sizeof *fresh * (size_t)n);
    free(m->leg_link[leg]);
    m->leg_link[leg] = fresh;
    for (int64_t g = 0; g < m->groups; g++) {
      m->group[g].start[leg] = starts[leg][g];
      m->group[g].hops[leg] = (int16_t)(starts[leg][g + 1] - starts[leg][g]);
      m->group[g].reached[leg] = ends[leg][g];
    }
  }
  return 0;
}

void fl_set_nic(fl_sim *m, int32_t nic, int dead, double rate_pps) {
  nic_t *n = &m->nic[nic];
  int probes = m->s.spacing_ns > 0 ? 2 : 1;
  double gap_ns = rate_pps > 0 ? 1e9 * probes / rate_pps : INFINITY;
  n->dead = (uint8_t)dead;
  if (gap_ns != n->gap_ns) n->turns = 0; /* who sends faster or slower than agreed takes no turns */
  if (gap_ns != n->gap_ns || m->next_send[n - m->nic] == INFINITY) m->next_send[n - m->nic] = m->t - log(unit(&m->chance)) * gap_ns;
  n->gap_ns = gap_ns;
  n->rate_pps = rate_pps;
  if (!n->groups || dead == FL_SILENT || !(gap_ns < INFINITY)) m->next_send[n - m->nic] = INFINITY;
}

/* The time of the NIC's next turn: any of its first half. */
static double turn_time(fl_sim *m, const nic_t *n) {
  return n->turns_at + ((double)n->turn + 0.5 * unit(&m->chance)) * n->turn_ns;
}

int fl_set_turns(fl_sim *m, int32_t nic, double at_ns, double turn_ns, int64_t turns, const int32_t *way) {
  nic_t *n = &m->nic[nic];
  int32_t *fresh = malloc(sizeof *fresh * (size_t)(turns + 1));
  if (!fresh) return -1;
  memcpy(fresh, way, sizeof *fresh * (size_t)turns);
  free(n->turn_way);
  n->turn_way = fresh;
  n->turns = turns;
  n->turns_at = at_ns;
  n->turn_ns = turn_ns;
  if (!turns || m->next_send[nic] == INFINITY) return 0;
  n->turn = (int64_t)ceil((m->t - at_ns) / turn_ns);
  m->next_send[nic] = turn_time(m, n);
  return 0;
}

/* --- links and flows that stay as they are --- */

static void settle_link(fl_sim *m, int32_t at) {
  rest_t *r = &m->rest[at];
  int64_t steps = m->step - r->since;
  if (steps <= 0) return;
  hot_t *h = &m->hot[at];
  double load = m->link[at].load;
  r->packet += (double)steps * load / (2 * (1 - load)) * m->s.packet_bytes;
  if (!h->listed) h->bytes += (double)steps * h->last; /* listed ones count theirs in each step */
  r->since = m->step;
}

static void list_link(fl_sim *m, int32_t at) {
  hot_t *h = &m->hot[at];
  if (h->listed) return;
  settle_link(m, at);
  h->listed = 1;
  h->offered = 0;
  m->listed[h->tier][m->listed_n[h->tier]++] = at;
}

static void settle_flow(fl_sim *m, flow_t *f) {
  double steps = (double)(m->step - f->since);
  if (!f->quiet || steps <= 0) return;
  f->sent += steps * f->fixed;
  f->busy += steps;
  if (f->demand < f->rate || f->limit < f->rate) f->own += steps;
  f->since = m->step;
}

/* Add `bytes` a step to what quiet flows send over a flow's links. */
static void fix(fl_sim *m, int64_t flow, double bytes) {
  for (int c = 0; c < FL_TIERS; c++) {
    int32_t at = m->way[flow].path[c];
    if (at < 0) continue;
    list_link(m, at);
    m->hot[at].fixed += bytes;
    if (m->hot[at].fixed < 1e-6) m->hot[at].fixed = 0;
  }
}

static void wake(fl_sim *m, int64_t flow) {
  flow_t *f = &m->flow[flow];
  f->calm = 0;
  if (!f->quiet) return;
  settle_flow(m, f);
  f->quiet = 0;
  fix(m, flow, -f->fixed);
  f->at = (int32_t)m->working;
  m->work[m->working++] = (int32_t)flow;
}

void fl_set_link(fl_sim *m, int32_t link, int up, double loss, double share, double base_load) {
  hot_t *h = &m->hot[link];
  link_t *l = &m->link[link];
  list_link(m, link);
  l->up = (uint8_t)up;
  m->slowed += (share < 1) - (h->share < 1);
  l->loss = (float)loss;
  h->loss = loss;
  h->plain = 0;
  h->share = l->share = (float)share;
  h->given = h->capacity * base_load;
  h->open = up && share >= STOPPED ? h->capacity * share - h->given : 0;
  if (h->open < 0) h->open = 0;
}

/* --- flows --- */

int64_t fl_add_flow(fl_sim *m, int32_t src, double line_bps) {
  (void)src;
  if (m->flows == m->flow_room) {
    int64_t room = m->flow_room, same;
    same = room;
    if (grow(&m->flow, &same, m->flows + 1, sizeof *m->flow)) return -1;
    int64_t whole = same;
    struct { void *at; size_t size; } all[] = {{&m->way, sizeof *m->way}, {&m->work, sizeof *m->work},
                                               {&m->carry, 8}, {&m->unmarked, 8}, {&m->want, 8}, {&m->unsent, 8},
                                               {&m->lost, 8}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
      same = room;
      if (grow(all[i].at, &same, whole, all[i].size)) return -1;
    }
    m->flow_room = whole;
  }
  double line = line_bps / 8e9; /* bytes a ns */
  m->flow[m->flows] = (flow_t){.line = line, .rate = line, .target = line, .alpha = 1, .demand = ENDLESS,
                               .limit = ENDLESS, .idle_since = -1e18, .job = -1, .at = -1};
  memset(&m->way[m->flows], 0, sizeof *m->way);
  for (int c = 0; c < FL_TIERS; c++) m->way[m->flows].path[c] = -1;
  return m->flows++;
}

static void leave_way(fl_sim *m, int64_t flow) {
  way_t *w = &m->way[flow];
  for (int c = 0; c < FL_TIERS; c++) { /* what waits on the old way still gets there, for nobody's account */
    if (w->path[c] >= 0 && w->waiting[c] > 0) {
      list_link(m, w->path[c]);
      m->hot[w->path[c]].orphan += w->waiting[c];
    }
    w->path[c] = -1;
    w->waiting[c] = 0;
  }
}

/* A flowlet begins: lead it over any way. */
static void draw_way(fl_sim *m, int64_t flow) {
  flow_t *f = &m->flow[flow];
  const int32_t *way = f->way + FL_TIERS * (int64_t)below(&m->turns, (uint32_t)f->ways);
  if (!memcmp(way, m->way[flow].path, sizeof *way * FL_TIERS)) return;
  leave_way(m, flow);
  memcpy(m->way[flow].path, way, sizeof *way * FL_TIERS);
}

int fl_set_flow_ways(fl_sim *m, int64_t flow, int64_t ways, const int32_t *link) {
  int32_t *fresh = malloc(sizeof *fresh * FL_TIERS * (size_t)(ways + 1));
  if (!fresh) return -1;
  memcpy(fresh, link, sizeof *fresh * FL_TIERS * (size_t)ways);
  free(m->flow[flow].way);
  m->flow[flow].way = fresh;
  m->flow[flow].ways = (int32_t)ways;
  return 0;
}

int fl_set_flow_path(fl_sim *m, int64_t flow, const int32_t *link, int64_t hops, int reached) {
  way_t *w = &m->way[flow];
  wake(m, flow);
  leave_way(m, flow);
  for (int64_t i = 0; i < hops; i++) w->path[m->hot[link[i]].tier] = link[i];
  m->flow[flow].reached = (uint8_t)reached;
  return 0;
}

void fl_set_flow_limits(fl_sim *m, int64_t flow, double demand_bps, double limit_bps) {
  wake(m, flow);
  m->flow[flow].demand = demand_bps < 0 ? ENDLESS : demand_bps / 8e9;
  m->flow[flow].limit = limit_bps < 0 ? ENDLESS : limit_bps / 8e9;
}

static void set_to_work(fl_sim *m, int64_t flow) {
  flow_t *f = &m->flow[flow];
  if (f->at >= 0) return;
  if (m->t - f->idle_since > m->s.idle_ns) {
    f->alpha *= pow(1 - m->s.gain, fmin((m->t - f->idle_since) / m->s.timer_ns, 1e6));
    if (f->idle_since < 0) f->alpha = 1; /* its first data */
    f->rate = f->target = f->line;
    f->stage = 0;
  }
  if (m->s.flowlet_ns > 0 && f->ways > 1 && m->t - f->idle_since >= m->s.flowlet_ns) draw_way(m, flow);
  f->at = (int32_t)m->working;
  m->work[m->working++] = (int32_t)flow;
}

int fl_flow_send(fl_sim *m, int64_t flow, double bytes) {
  flow_t *f = &m->flow[flow];
  wake(m, flow);
  f->left = bytes < 0 ? ENDLESS : bytes;
  if (bytes != 0) set_to_work(m, flow);
  return 0;
}

static void *copied(const void *from, size_t size) {
  void *to = malloc(size + 8);
  if (to) memcpy(to, from, size);
  return to;
}

int64_t fl_add_job(fl_sim *m, int64_t phases, const int64_t *phase_start, const int64_t *flow, const double *bytes,
                   double gap_ns, double begin_ns, int32_t members, const int32_t *from, const int32_t *to) {
  if (grow(&m->job, &m->job_room, m->jobs + 1, sizeof *m->job)) return -1;
  int64_t n = phase_start[phases];
  job_t *j = &m->job[m->jobs];
  *j = (job_t){.phases = phases, .phase = -1, .gap = gap_ns, .due = begin_ns, .waiting = 1, .members = members};
  j->phase_start = copied(phase_start, sizeof(int64_t) * (size_t)(phases + 1));
  j->flow = copied(flow, sizeof(int64_t) * (size_t)n);
  j->bytes = copied(bytes, sizeof(double) * (size_t)n);
  int whole = j->phase_start && j->flow && j->bytes;
  if (members) {
    j->from = copied(from, sizeof(int32_t) * (size_t)n);
    j->to = copied(to, sizeof(int32_t) * (size_t)n);
    j->phase_of = calloc((size_t)members, sizeof(int32_t));
    j->open_of = calloc((size_t)members, sizeof(int32_t));
    whole = whole && j->from && j->to && j->phase_of && j->open_of;
  }
  if (!whole) {
    free(j->phase_start);
    free(j->flow);
    free(j->bytes);
    free(j->from);
    free(j->to);
    free(j->phase_of);
    free(j->open_of);
    return -1;
  }
  for (int64_t i = 0; i < n; i++) m->flow[flow[i]].job = (int32_t)m->jobs;
  return m->jobs++;
}

void fl_stop_job(fl_sim *m, int64_t job) {
  job_t *j = &m->job[job];
  j->stopped = 1;
  j->waiting = 0;
  for (int64_t i = 0; i < j->phase_start[j->phases]; i++) fl_flow_send(m, j->flow[i], 0);
}

/* An iteration is over. Whether the next one begins at once. */
static int end_iteration(fl_sim *m, job_t *j) {
  if (grow(&m->iteration, &m->iteration_room, m->iterations + 1, sizeof *m->iteration)) {
    m->failed = 1;
    return 0;
  }
  m->iteration[m->iterations++] =
      (fl_iteration){.job = (int32_t)(j - m->job), .iteration = j->iteration++, .begin = j->begin, .end = m->t};
  j->phase = 0;
  if (j->gap <= 0) return 1;
  j->phase = -1;
  j->waiting = 1;
  j->due = m->t + j->gap;
  return 0;
}

static void begin_entry(fl_sim *m, const job_t *j, int64_t entry) {
  m->flow[j->flow[entry]].entry = (int32_t)entry;
  fl_flow_send(m, j->flow[entry], j->bytes[entry]);
}

static void begin_phase(fl_sim *m, job_t *j) {
  if (++j->phase == j->phases && !end_iteration(m, j)) return;
  if (j->phase == 0) j->begin = m->t;
  j->open = 0;
  for (int64_t i = j->phase_start[j->phase]; i < j->phase_start[j->phase + 1]; i++) {
    begin_entry(m, j, i);
    j->open++;
  }
}

/* Let a member come to a phase, and begin what its other ends wait for as well. */
static void arrive(fl_sim *m, job_t *j, int32_t member, int32_t phase) {
  j->phase_of[member] = phase;
  j->open_of[member] = 0;
  if (phase == j->phases) {
    j->open--;
    return;
  }
  for (int64_t i = j->phase_start[phase]; i < j->phase_start[phase + 1]; i++) {
    if (j->from[i] != member && j->to[i] != member) continue;
    int32_t other = j->from[i] == member ? j->to[i] : j->from[i];
    j->open_of[member]++;
    if (j->phase_of[other] == phase) begin_entry(m, j, i);
  }
}

static void begin_members(fl_sim *m, job_t *j) {
  j->begin = m->t;
  j->open = j->members; /* those that have not done everything */
  for (int32_t k = 0; k < j->members; k++) j->phase_of[k] = -1;
  for (int32_t k = 0; k < j->members; k++) arrive(m, j, k, 0);
}

/* Let members go on that have done all of their phase. */
static void move_on(fl_sim *m, job_t *j) {
  for (int32_t k = 0; k < j->members; k++)
    while (j->phase_of[k] < j->phases && !j->open_of[k]) arrive(m, j, k, j->phase_of[k] + 1);
  if (!j->open && end_iteration(m, j)) begin_members(m, j);
}

/* A link's service of this step, once all that it is offered is known. Returns whether it still has something. */
static __attribute__((noinline)) int serve(fl_sim *m, int32_t at) {
  hot_t *h = &m->hot[at];
  double given = h->given, open = h->open, offered = h->offered + h->orphan + h->fixed;
  if (h->plain && offered <= open && fabs(offered + given - h->last) <= SAME * h->capacity) {
    h->bytes += offered + given;
    if (h->offered > 0) return 1;
    h->last = offered + given;
    settle_link(m, at);
    m->rest[at].since = m->step + 1;
    m->rest[at].packet += m->link[at].load / (2 * (1 - m->link[at].load)) * m->s.packet_bytes;
    return 0;
  }
  link_t *l = &m->link[at];
  rest_t *r = &m->rest[at];
  settle_link(m, at);
  double capacity = h->share < STOPPED ? 0 : h->capacity * h->share, out = offered, kept = 0, dropped = 0;
  l->q0 = l->q1;
  if (offered > open * (1 + 1e-12)) {
    double room = h->tier ? r->buffer : h->share < 1 ? m->s.slow_room_bytes : 0;
    if (!l->up && h->tier) room = 0;
    out = open;
    kept = offered - out;
    if (kept > room) {
      dropped = kept - room;
      kept = room;
    }
    h->pass = out / offered;
    h->keep = kept / offered;
    h->gone = dropped / offered;
    h->back = !h->tier || (m->s.lossless && l->up);
    double over = h->back ? h->orphan * h->gone : 0; /* nobody's bytes have no sender to go back to */
    h->orphan = (h->orphan + h->fixed) * h->keep + over;
    kept += over;
    dropped -= over;
    if (h->orphan < 1e-3) h->orphan = 0;
  } else {
    h->pass = 1;
    h->keep = h->gone = 0;
    h->orphan = 0;
  }
  if (h->fixed > 0 && (kept > 0 || dropped > 0 || h->loss > 0)) m->crowded[m->crowded_n++] = at;
  l->q1 = kept;
  double came = offered - l->q0;
  if (h->back) came = 0;
  l->drop = dropped > 0 && came > 0 ? (float)(dropped < came ? dropped / came : 1) : 0;
  double load = capacity > 0 ? (out + given) / capacity : offered > 0 ? 1 : 0;
  if (load > 1) load = 1;
  l->load = (float)(load < m->s.load_most ? load : m->s.load_most);
  h->unmarked = 1;
  if (h->tier && kept > r->mark_begin) {
    double over = (kept - r->mark_begin) / (r->mark_full - r->mark_begin);
    h->unmarked = over >= 1 ? 0 : 1 - m->s.mark_most * over;
  }
  h->plain = kept == 0 && dropped == 0 && l->q0 == 0 && h->loss == 0;
  h->last = offered + given; /* what the steps to come carry, as long as nothing changes */
  h->bytes += out + (l->up ? given : 0);
  r->depth += 0.5 * (l->q0 + l->q1);
  r->packet += l->load / (2 * (1 - l->load)) * m->s.packet_bytes;
  r->dropped += out * h->loss + (h->back ? 0 : dropped);
  if (kept > r->most) r->most = kept;
  r->since = m->step + 1;
  return h->offered > 0 || !h->plain;
}

/* Offer what a flow carries to its link of a tier. */
static inline void offer(fl_sim *m, way_t *w, int c, double carried) {
  int32_t at = w->path[c];
  if (at < 0) return;
  hot_t *h = &m->hot[at];
  if (!h->listed) list_link(m, at);
  h->offered += w->waiting[c] += carried;
}

static __attribute__((noinline)) void step_flows(fl_sim *m) {
  int64_t n = m->working;
  for (int c = 0; c < FL_TIERS; c++)
    for (int32_t k = 0; k < m->listed_n[c]; k++) m->hot[m->listed[c][k]].offered = 0;
  for (int64_t i = 0; i < n; i++) {
    flow_t *f = &m->flow[m->work[i]];
    double rate = f->rate;
    if (f->demand < rate) rate = f->demand;
    if (f->limit < rate) rate = f->limit;
    double want = rate * m->dt;
    if (want > f->left) want = f->left;
    m->want[i] = m->carry[i] = want;
    m->unmarked[i] = 1;
    m->unsent[i] = m->lost[i] = 0;
    offer(m, &m->way[m->work[i]], m->tier[0], want);
  }
  for (int t = 0; t < m->tiers; t++) {
    int c = m->tier[t], after = t + 1 < m->tiers ? m->tier[t + 1] : -1;
    int32_t *list = m->listed[c], kept = 0;
    for (int32_t k = 0; k < m->listed_n[c]; k++) {
      if (serve(m, list[k])) {
        list[kept++] = list[k];
      } else {
        m->hot[list[k]].listed = 0;
      }
    }
    m->listed_n[c] = kept;
    for (int64_t i = 0; i < n; i++) {
      way_t *w = &m->way[m->work[i]];
      int32_t at = w->path[c];
      if (at >= 0) {
        const hot_t *h = &m->hot[at];
        if (h->plain) {
          w->waiting[c] = 0;
        } else {
          double offered = w->waiting[c], out = offered * h->pass;
          w->waiting[c] = offered * h->keep;
          if (h->gone > 0) *(h->back ? &m->unsent[i] : &m->lost[i]) += offered * h->gone;
          m->lost[i] += out * h->loss;
          m->carry[i] = out * (1 - h->loss);
          m->unmarked[i] *= h->unmarked;
        }
      }
      if (after >= 0) offer(m, w, after, m->carry[i]);
    }
  }
}

static void leave_work(fl_sim *m, int64_t i) {
  m->flow[m->work[i]].at = -1;
  int32_t moved = m->work[--m->working];
  if (i == m->working) return;
  m->work[i] = moved;
  m->flow[moved].at = (int32_t)i;
  m->want[i] = m->want[m->working];
  m->carry[i] = m->carry[m->working];
  m->unmarked[i] = m->unmarked[m->working];
  m->unsent[i] = m->unsent[m->working];
  m->lost[i] = m->lost[m->working];
}

/* Wake the quiet flows that cross a crowded link, and take back what it could not take of them in this step. */
static void wake_crowded(fl_sim *m) {
  for (int32_t k = 0; k < m->crowded_n; k++) m->rest[m->crowded[k]].crowded = 1;
  for (int64_t f = 0; f < m->flows; f++) {
    if (!m->flow[f].quiet) continue; /* of the step's beginning */
    for (int c = 0; c < FL_TIERS; c++) {
      int32_t at = m->way[f].path[c];
      if (at < 0 || !m->rest[at].crowded) continue;
      double gone = m->flow[f].fixed * m->hot[at].gone;
      wake(m, f);
      m->flow[f].sent -= gone;
      if (!m->hot[at].back) m->flow[f].again += gone;
    }
  }
  for (int32_t k = 0; k < m->crowded_n; k++) m->rest[m->crowded[k]].crowded = 0;
  m->crowded_n = 0;
}

/* What the network said to each flow, and what is finished. */
static __attribute__((noinline)) void end_step(fl_sim *m) {
  double least = m->s.least_share;
  for (int64_t i = 0; i < m->working; i++) {
    int32_t id = m->work[i];
    flow_t *f = &m->flow[id];
    way_t *w = &m->way[id];
    if (!f->reached) m->lost[i] += m->carry[i]; /* a switch on the way has no living port for it */
    double sent = m->want[i] - m->unsent[i], lost = m->lost[i], waiting = 0;
    int32_t first = w->path[0], last = w->path[5];
    for (int c = 0; c < FL_TIERS; c++) waiting += w->waiting[c];
    int busy = f->left > 0;
    if (busy) {
      f->busy++;
      if (f->demand < f->rate || f->limit < f->rate || (m->slowed && first >= 0 && m->link[first].share < 1)) f->own++;
      if (m->slowed && last >= 0 && m->link[last].share < 1 && (w->waiting[5] > 0 || m->unmarked[i] < 1)) f->receiver++;
    }
    if (f->left < ENDLESS) f->left -= sent - lost;
    f->sent += sent - lost;
    f->again += lost;
    double marked = 0;
    if (lost > m->s.packet_bytes * 1e-3 || m->unmarked[i] <= 0) {
      marked = 1;
    } else if (m->unmarked[i] < 1 && sent > 0) {
      marked = 1 - exp(sent / m->s.packet_bytes * log(m->unmarked[i]));
    }
    if (marked > 0 && unit(&m->marks) < marked) {
      f->alpha += m->s.gain * (1 - f->alpha);
      f->target = f->rate;
      f->rate *= 1 - f->alpha / 2;
      if (f->rate < least * f->line) f->rate = least * f->line;
      f->stage = 0;
    } else if (f->rate < f->line || f->stage < FAST) {
      f->alpha *= m->fade;
      f->stage += m->periods;
      if (f->stage > FAST) {
        f->target += m->s.increase_share * (f->stage > HYPER ? 10 : 1) * f->line * m->periods;
        if (f->target > f->line) f->target = f->line;
      }
      f->rate = f->target - (f->target - f->rate) * m->half;
      if (f->rate > f->line * (1 - 1e-6)) f->rate = f->line;
    }
    if (f->left < 0.5 && waiting < 1) {
      if (f->left > -1e200) f->left = 0;
      f->idle_since = m->t;
      f->calm = 0;
      for (int c = 0; c < FL_TIERS; c++) w->waiting[c] = 0;
      leave_work(m, i--); /* the last one takes its place, and its turn */
      if (f->job >= 0 && !m->job[f->job].stopped) {
        job_t *j = &m->job[f->job];
        if (j->members) {
          j->open_of[j->from[f->entry]]--;
          j->open_of[j->to[f->entry]]--;
        } else {
          j->open--;
        }
      }
      continue;
    }
    if (m->s.flowlet_ns > 0 && f->ways > 1 && sent * m->s.flowlet_ns < m->s.packet_bytes * m->dt) draw_way(m, id);
    int calm = f->left > ENDLESS / 2 && waiting == 0 && lost == 0 && m->unsent[i] == 0 && m->unmarked[i] >= 1 &&
               (f->rate >= f->line || f->demand < f->rate || f->limit < f->rate);
    f->calm = calm ? f->calm + 1 : 0;
    if (f->calm > CALM) {
      f->quiet = 1;
      f->fixed = m->want[i];
      f->since = m->step;
      fix(m, id, f->fixed);
      leave_work(m, i--);
    }
  }
  if (m->crowded_n) wake_crowded(m);
  for (int64_t k = 0; k < m->jobs; k++) {
    job_t *j = &m->job[k];
    if (j->stopped) continue;
    if (j->waiting) {
      if (m->t < j->due) continue;
      j->waiting = 0;
      if (j->members) {
        begin_members(m, j);
      } else {
        begin_phase(m, j);
      }
    } else if (j->members) {
      move_on(m, j);
    } else if (j->open == 0) {
      begin_phase(m, j);
    }
  }
}

/* --- probes --- */

static void put(fl_sim *m, int32_t node, double t) {
  int64_t step = (int64_t)(t / m->dt);
  if (step <= m->step) step = m->step + 1; /* this step's bucket is being emptied */
  if (step > m->step + DEEP - 1) step = m->step + DEEP - 1;
  int64_t at = step & (DEEP - 1);
  m->next[node] = m->bucket[at];
  m->bucket[at] = node;
  m->pair[node >> 2].nodes++;
}

/* Have a NIC tell what it saw: at once, or with the losses that merely go on. */
static void evidence_due(fl_sim *m, int32_t nic, int at_once) {
  if (!m->nic[nic].due) m->due[m->due_n++] = nic;
  if (m->nic[nic].due < 1 + at_once) m->nic[nic].due = (uint8_t)(1 + at_once);
}

static void tell(fl_sim *m, int32_t nic) {
  nic_t *n = &m->nic[nic];
  int64_t begin = m->rows;
  if (grow(&m->row, &m->row_room, m->rows + n->groups, sizeof *m->row) ||
      grow(&m->event, &m->event_room, m->events + 1, sizeof *m->event)) {
    m->failed = 1;
    return;
  }
  for (int64_t g = n->group; g < n->group + n->groups; g++) {
    group_t *p = &m->group[g];
    if (!p->lost && !p->answered) continue;
    double timeout = 4 * p->longest;
    if (timeout < m->s.early_least_ns) timeout = m->s.early_least_ns;
    m->row[m->rows++] = (fl_row){(int32_t)g, p->lost, p->answered, p->late, p->loss_streak, p->first_lost, p->last_lost,
                                 p->answered_sent, p->arrived, timeout};
    p->lost = p->answered = p->late = 0;
  }
  m->event[m->events++] =
      (fl_event){nic, begin, m->rows - begin, m->end, m->end - (n->told_at > 0 ? n->told_at : 0)};
  n->told_at = m->end;
  m->beat_at[n - m->nic] = m->end + m->s.evidence_beat_ns;
}

static void keep_sample(fl_sim *m, const pair_t *pair, int k, int paired) {
  const probe_t *p = &pair->probe[k];
  nic_t *n = &m->nic[m->group[pair->group].nic];
  if (grow(&n->samples, &n->room, n->count + 1, sizeof *n->samples)) {
    m->failed = 1;
    return;
  }
  n->samples[n->count++] =
      (sample_t){(int32_t)(pair->group - n->group), paired, p->t1, p->t2 - p->t1, p->t3 - p->t2, p->t4 - p->t3};
}

static void resolved(fl_sim *m, int32_t at, int k, uint8_t state) {
  pair_t *pair = &m->pair[at];
  pair->probe[k].state = state;
  m->in_flight--;
  if (state == LOST) {
    m->group[pair->group].lost_b++;
    m->lost_n++;
  } else {
    m->answered++;
  }
  if (--pair->open) return;
  int both = pair->size == 2 && pair->probe[0].state == DONE && pair->probe[1].state == DONE;
  for (int i = 0; i < pair->size; i++)
    if (pair->probe[i].state == DONE) keep_sample(m, pair, i, both);
}

static void free_if_done(fl_sim *m, int32_t at) {
  pair_t *pair = &m->pair[at];
  if (!pair->open && !pair->nodes) m->free[m->free_n++] = at;
}

/* Time that a crossing at `t` takes, and what of it is waiting; -1: lost there; -2: the link stands still. */
static double cross(fl_sim *m, int32_t at, double t, double *waited) {
  link_t *l = &m->link[at];
  if (!l->up) return -1;
  if (l->loss > 0 && unit(&m->chance) < l->loss) return -1;
  if (l->share < STOPPED) return -2;
  double ns = l->ns_per_byte / l->share, wait = 0;
  if (l->q1 > 0 || l->q0 > 0) {
    if (l->drop > 0 && unit(&m->chance) < l->drop) return -1;
    wait = (l->q0 + (l->q1 - l->q0) * (t - m->t) / m->dt) * ns;
  }
  if (l->load > 0) wait += packet_wait(&m->chance, l, t, l->load, m->s.packet_bytes * ns);
  *waited = wait;
  return wait + m->s.probe_bytes * l->ns_per_byte + l->delay_ns;
}

static void answered(fl_sim *m, group_t *g, const probe_t *p) {
  double trip = p->t - p->sent;
  g->longest = trip > g->longest ? trip : g->longest * 0.999 + trip * 0.001;
  g->answered++;
  g->late += p->told;
  if (p->sent > g->answered_sent) g->answered_sent = p->sent;
  if (p->t > g->arrived) g->arrived = p->t;
  if ((p->told || (g->loss_streak >= BACK && p->sent > g->last_lost)) && m->nic[g->nic].dead != FL_SILENT)
    evidence_due(m, g->nic, 1);
  if (p->sent > g->last_lost) {
    g->loss_streak = 0;
    g->first_lost = -1;
  } else if (g->loss_streak && p->sent > g->first_lost) { /* a slow answer: at least the newest loss is younger */
    g->loss_streak = 1;
    g->first_lost = g->last_lost;
  }
}

/* Carry a probe on until its answer is back, it is lost, or the step ends. */
static void fly(fl_sim *m, int32_t at, int k) {
  pair_t *pair = &m->pair[at];
  probe_t *p = &pair->probe[k];
  group_t *g = &m->group[pair->group];
  if (p->state != FLYING) return;
  if (p->leg == 0 && p->hop == 0) {
    if (m->nic[g->nic].dead) {
      p->state = GONE;
      return;
    }
    p->t1 = stamp(m, g->nic, p->t); /* for where there is no link to leave by */
  }
  for (;;) {
    while (p->hop < g->hops[p->leg]) {
      if (p->t >= m->end) {
        put(m, at * 4 + k, p->t);
        return;
      }
      double waited = 0, took = cross(m, m->leg_link[p->leg][g->start[p->leg] + p->hop], p->t, &waited);
      if (took == -2) {
        p->t += 10 * m->dt;
        continue;
      }
      if (took < 0) {
        p->state = GONE;
        return;
      }
      if (p->hop == 0) /* a port stamps what leaves it, not what waits for it */
        *(p->leg ? &p->t3 : &p->t1) = stamp(m, p->leg ? g->peer : g->nic, p->t + waited);
      p->t += took;
      p->hop++;
    }
    int32_t here = p->leg ? g->nic : g->peer;
    if (!g->reached[p->leg] || m->nic[here].dead) {
      p->state = GONE;
      return;
    }
    if (p->leg) break;
    p->t2 = stamp(m, g->peer, p->t);
    p->t += m->s.turn_least_ns + (m->s.turn_most_ns - m->s.turn_least_ns) * unit(&m->chance);
    p->t3 = stamp(m, g->peer, p->t);
    p->leg = 1;
    p->hop = 0;
  }
  if (p->t >= m->end) { /* its answer comes in a later step: what is known must be so now */
    put(m, at * 4 + k, p->t);
    return;
  }
  p->t4 = stamp(m, g->nic, p->t);
  answered(m, g, p);
  resolved(m, at, k, DONE);
}

static void time_out(fl_sim *m, int32_t at, int k) {
  pair_t *pair = &m->pair[at];
  probe_t *p = &pair->probe[k];
  group_t *g = &m->group[pair->group];
  if (p->state == DONE || p->state == LOST) return;
  if (!p->told) {
    p->told = 1;
    g->lost++;
    if (p->sent > g->last_lost) g->last_lost = p->sent;
    if (p->sent > g->answered_sent) {
      g->loss_streak++;
      if (g->first_lost < 0 || p->sent < g->first_lost) g->first_lost = p->sent;
    }
    if (m->nic[g->nic].dead != FL_SILENT) evidence_due(m, g->nic, g->loss_streak <= GROWS);
  }
  if (p->state == FLYING && m->end < p->sent + m->s.timeout_ns) {
    p->due = p->sent + m->s.timeout_ns;
    put(m, at * 4 + 2 + k, p->due);
    return;
  }
  resolved(m, at, k, LOST);
}

static void send_pair(fl_sim *m, nic_t *n) {
  if (!m->free_n) {
    int64_t room = m->pairs, more;
    more = room;
    if (grow(&m->pair, &more, room + 1, sizeof *m->pair)) goto no_memory;
    int64_t whole = more, same = room * 4;
    int32_t *fresh = realloc(m->next, sizeof *fresh * (size_t)whole * 4);
    if (!fresh) goto no_memory;
    m->next = fresh;
    same = 0;
    if (grow(&m->free, &same, whole, sizeof *m->free)) goto no_memory;
    for (int64_t i = whole - 1; i >= room; i--) m->free[m->free_n++] = (int32_t)i;
    m->pairs = whole;
  }
  int32_t at = m->free[--m->free_n];
  pair_t *pair = &m->pair[at];
  int size = m->s.spacing_ns > 0 ? 2 : 1;
  int64_t way = -1;
  if (n->turns) way = n->turn_way[(n->turn % n->turns + n->turns) % n->turns];
  if (way < 0 || way >= n->groups) way = below(&m->chance, (uint32_t)n->groups);
  *pair = (pair_t){.group = (int32_t)(n->group + way), .size = (uint8_t)size, .open = (uint8_t)size};
  double timeout = 4 * m->group[pair->group].longest;
  if (timeout < m->s.early_least_ns) timeout = m->s.early_least_ns;
  if (timeout > m->s.timeout_ns) timeout = m->s.timeout_ns;
  for (int k = 0; k < size; k++) {
    probe_t *p = &pair->probe[k];
    p->t = p->sent = m->next_send[n - m->nic] + (double)(k * m->s.spacing_ns);
    p->due = p->sent + timeout;
    put(m, at * 4 + 2 + k, p->due);
    m->sent++;
    m->in_flight++;
  }
  for (int k = 0; k < size; k++) {
    if (pair->probe[k].t < m->end) {
      fly(m, at, k);
    } else {
      put(m, at * 4 + k, pair->probe[k].t);
    }
  }
  return;
no_memory:
  m->failed = 1;
}

static __attribute__((noinline)) void step_probes(fl_sim *m) {
  int64_t slot = m->step & (DEEP - 1);
  int32_t node = m->bucket[slot];
  m->bucket[slot] = -1;
  while (node >= 0) {
    int32_t after = m->next[node], at = node >> 2, k = node & 1;
    pair_t *pair = &m->pair[at];
    pair->nodes--;
    double t = node & 2 ? pair->probe[k].due : pair->probe[k].t;
    if (t >= m->end) {
      put(m, node, t);
    } else {
      node & 2 ? time_out(m, at, k) : fly(m, at, k);
      free_if_done(m, at);
    }
    node = after;
  }
  for (int32_t i = 0; i < m->nics; i++) {
    if (m->next_send[i] >= m->end && m->beat_at[i] >= m->end) continue;
    nic_t *n = &m->nic[i];
    if (m->beat_at[i] < m->end) {
      m->beat_at[i] = m->end + m->s.evidence_beat_ns;
      if (n->dead != FL_SILENT && n->groups) evidence_due(m, i, 1);
    }
    while (m->next_send[i] < m->end) {
      send_pair(m, n);
      if (n->turns) {
        n->turn++;
        m->next_send[i] = turn_time(m, n);
      } else {
        m->next_send[i] -= log(unit(&m->chance)) * n->gap_ns;
      }
    }
  }
  int32_t left = 0;
  for (int32_t i = 0; i < m->due_n; i++) {
    int32_t nic = m->due[i];
    double gap = m->nic[nic].due > 1 ? m->s.evidence_gap_ns : m->s.evidence_slow_ns;
    if (m->end - m->nic[nic].told_at < gap) {
      m->due[left++] = nic;
      continue;
    }
    m->nic[nic].due = 0;
    tell(m, nic);
  }
  m->due_n = left;
}

int fl_advance(fl_sim *m, double until_ns) {
  while (m->end <= until_ns + 0.5 && !m->failed) {
    step_flows(m);
    step_probes(m);
    m->step++;
    m->t = (double)m->step * m->dt;
    end_step(m);
    m->end = (double)(m->step + 1) * m->dt;
  }
  return m->failed ? -1 : 0;
}

double fl_now(const fl_sim *m) { return m->t; }
int64_t fl_steps(const fl_sim *m) { return m->step; }
int64_t fl_flows(const fl_sim *m) { return m->flows; }
int64_t fl_working(const fl_sim *m) { return m->working; }

int64_t fl_listed(const fl_sim *m) {
  int64_t sum = 0;
  for (int c = 0; c < FL_TIERS; c++) sum += m->listed_n[c];
  return sum;
}

/* --- what comes out --- */

const uint8_t *fl_flush(fl_sim *m, int32_t nic, int64_t run, int64_t batch, int64_t *size, int64_t *samples) {
  nic_t *n = &m->nic[nic];
  int64_t keys = n->groups * 2, room = 128 + n->name_size;
  for (int64_t g = n->group; g < n->group + n->groups; g++) room += 256 + 2 * m->nic[m->group[g].peer].name_size;
  room += 41 * n->count;
  if (grow(&m->out, &m->out_room, room, 1) || grow(&m->order, &m->order_room, n->count + keys + 1, sizeof *m->order))
    return NULL;
  int32_t *start = m->order + n->count, *order = m->order;
  memset(start, 0, sizeof *start * (size_t)(keys + 1));
  for (int64_t i = 0; i < n->count; i++) start[n->samples[i].group * 2 + !n->samples[i].paired + 1]++;
  for (int64_t k = 0; k < keys; k++) start[k + 1] += start[k];
  int64_t blocks = 0;
  for (int64_t k = 0; k < keys; k++) {
    int some = start[k + 1] > start[k];
    int lost_alone = (k & 1) && m->group[n->group + k / 2].lost_b && start[k + 1] == start[k - 1];
    blocks += some || lost_alone;
  }
  for (int64_t i = 0; i < n->count; i++) order[start[n->samples[i].group * 2 + !n->samples[i].paired]++] = (int32_t)i;
  /* start[k] is now where key k ends */
  uint8_t *p = ft_put_long(m->out, n->name_size);
  memcpy(p, n->name, (size_t)n->name_size);
  p = ft_put_long(p + n->name_size, run);
  p = ft_put_long(p, batch);
  p = ft_put_long(p, fl_read_clock(m, nic, m->t));
  p = ft_put_long(p, m->s.start_ns + llrint(m->t));
  if (blocks) p = ft_put_long(p, blocks);
  for (int64_t k = 0; k < keys; k++) {
    group_t *g = &m->group[n->group + k / 2];
    int64_t from = k ? start[k - 1] : 0, to = start[k];
    if (from == to && !((k & 1) && g->lost_b)) continue;
    const nic_t *peer = &m->nic[g->peer];
    p = ft_put_long(p, peer->name_size);
    memcpy(p, peer->name, (size_t)peer->name_size);
    p = ft_put_long(p + peer->name_size, g->path);
    p = ft_put_long(p, k & 1 ? 0 : m->s.spacing_ns);
    for (int column = 0; column < 4; column++) {
      int64_t last = 0;
      if (to > from) p = ft_put_long(p, to - from);
      for (int64_t i = from; i < to; i++) {
        const sample_t *s = &n->samples[order[i]];
        const int64_t values[4] = {s->sent - last, s->forward, s->turn, s->back};
        p = ft_put_long(p, values[column]);
        last = s->sent;
      }
      p = ft_put_long(p, 0);
    }
    p = ft_put_long(p, g->lost_b);
    p = ft_put_long(p, 0);
    g->lost_b = 0; /* told once, with the group's first row */
  }
  p = ft_put_long(p, 0);
  *size = p - m->out;
  *samples = n->count;
  n->count = 0;
  return m->out;
}

int64_t fl_events(const fl_sim *m, const fl_event **events, const fl_row **rows) {
  *events = m->event;
  *rows = m->row;
  return m->events;
}

const uint8_t *fl_event_body(fl_sim *m, int64_t event, const uint8_t *shard, int64_t shard_size, int64_t run,
                             int64_t number, int kind, int64_t *size) {
  const fl_event *e = &m->event[event];
  const nic_t *n = &m->nic[e->nic];
  int64_t room = 256 + n->name_size + shard_size;
  for (int64_t k = e->row; k < e->row + e->rows; k++) room += 128 + m->nic[m->group[m->row[k].group].peer].name_size;
  if (grow(&m->out, &m->out_room, room, 1)) return NULL;
  uint8_t *p = ft_put_long(m->out, n->name_size);
  memcpy(p, n->name, (size_t)n->name_size);
  p = ft_put_long(p + n->name_size, shard_size);
  memcpy(p, shard, (size_t)shard_size);
  p = ft_put_long(p + shard_size, run);
  p = ft_put_long(p, number);
  p = ft_put_long(p, kind);
  p = ft_put_long(p, fl_read_clock(m, e->nic, e->at));
  p = ft_put_long(p, m->s.start_ns + llrint(e->at));
  p = ft_put_long(p, llrint(e->interval_ns));
  p = ft_put_long(p, 0); /* no trouble of its own */
  p = ft_put_long(p, 0); /* never late */
  if (e->rows) p = ft_put_long(p, e->rows);
  for (int64_t k = e->row; k < e->row + e->rows; k++) {
    const fl_row *row = &m->row[k];
    const group_t *g = &m->group[row->group];
    const nic_t *peer = &m->nic[g->peer];
    const double times[4] = {row->first_lost, row->last_lost, row->answered_sent, row->arrived};
    p = ft_put_long(p, peer->name_size);
    memcpy(p, peer->name, (size_t)peer->name_size);
    p = ft_put_long(p + peer->name_size, g->path);
    p = ft_put_long(p, row->lost);
    p = ft_put_long(p, row->answered);
    p = ft_put_long(p, row->late);
    p = ft_put_long(p, row->late); /* held: whoever is late here, the network held it up */
    p = ft_put_long(p, row->loss_streak);
    for (int i = 0; i < 4; i++) p = ft_put_long(p, times[i] < 0 ? -1 : llrint(e->at - times[i]));
    p = ft_put_long(p, llrint(row->timeout_ns));
  }
  for (int i = 0; i < 5; i++) p = ft_put_long(p, 0); /* paths end; no carrier, speed, counters, verbs */
  *size = p - m->out;
  return m->out;
}

void fl_clear_events(fl_sim *m) { m->events = m->rows = 0; }

int64_t fl_iterations(const fl_sim *m, const fl_iteration **found) {
  *found = m->iteration;
  return m->iterations;
}

void fl_clear_iterations(fl_sim *m) { m->iterations = 0; }

void fl_link_sums(fl_sim *m, double *depth, double *packet, double *busy, double *bytes, double *dropped,
                  double *now) {
  for (int32_t i = 0; i < m->links; i++) {
    const rest_t *r = &m->rest[i];
    settle_link(m, i);
    if (depth) depth[i] = r->depth;
    if (packet) packet[i] = r->packet;
    if (busy) busy[i] = m->hot[i].bytes / m->hot[i].capacity;
    if (bytes) bytes[i] = m->hot[i].bytes;
    if (dropped) dropped[i] = r->dropped;
    if (now) now[i] = m->link[i].q1;
  }
}

void fl_link_most(fl_sim *m, double *most) {
  for (int32_t i = 0; i < m->links; i++) {
    most[i] = m->rest[i].most;
    m->rest[i].most = m->link[i].q1;
  }
}

void fl_flow_sums_of(fl_sim *m, int64_t flow, double *seven, uint8_t *active) {
  flow_t *f = &m->flow[flow];
  settle_flow(m, f);
  const double found[7] = {f->sent, f->again, f->busy, f->own, f->receiver, f->rate * 8e9,
                           f->left >= ENDLESS / 2 ? -1 : f->left};
  memcpy(seven, found, sizeof found);
  *active = f->at >= 0 || f->quiet;
}

void fl_flow_sums(fl_sim *m, double *sevens, uint8_t *active) {
  for (int64_t i = 0; i < m->flows; i++) fl_flow_sums_of(m, i, sevens + 7 * i, active + i);
}

double fl_flow_backlog(const fl_sim *m, int64_t flow) {
  double sum = 0;
  for (int c = 0; c < FL_TIERS; c++) sum += m->way[flow].waiting[c];
  return sum;
}

void fl_totals(const fl_sim *m, int64_t *sent, int64_t *answered_n, int64_t *lost, int64_t *in_flight) {
  *sent = m->sent;
  *answered_n = m->answered;
  *lost = m->lost_n;
  *in_flight = m->in_flight;
}
