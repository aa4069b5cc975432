/* Infers the queues of links from the delays of the paths that cross them.
 *
 * Given are y_i, the mean delay above the floor of n_i probes that took route i at about the same time. Unknown are
 * x_tl, the queue of link l at knot t, in ns of waiting, not negative, mostly near zero; it is linear between two
 * knots. A probe that reaches link l the share b_il of a step after knot t finds
 *
 *   y_i = sum over the links of i of (1 - b_il) x_tl + b_il x_(t+1)l + e_i,    var e_i = (noise_i^2 + sum v_l) / n_i
 *
 * Its time of arrival there follows from a first estimate of the route's earlier queues. In a deep queue that delay is
 * longer than a step.
 *
 * v covers the difference between a line and a queue that jumps with each packet. In a stationary queue the waiting
 * time's variance is about its mean squared. At low load, when a probe finds nothing or the rest of one packet of time
 * s, it is two thirds of s times its mean (Kleinrock, Queueing Systems I, 5.7: M/D/1). Hence
 *
 *   v_l(x) = rough * x^2 + 2/3 * s_l * x
 *
 * with a small `rough`, because steps are short. It keeps the fluctuation of a deep queue from being explained by its
 * neighbours: a route through a deep queue carries little information about its other links. Because v grows with x, a
 * wrong answer could excuse itself. So the first answer uses even weights, which no link can bend.
 *
 * Knots follow each other: a queue walks, with steps as large as it is deep. Over the few knots of a gap without
 * probes that gives the straight line between the values before and after, about the mean of all possible courses of a
 * burst and its draining. So
 *
 *   x_tl - x_(t-1)l ~ N(0, p),   p = (s_l + min(a sqrt(h / s_l), 1/2) * deepest nearby)^2
 *
 * for knots h apart. `deepest nearby` comes from a first estimate in whole slots, `merge` of them together, in which
 * every link has enough probes of its own, and then from each iteration before. In the first estimate the step is
 * Student's t instead, whose variance is found with x (Lange, Little and Taylor, 1989), so that bursts may begin
 * anywhere.
 *
 * Queues are empty without evidence: x has a prior of density 1/(x + mean_l). It is the l1 term of sparse
 * reconstruction with a weight that releases true values (Candes, Wakin and Boyd, 2008). It counts in full if knots
 * are a thousand packets apart, and less if neighbours are not empty independently. Together:
 *
 *   minimise sum_i w_i/2 (y_i - sum x)^2 + sum_tl (x_tl - x_(t-1)l)^2 / (2 p_tl) + sum_tl lean_tl x_tl,  x >= 0
 *
 * by coordinate descent over links and knots, alternately forwards and backwards in time. It converges because the
 * terms that are not smooth (the bound at 0) are separable (Tseng, 2001). Weights are renewed `rounds` times. A call
 * continues from the end of the last: the first knot is tied to `last_ns`.
 *
 * Most links are empty most of the time. If the first estimate has nothing a packet deep in a coarse slot, the one
 * before and the one after, a link's knots are still and keep their value. Only the others are laid out, with their
 * observations, in the order of the sweeps, small enough to stay in the cache.
 *
 * No queue is deeper than the probes that crossed it allow: x_tl is at most the longest delay of any of them within
 * a coarse slot, plus three standard errors. Without this bound a probe just before a knot, followed by an empty
 * one, would make the knot y / (1 - b) deep. The bound is a box as the one at 0, so the descent still converges.
 *
 * The standard error of x_tl follows from Gaussian belief propagation's variances, which need no inverse. The
 * information of an observation about one link is reduced by the uncertainty of the others on its route,
 *
 *   1/s_tl^2 = sum_i 1/(var e_i + sum_(k != l) s_tk^2) + 1/(p_t + s_(t-1)l^2) + 1/(p_(t+1) + s_(t+1)l^2)
 *
 * iterated a few times from above. Links that only occur together keep the error of each one's share. */
#include "queues.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIGMA_ROUNDS = 2, LAZY = 2 };
enum { EVEN, COARSE }; /* how well the first estimate's weights and steps are known */

static const float NU = 1, COARSE_SHARE = 0.1F, WALK = 0.035F, MAX_WALK = 0.5F, LOOSE = 100, EVEN_GRAINS = 5;
static const float ROUGH = 0.005F, APART = 1000, BEGIN_SHARE = 0.2F, FORGET = 0.02F, FREE = 1e-18F;
static const float STILL = 0.3F,
                   TINY = 0.003F; /* of a packet's time: moves at rest, and those not worth the while */
static const float MIN_GRAIN_NS = 1e-3F;
static const float LIMIT_SIGMAS = 3;

struct seen {
    float w, r; /* weight of an observation, and its residual */
};

struct doubt {
    float noise, rest; /* an observation's own variance, and with that of the links on its way */
};

