/* Flows, jobs and links of the fluid simulation. See fluid.c for the model. */
#include <math.h>
#include <string.h>

#include "fluid_state.h"

/* --- links and flows in a steady state --- */

void fl_settle_link(fl_sim *m, int32_t at) {
    rest_t *r = &m->rest[at];
    int64_t steps = m->step - r->since;
    if (steps <= 0) return;
    hot_t *h = &m->hot[at];
    double load = m->link[at].load;
    r->packet += (double)steps * load / (2 * (1 - load)) * m->s.packet_bytes;
    if (!h->listed) h->bytes += (double)steps * h->last; /* listed links count theirs in each step */
    r->since = m->step;
}

static void list_link(fl_sim *m, int32_t at) {
    hot_t *h = &m->hot[at];
    if (h->listed) return;
    fl_settle_link(m, at);
    h->listed = 1;
    h->offered = 0;
    m->listed[h->tier][m->listed_n[h->tier]++] = at;
}

void fl_settle_flow(fl_sim *m, flow_t *f) {
    double steps = (double)(m->step - f->since);
    if (!f->quiet || steps <= 0) return;
    f->sent += steps * f->fixed;
    f->busy += steps;
    if (f->demand < f->rate || f->limit < f->rate) f->own += steps;
    f->since = m->step;
}

/* Add `bytes` per step to the load of quiet flows on a flow's links. */
static void fix(fl_sim *m, int64_t flow, double bytes) {
    for (int c = 0; c < FL_TIERS; c++) {
        int32_t at = m->route[flow].path[c];
        if (at < 0) continue;
        list_link(m, at);
        m->hot[at].fixed += bytes;
        if (m->hot[at].fixed < 1e-6) m->hot[at].fixed = 0;
    }
}

static void wake(fl_sim *m, int64_t flow) {
    flow_t *f = &m->flow[flow];
    f->quiet_steps = 0;
    if (!f->quiet) return;
    fl_settle_flow(m, f);
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
    if (m->flows == m->flow_capacity) {
        int64_t capacity = m->flow_capacity, same;
        same = capacity;
        if (grow(&m->flow, &same, m->flows + 1, sizeof *m->flow)) return -1;
        int64_t whole = same;
        struct {
            void *at;
            size_t size;
        } all[] = {{&m->route, sizeof *m->route},
                   {&m->work, sizeof *m->work},
                   {&m->carry, 8},
                   {&m->unmarked, 8},
                   {&m->want, 8},
                   {&m->unsent, 8},
                   {&m->lost, 8}};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            same = capacity;
            if (grow(all[i].at, &same, whole, all[i].size)) return -1;
        }
        m->flow_capacity = whole;
    }
    double line = line_bps / 8e9; /* bytes per ns */
    m->flow[m->flows] = (flow_t){.line = line,
                                 .rate = line,
                                 .target = line,
                                 .alpha = 1,
                                 .demand = NO_LIMIT,
                                 .limit = NO_LIMIT,
                                 .idle_since = -1e18,
                                 .job = -1,
                                 .at = -1};
    memset(&m->route[m->flows], 0, sizeof *m->route);
    for (int c = 0; c < FL_TIERS; c++) m->route[m->flows].path[c] = -1;
    return m->flows++;
}

static void leave_route(fl_sim *m, int64_t flow) {
    route_t *w = &m->route[flow];
    for (int c = 0; c < FL_TIERS; c++) { /* bytes on the old route still arrive, but no flow counts them */
        if (w->path[c] >= 0 && w->waiting[c] > 0) {
            list_link(m, w->path[c]);
            m->hot[w->path[c]].orphan += w->waiting[c];
        }
        w->path[c] = -1;
        w->waiting[c] = 0;
    }
}

/* Begin a flowlet on a route drawn evenly. */
static void draw_route(fl_sim *m, int64_t flow) {
    flow_t *f = &m->flow[flow];
    const int32_t *route = f->route + FL_TIERS * (int64_t)below(&m->flowlets, (uint32_t)f->routes);
    if (!memcmp(route, m->route[flow].path, sizeof *route * FL_TIERS)) return;
    leave_route(m, flow);
    memcpy(m->route[flow].path, route, sizeof *route * FL_TIERS);
}

