/* Queues of links from delays of the paths that cross them.
 *
 * What is known: y_i, the mean delay above the floor of n_i probes that took route i at about the same time. What is
 * wanted: x_tl, the queue of link l at knot t, in ns of waiting, not negative, mostly near zero; between two knots it
 * is a straight line. A probe that comes to link l the share b_il of a step after knot t finds
 *
 *   y_i = sum over the links of i of (1 - b_il) x_tl + b_il x_(t+1)l + e_i,    var e_i = (noise_i^2 + sum v_l) / n_i
 *
 * When it comes there: its way's earlier queues have held it up, as long as a first estimate says. In a deep queue
 * that is longer than a step.
 *
 * What a line leaves out of a queue that jumps with each packet is in v. In a stationary queue the waiting time's
 * variance is about its mean squared, and at low load, where a probe finds nothing or the rest of one packet of time
 * s, two thirds of s times its mean (Kleinrock, Queueing Systems I, 5.7: M/D/1). Hence
 *
 *   v_l(x) = rough * x^2 + 2/3 * s_l * x
 *
 * with `rough` small, since steps are short. It is what keeps the unrest of a deep queue from being explained by its
 * neighbours: a route through a deep queue says little about the other links of that route. As v grows with x, a
 * wrong answer can forgive itself: so the first answer is found with even weights, which no link can bend.
 *
 * Knots follow each other: a queue walks, with steps as large as it is deep. Over the few knots of a gap without
 * probes that gives the straight line between what was seen before and after, which is about the mean of all the
 * ways that a burst and its draining can have gone. So
 *
 *   x_tl - x_(t-1)l ~ N(0, p),   p = (s_l + min(a sqrt(h / s_l), 1/2) * deepest nearby)^2
 *
 * for knots h apart, with `deepest nearby` from a first estimate in whole slots, `merge` of them together, where every
 * link has probes enough to stand alone, and then from each round before. In the first estimate the step is Student's
 * t instead, whose variance is found with x (Lange, Little and Taylor, 1989), and bursts may come from nothing.
 *
 * And queues are empty unless there is a reason: x has a prior of density 1/(x + mean_l), the l1 term of sparse
 * reconstruction with a weight that lets go of what is really there (Candes, Wakin and Boyd, 2008), in full
 * where knots are a thousand packets apart, less where neighbours are not empty independently. Together:
 *
 *   minimise sum_i w_i/2 (y_i - sum x)^2 + sum_tl (x_tl - x_(t-1)l)^2 / (2 p_tl) + sum_tl lean_tl x_tl,  x >= 0
 *
 * by coordinate descent over links and knots, forwards and backwards in time in turn; it converges since the
 * terms that are not smooth (the bound at 0) are separable (Tseng, 2001). Weights are renewed `rounds` times. A call
 * starts from where the last ended: the first knot hangs on `last_ns`.
 *
 * The standard error of x_tl follows from Gaussian belief propagation's variances, which need no inverse: what an
 * observation says of one link is blurred by what is not known of the others on its route,
 *
 *   1/s_tl^2 = sum_i 1/(var e_i + sum_(k != l) s_tk^2) + 1/(p_t + s_(t-1)l^2) + 1/(p_(t+1) + s_(t+1)l^2)
 *
 * iterated a few times from above. Links that only ever occur together keep the error of each one's share.
 */
#include "queues.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIGMA_ROUNDS = 2, LAZY = 3, AHEAD = 12 };
enum { EVEN, COARSE, FINE }; /* what weights and steps are known by */

static const double NU = 1, COARSE_SHARE = 0.1, WALK = 0.035, MOST_WALK = 0.5, LOOSE = 100, EVEN_GRAINS = 5;
static const double ROUGH = 0.005, APART = 1000, BEGIN_SHARE = 0.2, FORGET = 0.02, STILL = 0.3;

