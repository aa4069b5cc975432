/* Probes of the fluid simulation: groups, schedules, flights, time-outs and evidence. See fluid.c for the model. */
#include <math.h>
#include <string.h>

#include "fluid_state.h"

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
static int64_t stamp(fl_sim *m, int32_t nic, double at) {
    int64_t quantum = (int64_t)m->s.quantum_ns;
    double noise = m->s.noise_ns > 0 ? m->s.noise_ns * normal(m, &m->chance) : 0;
    int64_t whole = (int64_t)at;
    int64_t reading =
        ft_clock_read(&m->nic[nic].clock, m->s.start_ns + whole) + llrint(at - (double)whole + noise);
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
        fresh[g] = (group_t){.nic = nic[g],
                             .peer = peer[g],
                             .path = path[g],
                             .first_lost = -1,
                             .last_lost = -1,
                             .answered_sent = -1,
                             .arrived = -1};
    }
    for (int32_t n = 0; n < m->nics; n++) fl_set_nic(m, n, m->nic[n].dead, m->nic[n].rate_pps);
    return 0;
}

int fl_set_legs(fl_sim *m, const int64_t *start, const int32_t *link, const uint8_t *reached,
                const int64_t *back_start, const int32_t *back_link, const uint8_t *back_reached) {
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
    if (gap_ns != n->gap_ns) n->slots = 0; /* a NIC that changes its rate leaves its schedule */
    if (gap_ns != n->gap_ns || m->next_send[n - m->nic] == INFINITY)
        m->next_send[n - m->nic] = m->t - log(unit(&m->chance)) * gap_ns;
    n->gap_ns = gap_ns;
    n->rate_pps = rate_pps;
    if (!n->groups || dead == FL_SILENT || !(gap_ns < INFINITY)) m->next_send[n - m->nic] = INFINITY;
}

/* The time of the NIC's next probe: uniform in the first half of its slot. */
static double slot_time(fl_sim *m, const nic_t *n) {
    return n->slots_at + ((double)n->slot + 0.5 * unit(&m->chance)) * n->slot_ns;
}

int fl_set_schedule(fl_sim *m, int32_t nic, double at_ns, double slot_ns, int64_t slots,
                    const int32_t *route) {
    nic_t *n = &m->nic[nic];
    int32_t *fresh = malloc(sizeof *fresh * (size_t)(slots + 1));
    if (!fresh) return -1;
    memcpy(fresh, route, sizeof *fresh * (size_t)slots);
    free(n->slot_group);
    n->slot_group = fresh;
    n->slots = slots;
    n->slots_at = at_ns;
    n->slot_ns = slot_ns;
    if (!slots || m->next_send[nic] == INFINITY) return 0;
    n->slot = (int64_t)ceil((m->t - at_ns) / slot_ns);
    m->next_send[nic] = slot_time(m, n);
    return 0;
}
/* --- probes --- */

static void put(fl_sim *m, int32_t node, double t) {
    int64_t step = (int64_t)(t / m->dt);
    if (step <= m->step) step = m->step + 1; /* this step's bucket is being emptied */
    if (step > m->step + CALENDAR_STEPS - 1) step = m->step + CALENDAR_STEPS - 1;
    int64_t at = step & (CALENDAR_STEPS - 1);
    m->next[node] = m->bucket[at];
    m->bucket[at] = node;
    m->pair[node >> 2].nodes++;
}

/* Schedule an evidence report of a NIC: at once, or later for losses that merely continue. */
static void schedule_report(fl_sim *m, int32_t nic, int at_once) {
    if (!m->nic[nic].due) m->due[m->due_n++] = nic;
    if (m->nic[nic].due < 1 + at_once) m->nic[nic].due = (uint8_t)(1 + at_once);
}

static void report_evidence(fl_sim *m, int32_t nic) {
    nic_t *n = &m->nic[nic];
    int64_t begin = m->rows;
    if (grow(&m->row, &m->row_capacity, m->rows + n->groups, sizeof *m->row) ||
        grow(&m->event, &m->event_capacity, m->events + 1, sizeof *m->event)) {
        m->failed = 1;
        return;
    }
    for (int64_t g = n->group; g < n->group + n->groups; g++) {
        group_t *p = &m->group[g];
        if (!p->lost && !p->answered) continue;
        double timeout = 4 * p->longest;
        if (timeout < m->s.min_early_timeout_ns) timeout = m->s.min_early_timeout_ns;
        m->row[m->rows++] =
            (fl_row){(int32_t)g,    p->lost,      p->answered,      p->late,    p->loss_streak,
                     p->first_lost, p->last_lost, p->answered_sent, p->arrived, timeout};
        p->lost = p->answered = p->late = 0;
    }
    m->event[m->events++] =
        (fl_event){nic, begin, m->rows - begin, m->end, m->end - (n->reported_at > 0 ? n->reported_at : 0)};
    n->reported_at = m->end;
    m->beat_at[n - m->nic] = m->end + m->s.max_report_gap_ns;
}