int fl_set_flow_routes(fl_sim *m, int64_t flow, int64_t routes, const int32_t *link) {
    int32_t *fresh = malloc(sizeof *fresh * FL_TIERS * (size_t)(routes + 1));
    if (!fresh) return -1;
    memcpy(fresh, link, sizeof *fresh * FL_TIERS * (size_t)routes);
    free(m->flow[flow].route);
    m->flow[flow].route = fresh;
    m->flow[flow].routes = (int32_t)routes;
    return 0;
}

int fl_set_flow_path(fl_sim *m, int64_t flow, const int32_t *link, int64_t hops, int reached) {
    route_t *w = &m->route[flow];
    wake(m, flow);
    leave_route(m, flow);
    for (int64_t i = 0; i < hops; i++) w->path[m->hot[link[i]].tier] = link[i];
    m->flow[flow].reached = (uint8_t)reached;
    return 0;
}

void fl_set_flow_limits(fl_sim *m, int64_t flow, double demand_bps, double limit_bps) {
    wake(m, flow);
    m->flow[flow].demand = demand_bps < 0 ? NO_LIMIT : demand_bps / 8e9;
    m->flow[flow].limit = limit_bps < 0 ? NO_LIMIT : limit_bps / 8e9;
}

void fl_set_flow_line(fl_sim *m, int64_t flow, double line_bps) {
    flow_t *f = &m->flow[flow];
    wake(m, flow);
    f->line = line_bps / 8e9;
    f->rate = fmin(f->rate, f->line);
    f->target = fmin(f->target, f->line);
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
    if (m->s.flowlet_ns > 0 && f->routes > 1 && m->t - f->idle_since >= m->s.flowlet_ns) draw_route(m, flow);
    f->at = (int32_t)m->working;
    m->work[m->working++] = (int32_t)flow;
}

int fl_flow_send(fl_sim *m, int64_t flow, double bytes) {
    flow_t *f = &m->flow[flow];
    wake(m, flow);
    f->left = bytes < 0 ? NO_LIMIT : bytes;
    if (bytes != 0) set_to_work(m, flow);
    return 0;
}

static void *copied(const void *from, size_t size) {
    void *to = malloc(size + 8);
    if (to) memcpy(to, from, size);
    return to;
}