typedef struct {
    int64_t n_active, rows, cells; /* rows: slots, or knots; cell = row * n_active + number */
    int32_t *active;               /* [n_active] links */
    int64_t *at;                   /* [observations + 1] first hop of each observation */
    struct hop {
        int32_t number;            /* of the active link */
        int32_t cell;              /* in the row before it */
        float late;                /* share of the row after it in what the probe sees here */
    } *hop;                        /* links of each observation */
    int64_t *cell_start;           /* [cells + 1] */
    struct member {
        int32_t i;
        float share;
    } *member;                     /* observations of each cell, and the cell's share in what they see */
    int32_t n_live, *live;         /* cells that are not still */
    int32_t n_awake, *awake;       /* of those, the ones that moved lately */
    int32_t n_hot, *hot;           /* observations of live cells */
    uint8_t *still, *moved;        /* [cells] still: nothing nearby is a packet deep, left as the first estimate has it */
    double *x, *s2, *pull;         /* [cells]; pull: 1/p, between a row and the one before */
    double *weight, *lean;         /* [cells] sum of w; pull towards 0 */
    struct seen {
        float w, r;
    } *o;                          /* [observations] weight and what is left over: small, since they are what misses
                                    * the cache */
    double *var, *rest;            /* [observations] */
    struct ft_queue_room *room;
    int rooms;
} work;

static inline double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Return the next of a work's rooms, with space for n elements, as the call before left it; NULL without memory. */
static void *need(work *k, int64_t n, size_t size)
{
    struct ft_queue_room *room = &k->room[k->rooms++];
    size_t bytes = (size_t)(n + 1) * size;
    if (room->bytes < bytes) {
        free(room->at);
        room->at = malloc(bytes + bytes / 4);
        room->bytes = room->at ? bytes + bytes / 4 : 0;
    }
    return room->at;
}

/* Find the links that are crossed, and each observation's hops over them. */
static int find_hops(const struct ft_queues *q, const struct ft_queue_slots *s, work *k)
{
    int64_t n = s->observations, at = 0;
    k->at = need(k, n + 1, sizeof *k->at);
    int32_t *number = need(k, q->links, sizeof *number);
    k->active = need(k, q->links, sizeof *k->active);
    if (!k->at || !number || !k->active)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        k->at[i] = at;
        at += q->route_start[s->route[i] + 1] - q->route_start[s->route[i]];
    }
    k->at[n] = at;
    k->hop = need(k, at, sizeof *k->hop);
    if (!k->hop)
        return 0;
    memset(number, 0xff, (size_t)q->links * sizeof *number);
    for (int64_t i = 0; i < n; i++) {
        const int32_t *link = &q->route_link[q->route_start[s->route[i]]];
        for (int64_t j = k->at[i]; j < k->at[i + 1]; j++, link++) {
            if (number[*link] < 0) {
                number[*link] = (int32_t)k->n_active;
                k->active[k->n_active++] = *link;
            }
            k->hop[j].number = number[*link];
        }
    }
    return 1;
}

/* Place each hop in its slot, or, with a first estimate at hand, between the knots around the time when the probe
 * comes there: it has waited in the queues before. */
static void place_hops(const struct ft_queue_slots *s, const work *first, work *k)
{
    int64_t a_n = k->n_active;
    for (int64_t t = 0; t < s->slots; t++)
        for (int64_t i = s->slot_start[t]; i < s->slot_start[t + 1]; i++) {
            double when = first ? ((double)t + s->at[i]) * s->knots : 0;
            for (int64_t j = k->at[i]; j < k->at[i + 1]; j++) {
                struct hop *h = &k->hop[j];
                if (!first) {
                    h->cell = (int32_t)(t * a_n + h->number);
                    h->late = 0;
                    continue;
                }
                double row = fmin(floor(when), (double)(k->rows - 2));
                h->cell = (int32_t)((int64_t)row * a_n + h->number);
                h->late = (float)fmin(when - row, 1);
                when += first->x[t / s->merge * a_n + h->number] / s->slot_ns * s->knots;
            }
        }
}

/* Add up, or fill in, which observations each cell has. `start`: [cells + 1], shifted by one. */
static void list_members(const struct ft_queue_slots *s, work *k, int64_t *start, int fill)
{
    for (int64_t i = 0; i < s->observations; i++)
        for (int64_t j = k->at[i]; j < k->at[i + 1]; j++) {
            const struct hop *h = &k->hop[j];
            if (!fill) {
                start[h->cell + 1]++;
                if (h->late > 0)
                    start[h->cell + k->n_active + 1]++;
                continue;
            }
            k->member[start[h->cell]++] = (struct member){(int32_t)i, 1 - h->late};
            if (h->late > 0)
                k->member[start[h->cell + k->n_active]++] = (struct member){(int32_t)i, h->late};
        }
}

