/* The fluid simulation of a fleet, in steps of `step_ns`. Probes cross it one by one, at their own times.
 *
 * Flows. In a step a flow offers the bytes that its rate, its limits and its data allow. Links are served
 * tier by tier, in the order of a path. Bytes that a link cannot pass on in the step wait in its queue.
 * The queue keeps each flow's part, and the parts leave in proportion (FIFO at the grain of a step). In a
 * lossless fabric, bytes beyond the buffer return to their sender at once: a pause that stops exactly the
 * right flows, without head-of-line blocking. Otherwise they are dropped and sent again. At the first link
 * the NIC divides the port among its flows: bytes that do not fit stay in memory. Only a slowed sender
 * fills its own queue.
 *
 * Flowlets. If `flowlet_ns` is set, switches spread flowlets instead of flows, as LetFlow does (Vanini et
 * al., NSDI 2017). A packet that follows its predecessor after such a gap takes a route drawn evenly, and
 * the packets close behind it follow. The gap before a flow's first packet is the time since its last
 * data. While a flow sends, the packets of a step count as evenly spaced, so a gap is the packet time at
 * the rate of that step. Therefore a flow changes its route in the midst of its data only if it is slower
 * than a packet per `flowlet_ns`. RDMA at line rate has gaps only between its messages. Bytes on the old
 * route still arrive.
 *
 * Quiet flows send the same in each step and meet no queue. They cost nothing until a link on their route
 * overflows or loses packets. Their sums, and those of links with quiet flows only, are completed later.
 *
 * Rate control follows DCQCN (Zhu et al., SIGCOMM 2015). A link marks packets with a probability that
 * rises from 0 at Kmin to Pmax at Kmax of its queue, and is 1 above. A flow with a marked packet in a step
 * (probability 1 - (1 - p)^packets) cuts its rate: alpha = (1 - g) alpha + g, target = rate, rate *= 1 -
 * alpha / 2. Otherwise, per timer period: alpha *= 1 - g, rate = (rate + target) / 2. From the sixth
 * period on the target grows by a constant, from the sixteenth on by ten times as much. The byte counter,
 * PFC and all effects shorter than a step are left out. A loss counts as a mark.
 *
 * Packet-scale queue. Below saturation a real queue still varies, because packets arrive together by
 * chance: at load r it is an M/D/1 queue. By Pollaczek and Khinchine (Benes 1963) its stationary work is
 * the sum of N terms. N is geometric, P(N = n) = (1 - r) r^n, and each term is uniform in (0, S), where S
 * is one packet's time: the residuals of a constant service. So mean r S / (2 (1 - r)) and second moment 2
 * mean^2 + r S^2 / (3 (1 - r)) are exact, as is the whole law. Two probes that cross d apart find the same
 * work with probability exp(-d / tau), and otherwise a new draw. This preserves the law and makes the
 * autocorrelation exp(-d / tau). tau is the integral correlation time of the process at both ends: 3 S / 8
 * for small r (one packet's triangle), and r S / (1 - r)^2 in heavy traffic (reflected Brownian motion of
 * drift 1 - r and variance r S: Abate and Whitt 1987). Above `max_load` the law stays constant, because
 * the fluid queue models the standing queue.
 *
 * Probes. Requests leave each NIC at Poisson times, as coded pairs, to one of its groups (peer and path)
 * drawn evenly. Each hop adds the fluid queue (linear within a step), the packet-scale queue, the
 * serialisation of the probe and the fixed delay of the link. Events beyond the present step wait in a
 * calendar. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../core/decode.h"
#include "fluid_state.h"

/* --- creation and destruction --- */

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
    rng_seed(&m->flowlets, ~settings->seed);
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
    for (int i = 0; i < CALENDAR_STEPS; i++) m->bucket[i] = -1;
    for (int32_t i = 0; i < links; i++) {
        double buffer = (double)buffer_bytes[i];
        m->hot[i] = (hot_t){.capacity = (double)rate_bps[i] / 8e9 * m->dt,
                            .share = 1,
                            .pass = 1,
                            .unmarked = 1,
                            .plain = 1,
                            .tier = tier_of[kind[i]]};
        m->hot[i].open = m->hot[i].capacity;
        m->link[i] = (link_t){.ns_per_byte = 8e9 / (double)rate_bps[i],
                              .delay_ns = (double)delay_ns[i],
                              .waited_at = -1e18,
                              .share = 1,
                              .up = 1};
        m->rest[i] = (rest_t){.buffer = buffer,
                              .mark_begin = settings->mark_begin * buffer,
                              .mark_full = settings->mark_full * buffer};
    }
    for (int32_t n = 0; n < nics; n++) {
        ft_clock_init(&m->nic[n].clock, 0, 0, 0, 0, 0, 0, 0);
        m->next_send[n] = INFINITY;
        m->nic[n].reported_at = -1e18;
        m->beat_at[n] =
            (double)(n % 97 + 1) / 97 * settings->max_report_gap_ns; /* spread over the interval */
        fl_set_nic(m, n, 0, settings->rate_pps);
    }
    return m;
}