/* The first estimate. A cell is a link in a coarse slot; before the first row and behind the last stands one more. */
typedef struct {
    int64_t rows, links; /* cell = (row + 1) * links + number of the link */
    int32_t *active;     /* [links] as the caller numbers them */
    int32_t *from;       /* [observations + 1] first hop of each */
    int32_t *hop;    /* links, as numbered here, that each observation sees, one observation after another */
    float *mean;     /* [links] */
    int32_t *start;  /* [cells + 1] */
    int32_t *member; /* observations of each cell */
    float *limit;    /* [cells] longest delay of a probe there, and three standard errors */
    float *grain, *x, *s2, *pull, *weight, *lean,
        *give; /* [cells]; pull: 1/p, between a row and the one before;
                                                          * weight: sum of w; give: 1 / (weight and pulls) */
    struct check {
        float x, var;
    } *check;        /* [cells] value of an observation there */
    int32_t *awake;  /* [cells] */
    float *w, *push; /* [observations] weight, and weight times residual: apart, because sweeps mostly read */
    struct doubt *doubt; /* [observations] */
} coarse;

/* The knots that are not still, and those beside them. All of a link's knots in a coarse slot stand together. */
typedef struct {
    int64_t rows, per; /* knots, and of them in a coarse slot */
    int32_t n_live, n_cells, n_runs, n_hot;
    int32_t *run; /* [n_runs] coarse cells whose knots are live */
    struct ends {
        int32_t first, last;
    } *ends;       /* [coarse cells] first and last knot; of still ones if beside a live one, else -1 */
    uint8_t *near; /* [coarse cells] it or the next one is live */
    struct cell {
        float x, pull, give, lean, grain;
        int32_t before, after; /* cells of the knots before and after */
        int32_t from;          /* its first member */
        float limit;           /* no deeper than this */
    } *cell;                   /* live ones, in the order of slots, links, time; then the others */
    float *s2, *weight;        /* [n_cells] */
    struct member {
        int32_t i;
        float share;
    } *member; /* observations of each cell, and the cell's share in them */
    struct hop {
        int32_t cell, after;
        float late;
    } *hop; /* of each observation, those between knots that are not both still */
    struct hot {
        float delay, var, count;
        int32_t from; /* its first hop */
    } *hot; /* [n_hot + 1] observations with such links; delay and variance without the still ones */
    struct seen *o;
    struct doubt *doubt; /* [n_hot] */
    int32_t *awake;
    uint8_t *moved; /* [n_live] */
    float *row;     /* knots of two coarse slots, and two */
} fine;

struct workspaces {
    struct ft_queue_workspace *buffer;
    int used, short_of;
};

static inline float larger(float a, float b) {
    return a > b ? a : b;
}

/* Return the next workspace, with space for n elements, as the call before left it; NULL without memory. */
static void *need(struct workspaces *workspaces, int64_t n, size_t size) {
    struct ft_queue_workspace *buffer = &workspaces->buffer[workspaces->used++];
    size_t bytes = (size_t)(n + 1) * size;
    if (buffer->bytes < bytes) {
        free(buffer->at);
        buffer->at = malloc(bytes + bytes / 4);
        buffer->bytes = buffer->at ? bytes + bytes / 4 : 0;
    }
    workspaces->short_of |= !buffer->at;
    return buffer->at;
}

/* First observation of a coarse slot; of the one behind the last: how many there are. */
static inline int64_t begin_of(const struct ft_queue_slots *s, int64_t row) {
    return s->slot_start[row * s->merge < s->slots ? row * s->merge : s->slots];
}

/* Variance of one probe around the slot's mean, by the queue that it crosses. */
static inline float unrest(float grain, float x) {
    return ROUGH * x * x + 0.667F * grain * x;
}

/* Number the links that are crossed, and copy each observation's out of its route: passes over all of them read
 * straight on, which no list of lists allows. Returns 0 without memory. */
static int number_links(const struct ft_queues *q, const struct ft_queue_slots *s,
                        struct workspaces *workspaces, coarse *k) {
    int32_t *number = need(workspaces, q->links, sizeof *number);
    k->active = need(workspaces, q->links, sizeof *k->active);
    k->from = need(workspaces, s->observations + 1, sizeof *k->from);
    if (workspaces->short_of) return 0;
    int64_t hops = 0;
    for (int64_t i = 0; i < s->observations; i++)
        hops += q->route_start[s->route[i] + 1] - q->route_start[s->route[i]];
    if (hops > INT32_MAX) return 0;
    k->hop = need(workspaces, hops, sizeof *k->hop);
    if (workspaces->short_of) return 0;
    memset(number, 0xff, (size_t)q->links * sizeof *number);
    hops = 0;
    for (int64_t i = 0; i < s->observations; i++) {
        k->from[i] = (int32_t)hops;
        for (int64_t j = q->route_start[s->route[i]]; j < q->route_start[s->route[i] + 1]; j++) {
            int32_t link = q->route_link[j];
            if (number[link] < 0) {
                number[link] = (int32_t)k->links;
                k->active[k->links++] = link;
            }
            k->hop[hops++] = number[link];
        }
    }
    k->from[s->observations] = (int32_t)hops;
    return 1;
}

/* Add up, or fill in, which observations each cell has. `start`: [cells + 1], shifted by one. */
static void list_members(const struct ft_queue_slots *s, coarse *k, int32_t *start, int fill) {
    for (int64_t row = 0; row < k->rows; row++) {
        int32_t *of = &start[(row + 1) * k->links];
        for (int64_t i = begin_of(s, row); i < begin_of(s, row + 1); i++)
            for (int32_t h = k->from[i]; h < k->from[i + 1]; h++) {
                if (fill)
                    k->member[of[k->hop[h]]++] = (int32_t)i;
                else
                    of[k->hop[h] + 1]++;
            }
    }
}