/* Lay out the cells of slots, or, with a first estimate at hand, of knots: `s->knots` a slot and one behind the
 * last. Returns 0 without memory. */
static int prepare(struct ft_queues *q, const struct ft_queue_slots *s, const work *first, work *k)
{
    int64_t n = s->observations;
    memset(k, 0, sizeof *k);
    k->room = q->room[first ? 1 : 0];
    if (first) { /* the same hops, placed anew */
        k->at = first->at;
        k->hop = first->hop;
        k->active = first->active;
        k->n_active = first->n_active;
    } else if (!find_hops(q, s, k)) {
        return 0;
    }
    k->rows = first ? s->slots * s->knots + 1 : s->slots;
    k->cells = k->n_active * k->rows;
    if (k->cells > INT32_MAX)
        return 0;
    k->cell_start = need(k, k->cells + 2, sizeof *k->cell_start);
    k->member = need(k, k->at[n] * (first ? 2 : 1) + AHEAD, sizeof *k->member);
    k->live = need(k, k->cells, sizeof *k->live);
    k->awake = need(k, k->cells, sizeof *k->awake);
    k->hot = need(k, n, sizeof *k->hot);
    k->still = need(k, k->cells, 1);
    k->moved = need(k, k->cells, 1);
    k->x = need(k, k->cells, sizeof *k->x);
    k->s2 = need(k, k->cells, sizeof *k->s2);
    k->pull = need(k, k->cells, sizeof *k->pull);
    k->weight = need(k, k->cells, sizeof *k->weight);
    k->lean = need(k, k->cells, sizeof *k->lean);
    k->o = need(k, n, sizeof *k->o);
    k->var = need(k, n, sizeof *k->var);
    k->rest = need(k, n, sizeof *k->rest);
    for (int room = 0; room < k->rooms; room++)
        if (!k->room[room].at)
            return 0;
    memset(k->cell_start, 0, (size_t)(k->cells + 2) * sizeof *k->cell_start);
    memset(k->still, 0, (size_t)k->cells);
    place_hops(s, first, k);
    int64_t *start = k->cell_start + 1; /* counting sort: counts, then ends, shifted by one */
    list_members(s, k, start, 0);
    for (int64_t c = 0; c < k->cells; c++)
        start[c + 1] += start[c];
    list_members(s, k, start, 1);
    memset(&k->member[k->cell_start[k->cells]], 0, AHEAD * sizeof *k->member);
    return 1;
}

/* List the cells that are not still, and the observations that see any. */
static void list_live(const struct ft_queue_slots *s, work *k)
{
    for (int64_t c = 0; c < k->cells; c++)
        if (!k->still[c])
            k->live[k->n_live++] = (int32_t)c;
    for (int64_t i = 0; i < s->observations; i++)
        for (int64_t j = k->at[i]; j < k->at[i + 1]; j++) {
            const struct hop *h = &k->hop[j];
            if (!k->still[h->cell] || (h->late > 0 && !k->still[h->cell + k->n_active])) {
                k->hot[k->n_hot++] = (int32_t)i;
                break;
            }
        }
}

/* Variance of one probe around the slot's mean, by the queue that it crosses. */
static inline double unrest(const struct ft_queues *q, int32_t link, double x)
{
    return ROUGH * x * x + 0.667 * q->packet_ns[link] * x;
}

/* Renew what is left over of the hot observations, and their weights. */
static void weigh_seen(const struct ft_queues *q, const struct ft_queue_slots *s, work *k, int how)
{
    for (int64_t n = 0; n < k->n_hot; n++) {
        int64_t i = k->hot[n];
        double var = 1 + s->noise_ns[i] * s->noise_ns[i], sum = 0;
        for (const struct hop *h = &k->hop[k->at[i]], *end = &k->hop[k->at[i + 1]]; h < end; h++) {
            int32_t link = k->active[h->number];
            double grain = q->packet_ns[link], own = k->x[h->cell];
            if (h->late > 0)
                own += h->late * (k->x[h->cell + k->n_active] - own);
            var += how == EVEN ? EVEN_GRAINS * EVEN_GRAINS * grain * grain : unrest(q, link, own);
            sum += own;
        }
        k->var[i] = var / s->count[i];
        k->o[i].w = (float)(s->count[i] / var);
        k->o[i].r = (float)(s->delay_ns[i] - sum);
    }
}