void fl_free(fl_sim *m) {
    if (!m) return;
    for (int32_t n = 0; m->nic && n < m->nics; n++) {
        free(m->nic[n].samples);
        free(m->nic[n].name);
        free(m->nic[n].slot_group);
    }
    for (int64_t j = 0; j < m->jobs; j++) {
        free(m->job[j].phase_start);
        free(m->job[j].flow);
        free(m->job[j].bytes);
        free(m->job[j].from);
        free(m->job[j].to);
        free(m->job[j].phase_of);
        free(m->job[j].open_of);
        free(m->job[j].times);
    }
    for (int64_t f = 0; f < m->flows; f++) free(m->flow[f].route);
    for (int c = 0; c < FL_TIERS; c++) free(m->listed[c]);
    void *all[] = {m->hot,      m->link,      m->rest,   m->nic,         m->next_send,   m->beat_at,
                   m->due,      m->crowded,   m->group,  m->leg_link[0], m->leg_link[1], m->pair,
                   m->next,     m->free,      m->flow,   m->route,       m->work,        m->carry,
                   m->unmarked, m->want,      m->unsent, m->lost,        m->job,         m->event,
                   m->row,      m->iteration, m->out,    m->order,       m->times,       m};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
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
int fl_advance(fl_sim *m, double until_ns) {
    while (m->end <= until_ns + 0.5 && !m->failed) {
        fl_step_flows(m);
        fl_step_probes(m);
        m->step++;
        m->t = (double)m->step * m->dt;
        fl_end_step(m);
        m->end = (double)(m->step + 1) * m->dt;
    }
    return m->failed ? -1 : 0;
}

double fl_now(const fl_sim *m) {
    return m->t;
}
int64_t fl_steps(const fl_sim *m) {
    return m->step;
}
int64_t fl_flows(const fl_sim *m) {
    return m->flows;
}
int64_t fl_working(const fl_sim *m) {
    return m->working;
}

int64_t fl_listed(const fl_sim *m) {
    int64_t sum = 0;
    for (int c = 0; c < FL_TIERS; c++) sum += m->listed_n[c];
    return sum;
}
/* --- results --- */

const uint8_t *fl_flush(fl_sim *m, int32_t nic, int64_t run, int64_t batch, int64_t *size, int64_t *samples) {
    nic_t *n = &m->nic[nic];
    int64_t keys = n->groups * 2, capacity = 128 + n->name_size;
    for (int64_t g = n->group; g < n->group + n->groups; g++)
        capacity += 256 + 2 * m->nic[m->group[g].peer].name_size;
    capacity += 41 * n->count;
    if (grow(&m->out, &m->out_capacity, capacity, 1) ||
        grow(&m->order, &m->order_capacity, n->count + keys + 1, sizeof *m->order))
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
    for (int64_t i = 0; i < n->count; i++)
        order[start[n->samples[i].group * 2 + !n->samples[i].paired]++] = (int32_t)i;
    /* start[k] is now the end of key k */
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
                const int64_t values[4] = {s->sent - last, s->forward, s->response, s->back};
                p = ft_put_long(p, values[column]);
                last = s->sent;
            }
            p = ft_put_long(p, 0);
        }
        p = ft_put_long(p, g->lost_b);
        for (int i = 0; i < 5; i++) p = ft_put_long(p, 0); /* no_t3; class 0 and no marks */
        g->lost_b = 0;                                     /* reported once, in the group's first row */
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
    int64_t capacity = 256 + n->name_size + shard_size;
    for (int64_t k = e->row; k < e->row + e->rows; k++)
        capacity += 128 + m->nic[m->group[m->row[k].group].peer].name_size;
    if (grow(&m->out, &m->out_capacity, capacity, 1)) return NULL;
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
    p = ft_put_long(p, 0); /* no failure of the NIC */
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
        p = ft_put_long(
            p, row->late); /* delayed: in the simulation all late answers were delayed by the network */
        p = ft_put_long(p, row->loss_streak);
        for (int i = 0; i < 4; i++) p = ft_put_long(p, times[i] < 0 ? -1 : llrint(e->at - times[i]));
        p = ft_put_long(p, llrint(row->timeout_ns));
        p = ft_put_long(p, 0); /* one traffic class */
    }
    for (int i = 0; i < 5; i++) p = ft_put_long(p, 0); /* end of paths; no carrier, speed, counters, verbs */
    *size = p - m->out;
    return m->out;
}