/* Note the longest delay that a probe of each cell met. */
static void limit_cells(const struct ft_queue_slots *s, coarse *k) {
    for (int64_t c = 0; c < (k->rows + 2) * k->links; c++) k->limit[c] = -INFINITY;
    for (int64_t row = 0; row < k->rows; row++) {
        float *limit = &k->limit[(row + 1) * k->links];
        for (int64_t i = begin_of(s, row); i < begin_of(s, row + 1); i++) {
            float delay = (float)s->delay_ns[i] + LIMIT_SIGMAS * (float)s->noise_ns[i];
            for (int32_t h = k->from[i]; h < k->from[i + 1]; h++)
                limit[k->hop[h]] = larger(limit[k->hop[h]], delay);
        }
    }
}

/* The bound of the knots in a coarse cell: a probe may have met the queue in a slot beside its own. */
static inline float limit_near(const coarse *first, int64_t c) {
    float limit = larger(first->limit[c], first->limit[c - first->links]);
    limit = larger(limit, first->limit[c + first->links]);
    return limit > -INFINITY ? larger(limit, first->grain[c]) : INFINITY;
}

/* Lay out the cells of the first estimate. Returns 0 without memory. */
static int lay_coarse(struct ft_queues *q, const struct ft_queue_slots *s, coarse *k) {
    struct workspaces workspaces = {.buffer = q->buffer[0]};
    memset(k, 0, sizeof *k);
    k->rows = (s->slots + s->merge - 1) / s->merge;
    if (!number_links(q, s, &workspaces, k)) return 0;
    int64_t cells = (k->rows + 2) * k->links;
    if (cells > INT32_MAX || s->observations > INT32_MAX) return 0;
    k->mean = need(&workspaces, k->links, sizeof *k->mean);
    k->start = need(&workspaces, cells + 1, sizeof *k->start);
    k->limit = need(&workspaces, cells, sizeof *k->limit);
    k->grain = need(&workspaces, cells, sizeof *k->grain);
    k->x = need(&workspaces, cells, sizeof *k->x);
    k->s2 = need(&workspaces, cells, sizeof *k->s2);
    k->pull = need(&workspaces, cells, sizeof *k->pull);
    k->weight = need(&workspaces, cells, sizeof *k->weight);
    k->lean = need(&workspaces, cells, sizeof *k->lean);
    k->give = need(&workspaces, cells, sizeof *k->give);
    k->check = need(&workspaces, cells, sizeof *k->check);
    k->awake = need(&workspaces, cells, sizeof *k->awake);
    k->w = need(&workspaces, s->observations, sizeof *k->w);
    k->push = need(&workspaces, s->observations, sizeof *k->push);
    k->doubt = need(&workspaces, s->observations, sizeof *k->doubt);
    if (workspaces.short_of) return 0;
    memset(k->start, 0, (size_t)(cells + 2) * sizeof *k->start);
    int32_t *start = k->start + 1; /* counting sort: counts, then ends, shifted by one */
    list_members(s, k, start, 0);
    for (int64_t c = 0; c < cells; c++) start[c + 1] += start[c];
    k->member = need(&workspaces, start[cells], sizeof *k->member);
    if (workspaces.short_of) return 0;
    list_members(s, k, start, 1);
    limit_cells(s, k);
    for (int64_t a = 0; a < k->links; a++) {
        k->grain[a] = larger((float)q->packet_ns[k->active[a]], MIN_GRAIN_NS);
        k->mean[a] = (float)q->mean_ns[k->active[a]];
        k->x[a] = (float)q->last_ns[k->active[a]];
    }
    for (int64_t c = k->links; c < cells; c++) {
        k->x[c] = k->x[c - k->links];
        k->grain[c] = k->grain[c - k->links];
    }
    return 1;
}

/* Update the residuals of the observations, their weights, and the steps. */
static void weigh_coarse(const struct ft_queues *q, const struct ft_queue_slots *s, coarse *k, int how) {
    int64_t wide = k->links, end = (k->rows + 1) * wide;
    for (int64_t c = wide; c < end; c++) {
        float own = EVEN_GRAINS * k->grain[c];
        k->check[c] = (struct check){k->x[c], how == EVEN ? own * own : unrest(k->grain[c], k->x[c])};
    }
    memset(k->weight, 0, (size_t)(end + wide) * sizeof *k->weight);
    for (int64_t row = 0; row < k->rows; row++) {
        const struct check *check = &k->check[(row + 1) * wide];
        float *weight = &k->weight[(row + 1) * wide];
        for (int64_t i = begin_of(s, row); i < begin_of(s, row + 1); i++) {
            const int32_t *hop = &k->hop[k->from[i]], *last = &k->hop[k->from[i + 1]];
            float noise = (float)s->noise_ns[i], var = 1 + noise * noise, sum = 0;
            for (const int32_t *h = hop; h < last; h++) {
                var += check[*h].var;
                sum += check[*h].x;
            }
            float w = (float)s->count[i] / var;
            for (const int32_t *h = hop; h < last; h++) weight[*h] += w;
            k->w[i] = w;
            k->push[i] = w * ((float)s->delay_ns[i] - sum);
        }
    }
    for (int64_t c = wide, a = 0; c < end; c++, a = a + 1 < wide ? a + 1 : 0) {
        float grain = k->grain[c], x = k->x[c], before = k->x[c - wide];
        float alone = (float)(s->slot_ns * s->merge) / (APART * grain);
        float lean = (alone < 1 ? alone : 1) / (x + k->mean[a] + grain);
        k->lean[c] = k->weight[c] == 0 ? 0 : how == EVEN ? 0.01F / grain : lean;
        float step = x - before, base = grain + COARSE_SHARE * (x + before);
        k->pull[c] =
            how == EVEN ? 1 / (LOOSE * LOOSE * grain * grain) : (NU + 1) / (NU * base * base + step * step);
    }
    for (int64_t a = 0; a < wide; a++) {
        k->pull[end + a] = 0;
        if (!q->seen) k->pull[wide + a] = FREE;
    }
    for (int64_t c = wide; c < end; c++) k->give[c] = 1 / (k->weight[c] + k->pull[c] + k->pull[c + wide]);
}