static void weigh(const struct ft_queues *q, const struct ft_queue_slots *s, work *k, int how)
{
    int64_t a_n = k->n_active;
    weigh_seen(q, s, k, how);
    for (int64_t n = 0; n < k->n_live; n++) {
        int64_t c = k->live[n];
        int32_t link = k->active[c % a_n];
        double grain = q->packet_ns[link], weight = 0;
        for (int64_t m = k->cell_start[c]; m < k->cell_start[c + 1]; m++)
            weight += k->o[k->member[m].i].w * k->member[m].share * k->member[m].share;
        k->weight[c] = weight;
        double alone = how == FINE ? s->slot_ns / (s->knots * APART * grain) : s->slot_ns / (APART * grain);
        double lean = (alone < 1 ? alone : 1) / (k->x[c] + q->mean_ns[link] + grain);
        k->lean[c] = weight == 0 ? 0 : how == EVEN ? 0.01 / grain : lean;
        if (how == FINE)
            continue; /* the steps' scale is that of what is nearby: renew_pull */
        double before = c < a_n ? q->last_ns[link] : k->x[c - a_n];
        double step = k->x[c] - before, base = grain + COARSE_SHARE * (k->x[c] + before);
        k->pull[c] = c < a_n && !q->seen ? 1e-18
                     : how == EVEN       ? 1 / (LOOSE * LOOSE * grain * grain)
                                         : (NU + 1) / (NU * base * base + step * step);
    }
}

/* Settle one cell. Returns whether it moved by more than it may at rest. */
static int settle(const struct ft_queues *q, work *k, int64_t c)
{
    int64_t a_n = k->n_active, from = k->cell_start[c], to = k->cell_start[c + 1];
    int32_t link = k->active[(uint32_t)c % (uint32_t)a_n];
    double old = k->x[c], before = c < a_n ? q->last_ns[link] : k->x[c - a_n];
    double up = before * k->pull[c], pulls = k->pull[c] + k->weight[c], sum = 0;
    if (c + a_n < k->cells) {
        up += k->x[c + a_n] * k->pull[c + a_n];
        pulls += k->pull[c + a_n];
    }
    for (int64_t m = from; m < to; m++) {
        const struct seen *o = &k->o[k->member[m].i];
        __builtin_prefetch(&k->o[k->member[m + AHEAD].i]);
        sum += (double)(o->w * o->r * k->member[m].share);
    }
    double x = (sum + k->weight[c] * old + up - k->lean[c]) / pulls;
    x = x > 0 ? x : 0;
    double step = x - old;
    if (step == 0)
        return 0;
    k->x[c] = x;
    float down = (float)step;
    for (int64_t m = from; m < to; m++)
        k->o[k->member[m].i].r -= down * k->member[m].share;
    return fabs(step) > STILL * (q->packet_ns[link] + 0.1 * x);
}

/* Sweep forwards and backwards in time; of `LAZY` sweeps only one looks at cells that have come to rest. */
static void descend(const struct ft_queues *q, const struct ft_queue_slots *s, work *k, int how, int64_t *sweeps)
{
    int most_sweeps = how == FINE ? s->sweeps : (s->sweeps + 1) / 2;
    weigh(q, s, k, how);
    for (int sweep = 0; sweep < most_sweeps; sweep++) {
        int lazy = sweep % LAZY != 0;
        const int32_t *cell = lazy ? k->awake : k->live;
        int32_t cells = lazy ? k->n_awake : k->n_live;
        for (int32_t n = 0; n < cells; n++) {
            int32_t c = cell[sweep % 2 ? cells - 1 - n : n];
            k->moved[c] = (uint8_t)settle(q, k, c);
        }
        k->n_awake = 0;
        for (int32_t n = 0; n < cells; n++)
            if (k->moved[cell[n]])
                k->awake[k->n_awake++] = cell[n];
        ++*sweeps;
        if (!k->n_awake) {
            if (!lazy)
                break;
            sweep += LAZY - 1 - sweep % LAZY; /* all are looked at once more */
        }
    }
}