static void keep_sample(fl_sim *m, const pair_t *pair, int k, int paired) {
    const probe_t *p = &pair->probe[k];
    nic_t *n = &m->nic[m->group[pair->group].nic];
    if (grow(&n->samples, &n->capacity, n->count + 1, sizeof *n->samples)) {
        m->failed = 1;
        return;
    }
    n->samples[n->count++] = (sample_t){
        (int32_t)(pair->group - n->group), paired, p->t1, p->t2 - p->t1, p->t3 - p->t2, p->t4 - p->t3};
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

/* Return the time that a crossing at `t` takes, and its queueing part; -1: lost; -2: the link is stopped. */
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
    if (l->load > 0) wait += fl_packet_wait(&m->chance, l, t, l->load, m->s.packet_bytes * ns);
    *waited = wait;
    return wait + m->s.probe_bytes * l->ns_per_byte + l->delay_ns;
}

static void answered(fl_sim *m, group_t *g, const probe_t *p) {
    double trip = p->t - p->sent;
    g->longest = trip > g->longest ? trip : g->longest * 0.999 + trip * 0.001;
    g->answered++;
    g->late += p->declared_lost;
    if (p->sent > g->answered_sent) g->answered_sent = p->sent;
    if (p->t > g->arrived) g->arrived = p->t;
    if ((p->declared_lost || (g->loss_streak >= RECOVERY_LOSSES && p->sent > g->last_lost)) &&
        m->nic[g->nic].dead != FL_SILENT)
        schedule_report(m, g->nic, 1);
    if (p->sent > g->last_lost) {
        g->loss_streak = 0;
        g->first_lost = -1;
    } else if (g->loss_streak &&
               p->sent > g->first_lost) { /* a slow answer: at least the newest loss is younger */
        g->loss_streak = 1;
        g->first_lost = g->last_lost;
    }
}

/* Carry a probe on until its answer has returned, it is lost, or the step ends. */
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
        p->t1 = stamp(m, g->nic, p->t); /* the timestamp of a probe without a first link */
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
            if (p->hop == 0) /* a port timestamps packets when they leave it */
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
        p->t += m->s.min_response_ns + (m->s.max_response_ns - m->s.min_response_ns) * unit(&m->chance);
        p->t3 = stamp(m, g->peer, p->t);
        p->leg = 1;
        p->hop = 0;
    }
    if (p->t >= m->end) { /* its answer arrives in a later step, and must not be known before */
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
    if (!p->declared_lost) {
        p->declared_lost = 1;
        g->lost++;
        if (p->sent > g->last_lost) g->last_lost = p->sent;
        if (p->sent > g->answered_sent) {
            g->loss_streak++;
            if (g->first_lost < 0 || p->sent < g->first_lost) g->first_lost = p->sent;
        }
        if (m->nic[g->nic].dead != FL_SILENT) schedule_report(m, g->nic, g->loss_streak <= REPORTED_LOSSES);
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
        int64_t capacity = m->pairs, more;
        more = capacity;
        if (grow(&m->pair, &more, capacity + 1, sizeof *m->pair)) goto no_memory;
        int64_t whole = more, same = capacity * 4;
        int32_t *fresh = realloc(m->next, sizeof *fresh * (size_t)whole * 4);
        if (!fresh) goto no_memory;
        m->next = fresh;
        same = 0;
        if (grow(&m->free, &same, whole, sizeof *m->free)) goto no_memory;
        for (int64_t i = whole - 1; i >= capacity; i--) m->free[m->free_n++] = (int32_t)i;
        m->pairs = whole;
    }
    int32_t at = m->free[--m->free_n];
    pair_t *pair = &m->pair[at];
    int size = m->s.spacing_ns > 0 ? 2 : 1;
    int64_t route = -1;
    if (n->slots) route = n->slot_group[(n->slot % n->slots + n->slots) % n->slots];
    if (route < 0 || route >= n->groups) route = below(&m->chance, (uint32_t)n->groups);
    *pair = (pair_t){.group = (int32_t)(n->group + route), .size = (uint8_t)size, .open = (uint8_t)size};
    double timeout = 4 * m->group[pair->group].longest;
    if (timeout < m->s.min_early_timeout_ns) timeout = m->s.min_early_timeout_ns;
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

void fl_step_probes(fl_sim *m) {
    int64_t slot = m->step & (CALENDAR_STEPS - 1);
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
            m->beat_at[i] = m->end + m->s.max_report_gap_ns;
            if (n->dead != FL_SILENT && n->groups) schedule_report(m, i, 1);
        }
        while (m->next_send[i] < m->end) {
            send_pair(m, n);
            if (n->slots) {
                n->slot++;
                m->next_send[i] = slot_time(m, n);
            } else {
                m->next_send[i] -= log(unit(&m->chance)) * n->gap_ns;
            }
        }
    }
    int32_t left = 0;
    for (int32_t i = 0; i < m->due_n; i++) {
        int32_t nic = m->due[i];
        double gap = m->nic[nic].due > 1 ? m->s.min_report_gap_ns : m->s.repeat_report_ns;
        if (m->end - m->nic[nic].reported_at < gap) {
            m->due[left++] = nic;
            continue;
        }
        m->nic[nic].due = 0;
        report_evidence(m, nic);
    }
    m->due_n = left;
}