void fl_clear_events(fl_sim *m) {
    m->events = m->rows = 0;
}

int64_t fl_iterations(const fl_sim *m, const fl_iteration **found) {
    *found = m->iteration;
    return m->iterations;
}

const double *fl_iteration_times(const fl_sim *m) {
    return m->times;
}

void fl_clear_iterations(fl_sim *m) {
    m->iterations = m->times_n = 0;
}

const double *fl_job_times(const fl_sim *m, int64_t job, int64_t *entries, int64_t *iteration,
                           double *begin) {
    const job_t *j = &m->job[job];
    *entries = j->phase_start[j->phases];
    *iteration = j->iteration;
    *begin = j->waiting ? -1 : j->begin;
    return j->times;
}

void fl_link_sums(fl_sim *m, double *depth, double *packet, double *busy, double *bytes, double *dropped,
                  double *now) {
    for (int32_t i = 0; i < m->links; i++) {
        const rest_t *r = &m->rest[i];
        fl_settle_link(m, i);
        if (depth) depth[i] = r->depth;
        if (packet) packet[i] = r->packet;
        if (busy) busy[i] = m->hot[i].bytes / m->hot[i].capacity;
        if (bytes) bytes[i] = m->hot[i].bytes;
        if (dropped) dropped[i] = r->dropped;
        if (now) now[i] = m->link[i].q1;
    }
}

void fl_link_max(fl_sim *m, double *max_depth) {
    for (int32_t i = 0; i < m->links; i++) {
        max_depth[i] = m->rest[i].max_depth;
        m->rest[i].max_depth = m->link[i].q1;
    }
}

void fl_flow_sums_of(fl_sim *m, int64_t flow, double *seven, uint8_t *active) {
    flow_t *f = &m->flow[flow];
    fl_settle_flow(m, f);
    const double found[7] = {f->sent,
                             f->again,
                             f->busy,
                             f->own,
                             f->receiver,
                             f->rate * 8e9,
                             f->left >= NO_LIMIT / 2 ? -1 : f->left};
    memcpy(seven, found, sizeof found);
    *active = f->at >= 0 || f->quiet;
}

void fl_flow_sums(fl_sim *m, double *sevens, uint8_t *active) {
    for (int64_t i = 0; i < m->flows; i++) fl_flow_sums_of(m, i, sevens + 7 * i, active + i);
}

void fl_flow_cuts(const fl_sim *m, int64_t *cuts) {
    for (int64_t i = 0; i < m->flows; i++) cuts[i] = m->flow[i].cuts;
}

double fl_flow_backlog(const fl_sim *m, int64_t flow) {
    double sum = 0;
    for (int c = 0; c < FL_TIERS; c++) sum += m->route[flow].waiting[c];
    return sum;
}

void fl_totals(const fl_sim *m, int64_t *sent, int64_t *answered_n, int64_t *lost, int64_t *in_flight) {
    *sent = m->sent;
    *answered_n = m->answered;
    *lost = m->lost_n;
    *in_flight = m->in_flight;
}