static void errors(const struct ft_queues *q, work *k, int rounds)
{
    int64_t a_n = k->n_active;
    for (int64_t n = 0; n < k->n_live; n++) {
        int64_t c = k->live[n];
        int32_t link = k->active[c % a_n];
        double most = k->x[c] + q->mean_ns[link] + q->packet_ns[link];
        k->s2[c] = most * most;
    }
    for (int round = 0; round < rounds; round++) {
        for (int64_t n = 0; n < k->n_hot; n++) {
            int64_t i = k->hot[n];
            double rest = k->var[i];
            for (const struct hop *h = &k->hop[k->at[i]], *end = &k->hop[k->at[i + 1]]; h < end; h++) {
                rest += (1 - h->late) * (1 - h->late) * k->s2[h->cell];
                if (h->late > 0)
                    rest += h->late * h->late * k->s2[h->cell + a_n];
            }
            k->rest[i] = rest;
        }
        for (int64_t n = 0; n < k->n_live; n++) {
            int64_t c = k->live[n];
            int32_t link = k->active[c % a_n];
            double own = k->s2[c], grain = q->packet_ns[link];
            double scale = k->x[c] + q->mean_ns[link] + grain, known = 1 / (scale * scale);
            for (int64_t m = k->cell_start[c]; m < k->cell_start[c + 1]; m++) {
                double share2 = k->member[m].share * k->member[m].share;
                double rest = k->rest[k->member[m].i] - share2 * own, least = k->var[k->member[m].i];
                known += share2 / (rest > least ? rest : least);
            }
            double from = c < a_n ? grain * grain : k->s2[c - a_n];
            known += 1 / (1 / k->pull[c] + from);
            if (c + a_n < k->cells)
                known += 1 / (1 / k->pull[c + a_n] + k->s2[c + a_n]);
            k->s2[c] = 1 / known;
        }
    }
}

/* Learn where each link's queue usually stands. */
static void learn(struct ft_queues *q, const struct ft_queue_slots *s, const work *k)
{
    double gain = 1 - pow(1 - FORGET, (double)s->slots / s->merge);
    for (int64_t a = 0; a < k->n_active; a++) {
        double sum = 0;
        for (int64_t t = 0; t < k->rows; t++)
            sum += k->x[t * k->n_active + a];
        double *mean = &q->mean_ns[k->active[a]];
        *mean += gain * (sum / (double)k->rows - *mean);
    }
}

/* Solve in slots `merge` times as long, where each link has probes enough to stand alone. Returns 0 without
 * memory. */
static int solve_coarse(struct ft_queues *q, const struct ft_queue_slots *s, work *k, int64_t *sweeps)
{
    struct ft_queue_slots c = *s;
    c.slots = (s->slots + s->merge - 1) / s->merge;
    c.slot_ns = s->slot_ns * s->merge;
    int64_t *start = malloc((size_t)(c.slots + 1) * sizeof *start);
    if (!start)
        return 0;
    for (int64_t t = 0; t <= c.slots; t++)
        start[t] = s->slot_start[t * s->merge < s->slots ? t * s->merge : s->slots];
    c.slot_start = start;
    int done = prepare(q, &c, NULL, k);
    if (done) {
        list_live(&c, k);
        for (int64_t t = 0; t < c.slots; t++)
            for (int64_t a = 0; a < k->n_active; a++)
                k->x[t * k->n_active + a] = q->last_ns[k->active[a]];
        descend(q, &c, k, EVEN, sweeps);
        descend(q, &c, k, COARSE, sweeps);
        errors(q, k, 1);
    }
    free(start);
    return done;
}

static double pull_of(const struct ft_queue_slots *s, double grain, double deepest)
{
    double walk = WALK * sqrt(s->slot_ns / (s->knots * grain));
    double scale = grain + (walk < MOST_WALK ? walk : MOST_WALK) * deepest;
    return 1 / (scale * scale);
}

/* The first knot stands where the call before left the queue. */
static void pull_to_last(const struct ft_queues *q, work *k, int64_t a)
{
    int32_t link = k->active[a];
    double scale = q->packet_ns[link] + BEGIN_SHARE * q->last_ns[link];
    k->pull[a] = q->seen ? 1 / (scale * scale) : 1e-18;
}