/* Settle one cell. Returns whether it moved by more than it may at rest. */
static inline int settle_coarse(coarse *k, int64_t c) {
    int64_t wide = k->links;
    const int32_t *from = &k->member[k->start[c]], *to = &k->member[k->start[c + 1]], *m = from;
    float old = k->x[c], before = k->x[c - wide], after = k->x[c + wide], sum = -k->lean[c], other = 0;
    if (from == to && before == old && after == old) return 0; /* no probe: it lies between its neighbours */
    sum += k->pull[c] * (before - old) + k->pull[c + wide] * (after - old);
    for (; m + 1 < to; m += 2) { /* two sums, since one would wait for itself */
        sum += k->push[m[0]];
        other += k->push[m[1]];
    }
    if (m < to) sum += k->push[*m];
    float x = old + (sum + other) * k->give[c];
    x = x > 0 ? x : 0;
    float step = x - old;
    if (fabsf(step) <= TINY * k->grain[c]) return 0;
    k->x[c] = x;
    for (m = from; m < to; m++) k->push[*m] -= step * k->w[*m];
    return fabsf(step) > STILL * (k->grain[c] + 0.1F * x);
}

/* The next position after a sweep that left `awake` cells: of `LAZY` sweeps only one looks at cells that have come to
 * rest, and where all have, all are looked at once more. */
static int next_sweep(int sweep, int32_t awake, int max_sweeps) {
    if (awake) return sweep + 1;
    return sweep % LAZY ? sweep + LAZY - sweep % LAZY : max_sweeps;
}

/* Sweep forwards and backwards in time. */
static void descend_coarse(const struct ft_queues *q, const struct ft_queue_slots *s, coarse *k, int how,
                           int64_t *sweeps) {
    int32_t first = (int32_t)k->links, all = (int32_t)(k->rows * k->links), n_awake = 0;
    int max_sweeps = (s->sweeps + 2) / 3;
    weigh_coarse(q, s, k, how);
    for (int sweep = 0; sweep < max_sweeps; ++*sweeps, sweep = next_sweep(sweep, n_awake, max_sweeps)) {
        if (sweep % LAZY == 0) { /* forwards, all cells */
            n_awake = 0;
            for (int32_t c = first; c < first + all; c++) {
                k->awake[n_awake] = c;
                n_awake += settle_coarse(k, c);
            }
        } else { /* backwards, those that still move; the list stays ascending */
            int32_t begin = n_awake;
            for (int32_t n = n_awake - 1; n >= 0; n--) {
                int32_t c = k->awake[n];
                k->awake[begin - 1] = c;
                begin -= settle_coarse(k, c);
            }
            n_awake -= begin;
            memmove(k->awake, k->awake + begin, (size_t)n_awake * sizeof *k->awake);
        }
    }
}

static void errors_coarse(const struct ft_queue_slots *s, coarse *k) {
    int64_t wide = k->links, end = (k->rows + 1) * wide;
    for (int64_t c = 0, a = 0; c < end + wide; c++, a = a + 1 < wide ? a + 1 : 0) {
        float spread = c < wide ? k->grain[c] : k->x[c] + k->mean[a] + k->grain[c];
        k->s2[c] = spread * spread;
    }
    for (int64_t row = 0; row < k->rows; row++) {
        const float *s2 = &k->s2[(row + 1) * wide];
        for (int64_t i = begin_of(s, row); i < begin_of(s, row + 1); i++) {
            float noise = 1 / k->w[i], rest = noise;
            for (int32_t h = k->from[i]; h < k->from[i + 1]; h++) rest += s2[k->hop[h]];
            k->doubt[i] = (struct doubt){noise, rest};
        }
    }
    for (int64_t c = wide; c < end; c++) {
        float own = k->s2[c], known = 1 / own;
        for (int32_t m = k->start[c]; m < k->start[c + 1]; m++) {
            struct doubt d = k->doubt[k->member[m]];
            known += 1 / larger(d.rest - own, d.noise);
        }
        known += k->pull[c] / (1 + k->pull[c] * k->s2[c - wide]);
        known += k->pull[c + wide] / (1 + k->pull[c + wide] * k->s2[c + wide]);
        k->s2[c] = 1 / known;
    }
}