int64_t fl_add_job(fl_sim *m, int64_t phases, const int64_t *phase_start, const int64_t *flow,
                   const double *bytes, double gap_ns, double begin_ns, int32_t members, const int32_t *from,
                   const int32_t *to) {
    if (grow(&m->job, &m->job_capacity, m->jobs + 1, sizeof *m->job)) return -1;
    int64_t n = phase_start[phases];
    job_t *j = &m->job[m->jobs];
    *j = (job_t){.phases = phases,
                 .phase = -1,
                 .gap = gap_ns,
                 .due = begin_ns,
                 .idle_since = begin_ns - gap_ns,
                 .waiting = 1,
                 .members = members};
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

void fl_set_job_gap(fl_sim *m, int64_t job, double gap_ns) {
    job_t *j = &m->job[job];
    j->gap = gap_ns;
    if (j->waiting) j->due = fmax(j->idle_since + gap_ns, m->t);
}

int fl_trace_job(fl_sim *m, int64_t job) {
    job_t *j = &m->job[job];
    int64_t entries = j->phase_start[j->phases];
    free(j->times);
    j->times = malloc(sizeof(double) * 2 * (size_t)entries);
    for (int64_t i = 0; j->times && i < 2 * entries; i++) j->times[i] = -1;
    return j->times ? 0 : -1;
}

/* Keep the times of an iteration that ends, and begin new ones. Return their number. */
static int64_t keep_times(fl_sim *m, job_t *j) {
    if (!j->times) return 0;
    int64_t entries = j->phase_start[j->phases], n = 2 * entries;
    if (grow(&m->times, &m->times_capacity, m->times_n + n, sizeof *m->times)) {
        m->failed = 1;
        return 0;
    }
    memcpy(m->times + m->times_n, j->times, sizeof *m->times * (size_t)n);
    m->times_n += n;
    for (int64_t i = 0; i < n; i++) j->times[i] = -1;
    return entries;
}

/* End an iteration. Return 1 if the next one begins at once. */
static int end_iteration(fl_sim *m, job_t *j) {
    int64_t entries = keep_times(m, j);
    if (grow(&m->iteration, &m->iteration_capacity, m->iterations + 1, sizeof *m->iteration)) {
        m->failed = 1;
        return 0;
    }
    m->iteration[m->iterations++] = (fl_iteration){.job = (int32_t)(j - m->job),
                                                   .iteration = j->iteration++,
                                                   .begin = j->begin,
                                                   .end = m->t,
                                                   .times = m->times_n - 2 * entries,
                                                   .entries = entries};
    j->phase = 0;
    if (j->gap <= 0) return 1;
    j->phase = -1;
    j->waiting = 1;
    j->idle_since = m->t;
    j->due = m->t + j->gap;
    return 0;
}

static void begin_entry(fl_sim *m, const job_t *j, int64_t entry) {
    if (j->times) j->times[entry] = m->t;
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

/* Let a member enter a phase, and begin the flows whose other end is there already. */
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
    j->open = j->members; /* members with unfinished phases */
    for (int32_t k = 0; k < j->members; k++) j->phase_of[k] = -1;
    for (int32_t k = 0; k < j->members; k++) arrive(m, j, k, 0);
}

/* Move the members on that have finished their phase. */
static void move_on(fl_sim *m, job_t *j) {
    for (int32_t k = 0; k < j->members; k++)
        while (j->phase_of[k] < j->phases && !j->open_of[k]) arrive(m, j, k, j->phase_of[k] + 1);
    if (!j->open && end_iteration(m, j)) begin_members(m, j);
}

/* Serve a link once all its offered bytes are known. Return 1 while it has load or a queue. */
static __attribute__((noinline)) int serve(fl_sim *m, int32_t at) {
    hot_t *h = &m->hot[at];
    double given = h->given, open = h->open, offered = h->offered + h->orphan + h->fixed;
    if (h->plain && offered <= open && fabs(offered + given - h->last) <= SAME_LOAD * h->capacity) {
        h->bytes += offered + given;
        if (h->offered > 0) return 1;
        h->last = offered + given;
        fl_settle_link(m, at);
        m->rest[at].since = m->step + 1;
        m->rest[at].packet += m->link[at].load / (2 * (1 - m->link[at].load)) * m->s.packet_bytes;
        return 0;
    }
    link_t *l = &m->link[at];
    rest_t *r = &m->rest[at];
    fl_settle_link(m, at);
    double capacity = h->share < STOPPED ? 0 : h->capacity * h->share, out = offered, kept = 0, dropped = 0;
    l->q0 = l->q1;
    if (offered > open * (1 + 1e-12)) {
        double buffer = h->tier ? r->buffer : h->share < 1 ? m->s.slow_sender_bytes : 0;
        if (!l->up && h->tier) buffer = 0;
        out = open;
        kept = offered - out;
        if (kept > buffer) {
            dropped = kept - buffer;
            kept = buffer;
        }
        h->pass = out / offered;
        h->keep = kept / offered;
        h->gone = dropped / offered;
        h->back = !h->tier || (m->s.lossless && l->up);
        double over = h->back ? h->orphan * h->gone : 0; /* orphaned bytes have no sender to return to */
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
    l->load = (float)(load < m->s.max_load ? load : m->s.max_load);
    h->unmarked = 1;
    if (h->tier && kept > r->mark_begin) {
        double over = (kept - r->mark_begin) / (r->mark_full - r->mark_begin);
        h->unmarked = over >= 1 ? 0 : 1 - m->s.max_mark * over;
    }
    h->plain = kept == 0 && dropped == 0 && l->q0 == 0 && h->loss == 0;
    h->last = offered + given; /* load of later steps while nothing changes */
    h->bytes += out + (l->up ? given : 0);
    r->depth += 0.5 * (l->q0 + l->q1);
    r->packet += l->load / (2 * (1 - l->load)) * m->s.packet_bytes;
    r->dropped += out * h->loss + (h->back ? 0 : dropped);
    if (kept > r->max_depth) r->max_depth = kept;
    r->since = m->step + 1;
    return h->offered > 0 || !h->plain;
}

/* Offer a flow's bytes to its link in a tier. */
static inline void offer(fl_sim *m, route_t *w, int c, double carried) {
    int32_t at = w->path[c];
    if (at < 0) return;
    hot_t *h = &m->hot[at];
    if (!h->listed) list_link(m, at);
    h->offered += w->waiting[c] += carried;
}

void fl_step_flows(fl_sim *m) {
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
        offer(m, &m->route[m->work[i]], m->tier[0], want);
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
            route_t *w = &m->route[m->work[i]];
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

/* Wake the quiet flows on crowded links, and undo the bytes that those links could not pass on in this
 * step. */
static void wake_crowded(fl_sim *m) {
    for (int32_t k = 0; k < m->crowded_n; k++) m->rest[m->crowded[k]].crowded = 1;
    for (int64_t f = 0; f < m->flows; f++) {
        if (!m->flow[f].quiet) continue; /* quiet since the beginning of the step */
        for (int c = 0; c < FL_TIERS; c++) {
            int32_t at = m->route[f].path[c];
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

/* Apply the results of the step: rate control, finished flows and jobs. */
void fl_end_step(fl_sim *m) {
    double min = m->s.min_rate_share;
    for (int64_t i = 0; i < m->working; i++) {
        int32_t id = m->work[i];
        flow_t *f = &m->flow[id];
        route_t *w = &m->route[id];
        if (!f->reached) m->lost[i] += m->carry[i]; /* a switch on the route has no living port for it */
        double sent = m->want[i] - m->unsent[i], lost = m->lost[i], waiting = 0;
        int32_t first = w->path[0], last = w->path[5];
        for (int c = 0; c < FL_TIERS; c++) waiting += w->waiting[c];
        int busy = f->left > 0;
        if (busy) {
            f->busy++;
            if (f->demand < f->rate || f->limit < f->rate ||
                (m->slowed && first >= 0 && m->link[first].share < 1))
                f->own++;
            if (m->slowed && last >= 0 && m->link[last].share < 1 &&
                (w->waiting[5] > 0 || m->unmarked[i] < 1))
                f->receiver++;
        }
        if (f->left < NO_LIMIT) f->left -= sent - lost;
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
            f->cuts++;
            f->rate *= 1 - f->alpha / 2;
            if (f->rate < min * f->line) f->rate = min * f->line;
            f->stage = 0;
        } else if (f->rate < f->line || f->stage < FAST_RECOVERY_PERIODS) {
            f->alpha *= m->fade;
            f->stage += m->periods;
            if (f->stage > FAST_RECOVERY_PERIODS) {
                f->target +=
                    m->s.increase_share * (f->stage > HYPER_INCREASE_PERIODS ? 10 : 1) * f->line * m->periods;
                if (f->target > f->line) f->target = f->line;
            }
            f->rate = f->target - (f->target - f->rate) * m->half;
            if (f->rate > f->line * (1 - 1e-6)) f->rate = f->line;
        }
        if (f->left < 0.5 && waiting < 1) {
            if (f->left > -1e200) f->left = 0;
            f->idle_since = m->t;
            f->quiet_steps = 0;
            for (int c = 0; c < FL_TIERS; c++) w->waiting[c] = 0;
            leave_work(m, i--); /* the last flow takes this place, and is next */
            if (f->job >= 0 && !m->job[f->job].stopped) {
                job_t *j = &m->job[f->job];
                if (j->times) j->times[j->phase_start[j->phases] + f->entry] = m->t;
                if (j->members) {
                    j->open_of[j->from[f->entry]]--;
                    j->open_of[j->to[f->entry]]--;
                } else {
                    j->open--;
                }
            }
            continue;
        }
        if (m->s.flowlet_ns > 0 && f->routes > 1 && sent * m->s.flowlet_ns < m->s.packet_bytes * m->dt)
            draw_route(m, id);
        int quiet_steps = f->left > NO_LIMIT / 2 && waiting == 0 && lost == 0 && m->unsent[i] == 0 &&
                          m->unmarked[i] >= 1 &&
                          (f->rate >= f->line || f->demand < f->rate || f->limit < f->rate);
        f->quiet_steps = quiet_steps ? f->quiet_steps + 1 : 0;
        if (f->quiet_steps > QUIET_STEPS) {
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