/* Begin the knots with what the first estimate says. */
static void begin_fine(const struct ft_queues *q, const struct ft_queue_slots *s, const work *first, work *k)
{
    int64_t a_n = k->n_active, per = (int64_t)s->knots * s->merge;
    size_t wide = (size_t)a_n * sizeof(double);
    for (int64_t t = 0; t < k->rows; t++) {
        int64_t own = t / per < first->rows ? t / per : first->rows - 1, row = t * a_n;
        memcpy(&k->x[row], &first->x[own * a_n], wide);
        memcpy(&k->s2[row], &first->s2[own * a_n], wide);
        if (t % per && t / per < first->rows) { /* as the row before: of the same slot */
            memcpy(&k->pull[row], &k->pull[row - a_n], wide);
            memcpy(&k->still[row], &k->still[row - a_n], (size_t)a_n);
            continue;
        }
        const double *x = &first->x[own * a_n], *before = t / per ? &first->x[(t / per - 1) * a_n] : x;
        const double *after = own + 1 < first->rows ? x + a_n : x;
        for (int64_t a = 0; a < a_n; a++) {
            double grain = q->packet_ns[k->active[a]], most = larger(x[a], larger(before[a], after[a]));
            k->pull[row + a] = pull_of(s, grain, most);
            k->still[row + a] = most < grain;
        }
    }
    list_live(s, k);
    for (int64_t a = 0; a < a_n; a++)
        pull_to_last(q, k, a);
}

/* Take the steps' scale from what was found within half a coarse slot. */
static void renew_pull(const struct ft_queues *q, const struct ft_queue_slots *s, work *k)
{
    int64_t a_n = k->n_active, near = (s->knots * s->merge + 1) / 2;
    for (int64_t n = 0; n < k->n_live; n++) {
        int64_t c = k->live[n];
        double most = 0;
        for (int64_t at = c - near * a_n; at <= c + near * a_n; at += a_n)
            if (at >= 0 && at < k->cells)
                most = larger(most, k->x[at]);
        k->pull[c] = pull_of(s, q->packet_ns[k->active[c % a_n]], most);
    }
    for (int64_t a = 0; a < a_n; a++)
        pull_to_last(q, k, a);
}

int ft_queues_solve(struct ft_queues *q, struct ft_queue_slots *s)
{
    work k, first;
    s->sweeps_done = 0;
    memset(s->queue_ns, 0, (size_t)(s->slots * q->links) * sizeof(double));
    memset(s->sigma_ns, 0, (size_t)(s->slots * q->links) * sizeof(double));
    if (!s->slots)
        return 1;
    if (!solve_coarse(q, s, &first, &s->sweeps_done) || !prepare(q, s, &first, &k))
        return 0;
    begin_fine(q, s, &first, &k);
    int64_t a_n = k.n_active;
    for (int round = 0; round < s->rounds; round++) {
        descend(q, s, &k, FINE, &s->sweeps_done);
        renew_pull(q, s, &k);
    }
    errors(q, &k, SIGMA_ROUNDS);
    learn(q, s, &k);
    for (int64_t t = 0; t < s->slots; t++)
        for (int64_t a = 0; a < a_n; a++) { /* the mean of straight lines between knots */
            double x = 0, s2 = 0;
            for (int n = 0; n <= s->knots; n++) {
                int64_t c = (t * s->knots + n) * a_n + a;
                double share = (n == 0 || n == s->knots ? 0.5 : 1.0) / s->knots;
                x += share * k.x[c];
                s2 += share * k.s2[c];
            }
            s->queue_ns[t * q->links + k.active[a]] = x;
            s->sigma_ns[t * q->links + k.active[a]] = sqrt(s2);
        }
    for (int64_t a = 0; a < a_n && s->slots; a++)
        q->last_ns[k.active[a]] = k.x[(k.rows - 1) * a_n + a];
    q->seen += s->slots;
    return 1;
}

void ft_queues_free(struct ft_queues *q)
{
    for (int n = 0; n < 2 * FT_QUEUE_ROOMS; n++)
        free(q->room[n / FT_QUEUE_ROOMS][n % FT_QUEUE_ROOMS].at);
}