/* Solve in slots `merge` times as long, where each link has probes enough to stand alone. Returns 0 without
 * memory. */
static int solve_coarse(struct ft_queues *q, const struct ft_queue_slots *s, coarse *k, int64_t *sweeps) {
    if (!lay_coarse(q, s, k)) return 0;
    descend_coarse(q, s, k, EVEN, sweeps);
    descend_coarse(q, s, k, COARSE, sweeps);
    if (s->sigma_ns) errors_coarse(s, k);
    return 1;
}

static float pull_of(const struct ft_queue_slots *s, float grain, float deepest) {
    float walk = WALK * sqrtf((float)s->slot_ns / ((float)s->knots * grain));
    float scale = grain + (walk < MAX_WALK ? walk : MAX_WALK) * deepest;
    return 1 / (scale * scale);
}

/* The deepest of a coarse cell and the ones before and after. */
static inline float deepest_near(const coarse *first, int64_t c) {
    float deepest = first->x[c];
    if (c >= 2 * first->links) deepest = larger(deepest, first->x[c - first->links]);
    if (c < first->rows * first->links) deepest = larger(deepest, first->x[c + first->links]);
    return deepest;
}

/* Knots of a coarse slot; the last one has the knot behind it too. */
static inline int32_t knots_in(const coarse *first, const fine *k, int64_t row) {
    return (int32_t)(row + 1 < first->rows ? k->per : k->rows - row * k->per);
}

static inline int is_live(const fine *k, int64_t c) {
    return k->ends[c].first >= 0 && k->ends[c].first < k->n_live;
}

/* Number the knots: first those of coarse cells with anything a packet deep nearby, then still ones beside them, as
 * the first estimate has them. Returns 0 without memory. */
static int number_knots(const coarse *first, struct workspaces *workspaces, fine *k) {
    int64_t wide = first->links, all = (first->rows + 2) * wide, to = all - wide, live = 0;
    k->run = need(workspaces, all, sizeof *k->run);
    k->ends = need(workspaces, all, sizeof *k->ends);
    k->near = need(workspaces, all, 1);
    if (workspaces->short_of) return 0;
    memset(k->ends, 0xff, (size_t)all * sizeof *k->ends);
    memset(k->near, 0, (size_t)all);
    for (int64_t row = 0, c = wide; row < first->rows; row++)
        for (int64_t a = 0; a < wide; a++, c++)
            if (deepest_near(first, c) >= first->grain[c]) {
                k->run[k->n_runs++] = (int32_t)c;
                live += knots_in(first, k, row);
                k->near[c] = k->near[c - wide] = 1;
            }
    if (live + 2 * k->n_runs + 1 > INT32_MAX) return 0;
    for (int32_t n = 0; n < k->n_runs; n++) {
        int64_t c = k->run[n];
        k->ends[c].first = k->n_live;
        k->n_live += knots_in(first, k, c / wide - 1);
        k->ends[c].last = k->n_live - 1;
    }
    k->n_cells = k->n_live;
    for (int32_t n = 0; n < k->n_runs; n++) {
        int64_t c = k->run[n];
        if (!is_live(k, c - wide)) k->ends[c - wide].last = k->n_cells++;
        if (c + wide < to && !is_live(k, c + wide)) k->ends[c + wide].first = k->n_cells++;
    }
    return 1;
}

/* Join the knots of each live coarse cell to each other and to their neighbours, and start from the first
 * estimate. */
static void lay_knots(const struct ft_queues *q, const struct ft_queue_slots *s, const coarse *first,
                      fine *k) {
    int64_t wide = first->links, to = (first->rows + 1) * wide;
    for (int32_t n = 0; n < k->n_runs; n++) {
        int64_t c = k->run[n];
        struct ends own = k->ends[c], before = k->ends[c - wide], after = k->ends[c + wide];
        float grain = first->grain[c], pull = pull_of(s, grain, deepest_near(first, c));
        float limit = limit_near(first, c), x = first->x[c] < limit ? first->x[c] : limit;
        for (int32_t at = own.first; at <= own.last; at++) {
            k->cell[at] = (struct cell){x, pull, 0, 0, grain, at - 1, at + 1, 0, limit};
            k->s2[at] = first->s2[c];
        }
        k->cell[own.first].before = before.last;
        k->cell[own.last].after = c + wide < to ? after.first : k->n_cells;
        if (before.last >= k->n_live) {
            k->cell[before.last] = (struct cell){.x = first->x[c - wide], .grain = grain};
            k->s2[before.last] = first->s2[c - wide];
        }
        if (c + wide < to && after.first >= k->n_live) {
            pull = pull_of(s, grain, deepest_near(first, c + wide));
            k->cell[after.first] = (struct cell){.x = first->x[c + wide], .pull = pull, .grain = grain};
            k->s2[after.first] = first->s2[c + wide];
        }
        if (c < 2 * wide) { /* the first knot stands where the call before left the queue */
            float scale = grain + BEGIN_SHARE * first->x[c - wide];
            k->cell[own.first].pull = q->seen ? 1 / (scale * scale) : FREE;
        }
    }
    k->cell[k->n_cells] = (struct cell){0}; /* behind the end: it pulls nothing */
    k->s2[k->n_cells] = 0;
}

/* List the observations that see live knots, and where between which: a probe has waited in the queues before. */
static void place_hops(const struct ft_queue_slots *s, const coarse *first, fine *k) {
    int64_t wide = first->links;
    double knots_per_ns = s->knots / s->slot_ns;
    int32_t hops = 0;
    for (int64_t t = 0; t < s->slots; t++) {
        int64_t slot = t / s->merge;
        const float *waits = &first->x[(slot + 1) * wide];
        const uint8_t *near = &k->near[(slot + 1) * wide];
        for (int64_t i = s->slot_start[t]; i < s->slot_start[t + 1]; i++) {
            const int32_t *hop = &first->hop[first->from[i]];
            int64_t n = first->from[i + 1] - first->from[i];
            int any = 0;
            for (int64_t j = 0; j < n; j++) any |= near[hop[j]];
            if (!any) continue;
            float noise = (float)s->noise_ns[i];
            struct hot hot = {(float)s->delay_ns[i], 1 + noise * noise, (float)s->count[i], hops};
            double when = ((double)t + s->at[i]) * s->knots;
            int64_t at = slot;
            for (int64_t j = 0; j < n; j++) {
                int32_t a = hop[j];
                int64_t row = when < (double)(k->rows - 2) ? (int64_t)when : k->rows - 2;
                float late = when < (double)(row + 1) ? (float)(when - (double)row) : 1;
                when += waits[a] * knots_per_ns;
                while (row >= (at + 1) * k->per) at++;
                int64_t c = (at + 1) * wide + a, after = c;
                if (row + 1 == (at + 1) * k->per && at + 1 < first->rows) after += wide;
                int live = is_live(k, c);
                if (!live && !is_live(k, after)) {
                    float own = first->x[c] + late * (first->x[after] - first->x[c]);
                    hot.delay -= own;
                    hot.var += unrest(first->grain[a], own);
                    continue;
                }
                int32_t cell = live ? k->ends[c].first + (int32_t)(row - at * k->per) : k->ends[c].last;
                k->hop[hops++] = (struct hop){
                    cell, live && cell < k->ends[c].last ? cell + 1 : k->ends[after].first, late};
            }
            if (hops > hot.from) k->hot[k->n_hot++] = hot;
        }
    }
    k->hot[k->n_hot].from = hops;
}

/* Lay out the knots, `s->knots` a slot and one behind the last. Returns 0 without memory. */
static int lay_fine(struct ft_queues *q, const struct ft_queue_slots *s, const coarse *first, fine *k) {
    struct workspaces workspaces = {.buffer = q->buffer[1]};
    int64_t max_links = first->start[(first->rows + 2) * first->links];
    memset(k, 0, sizeof *k);
    k->rows = s->slots * s->knots + 1;
    k->per = (int64_t)s->knots * s->merge;
    if (2 * max_links > INT32_MAX || !number_knots(first, &workspaces, k)) return 0;
    k->cell = need(&workspaces, k->n_cells + 1, sizeof *k->cell);
    k->s2 = need(&workspaces, k->n_cells + 1, sizeof *k->s2);
    k->weight = need(&workspaces, k->n_cells, sizeof *k->weight);
    k->member = need(&workspaces, 2 * max_links, sizeof *k->member);
    k->hop = need(&workspaces, max_links, sizeof *k->hop);
    k->hot = need(&workspaces, s->observations + 1, sizeof *k->hot);
    k->o = need(&workspaces, s->observations, sizeof *k->o);
    k->doubt = need(&workspaces, s->observations, sizeof *k->doubt);
    k->awake = need(&workspaces, k->n_live, sizeof *k->awake);
    k->moved = need(&workspaces, k->n_live, 1);
    k->row = need(&workspaces, 2 * k->per + 2, sizeof *k->row);
    if (workspaces.short_of) return 0;
    lay_knots(q, s, first, k);
    place_hops(s, first, k);
    int32_t hops = k->hot[k->n_hot].from, from = 0;
    for (int32_t h = 0; h < hops;
         h++) { /* counting sort: counts, then ends, then, filled from behind, beginnings */
        k->cell[k->hop[h].cell].from++;
        k->cell[k->hop[h].after].from++;
    }
    for (int32_t c = 0; c <= k->n_cells; c++) from = k->cell[c].from += from;
    for (int32_t i = k->n_hot - 1; i >= 0; i--)
        for (int32_t h = k->hot[i].from; h < k->hot[i + 1].from; h++) {
            struct hop hop = k->hop[h];
            k->member[--k->cell[hop.cell].from] = (struct member){i, 1 - hop.late};
            k->member[--k->cell[hop.after].from] = (struct member){i, hop.late};
        }
    return 1;
}

/* Update the residuals of the observations, and their weights. */
static void weigh_fine(const struct ft_queue_slots *s, const coarse *first, fine *k) {
    memset(k->weight, 0, (size_t)k->n_cells * sizeof *k->weight);
    for (int32_t i = 0; i < k->n_hot; i++) {
        const struct hop *from = &k->hop[k->hot[i].from], *to = &k->hop[k->hot[i + 1].from];
        struct hot hot = k->hot[i];
        for (const struct hop *h = from; h < to; h++) {
            struct cell *c = &k->cell[h->cell];
            float own = c->x + h->late * (k->cell[h->after].x - c->x);
            hot.delay -= own;
            hot.var += unrest(c->grain, own);
        }
        float w = hot.count / hot.var;
        for (const struct hop *h = from; h < to; h++) {
            k->weight[h->cell] += w * (1 - h->late) * (1 - h->late);
            k->weight[h->after] += w * h->late * h->late;
        }
        k->o[i] = (struct seen){w, hot.delay};
    }
    for (int32_t n = 0; n < k->n_runs; n++) {
        int64_t a = k->run[n] % first->links;
        float alone = (float)s->slot_ns / ((float)s->knots * APART * first->grain[k->run[n]]);
        for (int32_t c = k->ends[k->run[n]].first; c <= k->ends[k->run[n]].last; c++) {
            struct cell *own = &k->cell[c];
            float lean = (alone < 1 ? alone : 1) / (own->x + first->mean[a] + own->grain);
            own->lean = k->weight[c] == 0 ? 0 : lean;
            own->give = 1 / (k->weight[c] + own->pull + k->cell[own->after].pull);
        }
    }
}

/* Settle one knot. Returns whether it moved by more than it may at rest. */
static inline int settle_fine(fine *k, int32_t c) {
    struct cell *own = &k->cell[c];
    const struct cell *before = &k->cell[own->before], *after = &k->cell[own->after];
    const struct member *from = &k->member[own->from], *to = &k->member[own[1].from];
    float old = own->x, sum = own->pull * (before->x - old) + after->pull * (after->x - old) - own->lean;
    for (const struct member *m = from; m < to; m++) sum += k->o[m->i].w * k->o[m->i].r * m->share;
    float x = old + sum * own->give;
    x = x > own->limit ? own->limit : x > 0 ? x : 0;
    float step = x - old;
    if (fabsf(step) <= TINY * own->grain) return 0;
    own->x = x;
    for (const struct member *m = from; m < to; m++) k->o[m->i].r -= step * m->share;
    return fabsf(step) > STILL * (own->grain + 0.1F * x);
}

/* Sweep forwards and backwards in time. */
static void descend_fine(const struct ft_queue_slots *s, const coarse *first, fine *k, int64_t *sweeps) {
    int32_t n_awake = 0;
    weigh_fine(s, first, k);
    for (int sweep = 0; sweep < s->sweeps; ++*sweeps, sweep = next_sweep(sweep, n_awake, s->sweeps)) {
        int lazy = sweep % LAZY != 0;
        int32_t cells = lazy ? n_awake : k->n_live;
        for (int32_t n = 0; n < cells; n++) {
            int32_t at = sweep % 2 ? cells - 1 - n : n, c = lazy ? k->awake[at] : at;
            k->moved[c] = (uint8_t)settle_fine(k, c);
        }
        n_awake = 0;
        for (int32_t n = 0; n < cells; n++) {
            int32_t c = lazy ? k->awake[n] : n;
            k->awake[n_awake] = c;
            n_awake += k->moved[c];
        }
    }
}

/* Copy so many knots of a coarse cell, from its `skip`th on. */
static float *copy_knots(const coarse *first, const fine *k, int64_t c, int64_t skip, int64_t knots,
                         float *to) {
    for (int64_t n = skip; n < skip + knots; n++)
        *to++ = is_live(k, c) ? k->cell[k->ends[c].first + n].x : first->x[c];
    return to;
}

/* Take the steps' scale from the results within half a coarse slot. */
static void renew_pull(const struct ft_queue_slots *s, const coarse *first, fine *k) {
    int64_t wide = first->links, near = (k->per + 1) / 2;
    for (int32_t n = 0; n < k->n_runs; n++) {
        int64_t c = k->run[n], row = c / wide - 1, knots = knots_in(first, k, row), own = row ? near : 0;
        float *end = k->row;
        if (row) end = copy_knots(first, k, c - wide, k->per - near, near, end);
        end = copy_knots(first, k, c, 0, knots, end);
        if (row + 1 < first->rows) {
            int64_t after = knots_in(first, k, row + 1);
            end = copy_knots(first, k, c + wide, 0, after < near ? after : near, end);
        }
        for (int64_t at = row ? 0 : 1; at < knots; at++) { /* the first of all hangs on the call before */
            const float *x = &k->row[own + at < near ? 0 : own + at - near], *last = &k->row[own + at + near];
            float deepest = 0;
            for (; x <= last && x < end; x++) deepest = larger(deepest, *x);
            k->cell[k->ends[c].first + at].pull = pull_of(s, first->grain[c], deepest);
        }
    }
}

static void errors_fine(const coarse *first, fine *k) {
    for (int32_t n = 0; n < k->n_runs; n++) {
        int64_t c = k->run[n], a = c % first->links;
        for (int32_t at = k->ends[c].first; at <= k->ends[c].last; at++) {
            float spread = k->cell[at].x + first->mean[a] + k->cell[at].grain;
            k->cell[at].lean = 1 / (spread * spread); /* known without a probe */
            k->s2[at] = spread * spread;
        }
        if (c < 2 * first->links) k->s2[k->cell[k->ends[c].first].before] = first->grain[a] * first->grain[a];
    }
    for (int round = 0; round < SIGMA_ROUNDS; round++) {
        for (int32_t i = 0; i < k->n_hot; i++) {
            float noise = 1 / k->o[i].w, rest = noise;
            for (int32_t h = k->hot[i].from; h < k->hot[i + 1].from; h++) {
                float late = k->hop[h].late;
                rest +=
                    (1 - late) * (1 - late) * k->s2[k->hop[h].cell] + late * late * k->s2[k->hop[h].after];
            }
            k->doubt[i] = (struct doubt){noise, rest};
        }
        for (int32_t c = 0; c < k->n_live; c++) {
            const struct cell *own = &k->cell[c], *after = &k->cell[own->after];
            float s2 = k->s2[c], known = own->lean;
            for (int32_t m = own->from; m < own[1].from; m++) {
                float share2 = k->member[m].share * k->member[m].share;
                struct doubt d = k->doubt[k->member[m].i];
                known += share2 / larger(d.rest - share2 * s2, d.noise);
            }
            known += own->pull / (1 + own->pull * k->s2[own->before]);
            known += after->pull / (1 + after->pull * k->s2[own->after]);
            k->s2[c] = 1 / known;
        }
    }
}

/* Learn where each link's queue usually stands, and where it stands now. */
static void learn(struct ft_queues *q, const struct ft_queue_slots *s, const coarse *first, const fine *k) {
    int64_t wide = first->links;
    double gain = 1 - pow(1 - FORGET, (double)s->slots / s->merge);
    for (int64_t a = 0; a < wide; a++) {
        double sum = 0;
        for (int64_t row = 0; row < first->rows; row++) {
            int64_t c = (row + 1) * wide + a;
            if (!is_live(k, c)) sum += (double)first->x[c] * knots_in(first, k, row);
            for (int32_t at = k->ends[c].first; is_live(k, c) && at <= k->ends[c].last; at++)
                sum += k->cell[at].x;
        }
        int32_t link = first->active[a];
        int64_t end = first->rows * wide + a;
        q->mean_ns[link] += gain * (sum / (double)k->rows - q->mean_ns[link]);
        q->last_ns[link] = is_live(k, end) ? k->cell[k->ends[end].last].x : first->x[end];
    }
}

/* Tell one slot of a link: the mean of straight lines between knots. */
static void report(const struct ft_queues *q, struct ft_queue_slots *s, const coarse *first, const fine *k,
                   int64_t t, int64_t a) {
    float x = 0, s2 = 0;
    for (int n = 0; n <= s->knots; n++) {
        int64_t at = t * s->knots + n, row = at / k->per < first->rows ? at / k->per : first->rows - 1;
        int64_t c = (row + 1) * first->links + a, cell = k->ends[c].first + at - row * k->per;
        float share = (n == 0 || n == s->knots ? 0.5F : 1.0F) / (float)s->knots;
        x += share * (is_live(k, c) ? k->cell[cell].x : first->x[c]);
        s2 += share * (is_live(k, c) ? k->s2[cell] : first->s2[c]);
    }
    s->queue_ns[t * q->links + first->active[a]] = x;
    if (s->sigma_ns) s->sigma_ns[t * q->links + first->active[a]] = sqrtf(s2);
}

/* Tell all slots: as the first estimate has it, and more closely where knots are live. */
static void report_all(const struct ft_queues *q, struct ft_queue_slots *s, const coarse *first,
                       const fine *k) {
    int64_t wide = first->links;
    for (int64_t t = 0; t < s->slots; t++) {
        int64_t row = (t / s->merge + 1) * wide;
        for (int64_t a = 0; a < wide; a++) s->queue_ns[t * q->links + first->active[a]] = first->x[row + a];
        for (int64_t a = 0; s->sigma_ns && a < wide; a++)
            s->sigma_ns[t * q->links + first->active[a]] = sqrtf(first->s2[row + a]);
    }
    for (int32_t n = 0; n < k->n_runs; n++) {
        int64_t a = k->run[n] % wide, t = (k->run[n] / wide - 1) * s->merge, end = t + s->merge;
        for (t = t ? t - 1 : 0; t < end && t < s->slots;
             t++) /* the slot before ends at this one's first knot */
            report(q, s, first, k, t, a);
    }
}

int ft_queues_solve(struct ft_queues *q, struct ft_queue_slots *s) {
    coarse first;
    fine k;
    s->sweeps_done = 0;
    memset(s->queue_ns, 0, (size_t)(s->slots * q->links) * sizeof(double));
    if (s->sigma_ns) memset(s->sigma_ns, 0, (size_t)(s->slots * q->links) * sizeof(double));
    if (!s->slots) return 1;
    if (!solve_coarse(q, s, &first, &s->sweeps_done) || !lay_fine(q, s, &first, &k)) return 0;
    for (int round = 0; round < s->rounds; round++) {
        descend_fine(s, &first, &k, &s->sweeps_done);
        renew_pull(s, &first, &k);
    }
    if (s->sigma_ns) errors_fine(&first, &k);
    report_all(q, s, &first, &k);
    learn(q, s, &first, &k);
    q->seen += s->slots;
    return 1;
}

void ft_queues_free(struct ft_queues *q) {
    for (int n = 0; n < 2 * FT_QUEUE_WORKSPACES; n++)
        free(q->buffer[n / FT_QUEUE_WORKSPACES][n % FT_QUEUE_WORKSPACES].at);
}
