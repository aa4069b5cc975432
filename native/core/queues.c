/* Queues of links from delays of the paths that cross them, slot by slot.
 *
 * What is known: y_i, the mean delay above the floor of the n_i probes that took route i in slot t. What is wanted:
 * x_tl, the mean queue of link l in slot t, in ns of waiting, not negative, mostly near zero:
 *
 *   y_i = sum of x_tl over the links of i + e_i,     var e_i = (noise_i^2 + sum of v_l(x_tl)) / n_i
 *
 * A probe sees the queue of one instant, and the queue moves within a slot: so v. In a stationary queue the waiting
 * time's variance is about its mean squared, and at low load, where a probe finds nothing or the rest of one packet
 * of time s, two thirds of s times its mean (Kleinrock, Queueing Systems I, 5.7: M/D/1). Hence
 *
 *   v_l(x) = rough * x^2 + 2/3 * s_l * x
 *
 * with `rough` small, since slots are short. It is what keeps the unrest of a deep queue from being explained by its
 * neighbours: a route through a deep queue says little about the other links of that route. As v grows with x, a
 * wrong answer can forgive itself: so the first answer is found with even weights, which no link can bend.
 *
 * Slots follow each other: a queue walks, with steps as large as it is deep. Over the few slots of a gap without
 * probes that gives the straight line between what was seen before and after, which is about the mean of all the
 * ways that a burst and its draining can have gone. So
 *
 *   x_tl - x_(t-1)l ~ N(0, p),   p = (s_l + a * deepest nearby)^2
 *
 * with `deepest nearby` from a first estimate in slots `merge` times as long, where every link has probes enough to
 * stand alone; there the step is Student's t instead, whose variance is found with x (Lange, Little and Taylor,
 * 1989), and bursts may come from nothing.
 *
 * And queues are empty unless there is a reason: x has a prior of density 1/(x + mean_l), the l1 term of sparse
 * reconstruction with a weight that lets go of what is really there (Candes, Wakin and Boyd, 2008). Together:
 *
 *   minimise sum_i w_i/2 (y_i - sum x)^2 + sum_tl (x_tl - x_(t-1)l)^2 / (2 p_tl) + sum_tl lean_tl x_tl,  x >= 0
 *
 * by coordinate descent over links and slots, forwards and backwards in time in turn; it converges since the
 * terms that are not smooth (the bound at 0) are separable (Tseng, 2001). Weights are renewed `rounds` times. A call
 * starts from where the last ended: the first slot hangs on `last_ns`.
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

enum { SIGMA_ROUNDS = 3, LAZY = 3 };
enum { EVEN, COARSE, FINE }; /* what weights and steps are known by */

static const double NU = 1, COARSE_SHARE = 0.1, SHARE = 0.8, LOOSE = 100, EVEN_GRAINS = 5, ROUGH = 0.005;
static const double FORGET = 0.02, STILL = 0.1;

typedef struct {
    int64_t n_active, cells;
    int32_t *active;      /* [n_active] links */
    int64_t *at;          /* [observations + 1] first hop of each observation */
    int32_t *hop;         /* links of each observation, as numbers of active links */
    int64_t *cell_start;  /* [cells + 1]; cell = slot * n_active + number */
    int32_t *cell_member; /* observations of each cell */
    double *x, *s2, *p;   /* [cells]; p of a slot is between it and the one before */
    uint8_t *still;      /* [cells] left as the first estimate has them: nothing nearby is a packet deep */
    double *weight, *lean, *scale; /* [cells] sum of w; pull towards 0; standard deviation of a step */
    struct seen {
        double w, r;
    } *o;                 /* [observations] weight and what is left over */
    double *var;          /* [observations] */
    double *rest;         /* [observations] */
    void *block;
} work;

static int prepare(const struct ft_queues *q, const struct ft_queue_slots *s, work *k)
{
    int64_t hops = 0, n = s->observations;
    memset(k, 0, sizeof *k);
    for (int64_t i = 0; i < n; i++)
        hops += q->route_start[s->route[i] + 1] - q->route_start[s->route[i]];
    int32_t *number = malloc((size_t)(q->links + 1) * sizeof *number);
    k->active = malloc((size_t)(q->links + 1) * sizeof *k->active);
    k->at = malloc((size_t)(n + 1) * sizeof *k->at);
    k->hop = malloc((size_t)(hops + 1) * sizeof *k->hop);
    k->cell_member = malloc((size_t)(hops + 1) * sizeof *k->cell_member);
    if (!number || !k->active || !k->at || !k->hop || !k->cell_member) {
        free(number);
        return 0;
    }
    memset(number, 0xff, (size_t)q->links * sizeof *number);
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        k->at[i] = at;
        for (int64_t j = q->route_start[s->route[i]]; j < q->route_start[s->route[i] + 1]; j++) {
            int32_t link = q->route_link[j];
            if (number[link] < 0) {
                number[link] = (int32_t)k->n_active;
                k->active[k->n_active++] = link;
            }
            k->hop[at++] = number[link];
        }
    }
    k->at[n] = at;
    free(number);
    k->cells = k->n_active * s->slots;
    k->cell_start = calloc((size_t)(k->cells + 2), sizeof *k->cell_start);
    k->still = calloc((size_t)k->cells + 1, 1);
    k->block = calloc((size_t)(6 * k->cells + 4 * n + 8), sizeof(double));
    if (!k->cell_start || !k->still || !k->block)
        return 0;
    k->x = k->block;
    k->s2 = k->x + k->cells;
    k->p = k->s2 + k->cells;
    k->weight = k->p + k->cells;
    k->lean = k->weight + k->cells;
    k->scale = k->lean + k->cells;
    k->o = (struct seen *)(k->scale + k->cells);
    k->var = (double *)(k->o + n);
    k->rest = k->var + n;
    int64_t *start = k->cell_start + 1; /* counting sort: counts, then ends, shifted by one */
    for (int64_t t = 0; t < s->slots; t++)
        for (int64_t i = s->slot_start[t]; i < s->slot_start[t + 1]; i++)
            for (int64_t j = k->at[i]; j < k->at[i + 1]; j++)
                start[t * k->n_active + k->hop[j] + 1]++;
    for (int64_t c = 0; c < k->cells; c++)
        start[c + 1] += start[c];
    for (int64_t t = 0; t < s->slots; t++)
        for (int64_t i = s->slot_start[t]; i < s->slot_start[t + 1]; i++)
            for (int64_t j = k->at[i]; j < k->at[i + 1]; j++)
                k->cell_member[start[t * k->n_active + k->hop[j]]++] = (int32_t)i;
    return 1;
}

static void release(work *k)
{
    free(k->active);
    free(k->at);
    free(k->hop);
    free(k->cell_start);
    free(k->cell_member);
    free(k->still);
    free(k->block);
}

/* Variance of one probe around the slot's mean, by the queue that it crosses. */
static inline double unrest(const struct ft_queues *q, int32_t link, double x)
{
    return ROUGH * x * x + 0.667 * q->packet_ns[link] * x;
}

static void weigh(const struct ft_queues *q, const struct ft_queue_slots *s, work *k, int how)
{
    int64_t a_n = k->n_active;
    for (int64_t t = 0; t < s->slots; t++) {
        const double *x = k->x + t * a_n;
        for (int64_t i = s->slot_start[t]; i < s->slot_start[t + 1]; i++) {
            double var = s->noise_ns[i] * s->noise_ns[i], sum = 0;
            for (int64_t j = k->at[i]; j < k->at[i + 1]; j++) {
                double grain = q->packet_ns[k->active[k->hop[j]]], own = x[k->hop[j]];
                var += how == EVEN ? EVEN_GRAINS * EVEN_GRAINS * grain * grain : unrest(q, k->active[k->hop[j]], own);
                sum += own;
            }
            var += 1;
            k->var[i] = var / s->count[i];
            k->o[i].w = s->count[i] / var;
            k->o[i].r = s->delay_ns[i] - sum;
        }
    }
    for (int64_t t = 0; t < s->slots; t++) {
        for (int64_t a = 0; a < a_n; a++) {
            int64_t c = t * a_n + a;
            double grain = q->packet_ns[k->active[a]];
            double before = t ? k->x[c - a_n] : q->last_ns[k->active[a]];
            double step = k->x[c] - before, base = grain + COARSE_SHARE * (k->x[c] + before);
            double p = how == EVEN   ? LOOSE * LOOSE * grain * grain
                       : how == FINE ? k->scale[c] * k->scale[c]
                                     : (NU * base * base + step * step) / (NU + 1);
            if (!t && !q->seen)
                p = 1e18;
            k->p[c] = p;
            if (k->still[c])
                continue;
            double weight = 0;
            for (int64_t m = k->cell_start[c]; m < k->cell_start[c + 1]; m++)
                weight += k->o[k->cell_member[m]].w;
            k->weight[c] = weight;
            k->lean[c] = weight == 0 ? 0 : how == EVEN ? 0.01 / grain : 1 / (k->x[c] + q->mean_ns[k->active[a]] + grain);
        }
    }
}

/* One pass over a slot's cells. Returns the largest change in terms of the cell's grain. */
static double pass(const struct ft_queues *q, const struct ft_queue_slots *s, work *k, int64_t t, int lazy)
{
    int64_t a_n = k->n_active;
    double most = 0;
    for (int64_t a = 0; a < a_n; a++) {
        int64_t c = t * a_n + a;
        if (k->still[c] || (lazy && k->x[c] == 0))
            continue;
        int32_t link = k->active[a];
        double old = k->x[c], before = t ? k->x[c - a_n] : q->last_ns[link], grain = q->packet_ns[link];
        double pull = 1 / k->p[c], up = before * pull, pulls = pull + k->weight[c];
        if (t + 1 < s->slots) {
            double next = 1 / k->p[c + a_n];
            up += k->x[c + a_n] * next;
            pulls += next;
        }
        double sum = 0;
        int64_t from = k->cell_start[c], to = k->cell_start[c + 1];
        for (int64_t m = from; m < to; m++) {
            const struct seen *o = &k->o[k->cell_member[m]];
            sum += o->w * o->r;
        }
        double x = (sum + k->weight[c] * old + up - k->lean[c]) / pulls;
        x = x > 0 ? x : 0;
        double step = x - old;
        if (step == 0)
            continue;
        k->x[c] = x;
        for (int64_t m = from; m < to; m++)
            k->o[k->cell_member[m]].r -= step;
        step = fabs(step) / (grain + 0.1 * x);
        most = step > most ? step : most;
    }
    return most;
}

static void descend(const struct ft_queues *q, const struct ft_queue_slots *s, work *k, int how, int64_t *sweeps)
{
    weigh(q, s, k, how);
    for (int sweep = 0; sweep < s->sweeps; sweep++) {
        double most = 0;
        int lazy = sweep % LAZY != 0; /* what is empty mostly stays so */
        for (int64_t n = 0; n < s->slots; n++) {
            double moved = pass(q, s, k, sweep % 2 ? s->slots - 1 - n : n, lazy);
            most = moved > most ? moved : most;
        }
        ++*sweeps;
        if (most < STILL) {
            if (!lazy)
                break;
            sweep += LAZY - 1 - sweep % LAZY; /* what is empty is looked at once more */
        }
    }
}

static void errors(const struct ft_queues *q, const struct ft_queue_slots *s, work *k)
{
    int64_t a_n = k->n_active;
    for (int64_t c = 0; c < k->cells; c++) {
        if (k->still[c])
            continue;
        double grain = q->packet_ns[k->active[c % a_n]], most = k->x[c] + q->mean_ns[k->active[c % a_n]] + grain;
        k->s2[c] = most * most;
    }
    for (int round = 0; round < SIGMA_ROUNDS; round++) {
        for (int64_t t = 0; t < s->slots; t++)
            for (int64_t i = s->slot_start[t]; i < s->slot_start[t + 1]; i++) {
                double rest = k->var[i];
                for (int64_t j = k->at[i]; j < k->at[i + 1]; j++)
                    rest += k->s2[t * a_n + k->hop[j]];
                k->rest[i] = rest;
            }
        for (int64_t c = 0; c < k->cells; c++) {
            if (k->still[c])
                continue;
            double own = k->s2[c], grain = q->packet_ns[k->active[c % a_n]];
            double scale = k->x[c] + q->mean_ns[k->active[c % a_n]] + grain, known = 1 / (scale * scale);
            for (int64_t m = k->cell_start[c]; m < k->cell_start[c + 1]; m++) {
                double rest = k->rest[k->cell_member[m]] - own;
                double least = k->var[k->cell_member[m]];
                known += 1 / (rest > least ? rest : least);
            }
            if (c >= a_n)
                known += 1 / (k->p[c] + k->s2[c - a_n]);
            else
                known += 1 / (k->p[c] + grain * grain);
            if (c + a_n < k->cells)
                known += 1 / (k->p[c + a_n] + k->s2[c + a_n]);
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
        for (int64_t t = 0; t < s->slots; t++)
            sum += k->x[t * k->n_active + a];
        double *mean = &q->mean_ns[k->active[a]];
        *mean += gain * (sum / (double)s->slots - *mean);
    }
}

/* Solve in slots `merge` times as long, where each link has probes enough to stand alone, into k->x of the fine
 * slots. Returns 0 without memory. */
static int coarse(struct ft_queues *q, const struct ft_queue_slots *s, work *k, int64_t *sweeps)
{
    struct ft_queue_slots c = *s;
    work ck;
    c.slots = (s->slots + s->merge - 1) / s->merge;
    c.slot_ns = s->slot_ns * s->merge;
    int64_t *start = malloc((size_t)(c.slots + 1) * sizeof *start);
    if (!start)
        return 0;
    for (int64_t t = 0; t <= c.slots; t++)
        start[t] = s->slot_start[t * s->merge < s->slots ? t * s->merge : s->slots];
    c.slot_start = start;
    int done = prepare(q, &c, &ck);
    if (done) {
        for (int64_t t = 0; t < c.slots; t++)
            for (int64_t a = 0; a < ck.n_active; a++)
                ck.x[t * ck.n_active + a] = q->last_ns[ck.active[a]];
        descend(q, &c, &ck, EVEN, sweeps);
        descend(q, &c, &ck, COARSE, sweeps);
        weigh(q, &c, &ck, COARSE);
        errors(q, &c, &ck);
        for (int64_t t = 0; t < s->slots; t++)
        {
            int64_t own = t / s->merge, from = own ? own - 1 : 0, to = own + 1 < c.slots ? own + 1 : own;
            for (int64_t a = 0; a < k->n_active; a++) {
                double most = 0;
                for (int64_t u = from; u <= to; u++)
                    most = fmax(most, ck.x[u * ck.n_active + a]);
                k->x[t * k->n_active + a] = ck.x[own * ck.n_active + a];
                k->scale[t * k->n_active + a] = q->packet_ns[k->active[a]] + SHARE * most;
                k->s2[t * k->n_active + a] = ck.s2[own * ck.n_active + a];
                k->still[t * k->n_active + a] = most < q->packet_ns[k->active[a]];
            }
        }
    }
    release(&ck);
    free(start);
    return done;
}

int ft_queues_solve(struct ft_queues *q, struct ft_queue_slots *s)
{
    work k;
    s->sweeps_done = 0;
    memset(s->queue_ns, 0, (size_t)(s->slots * q->links) * sizeof(double));
    memset(s->sigma_ns, 0, (size_t)(s->slots * q->links) * sizeof(double));
    if (!prepare(q, s, &k) || !coarse(q, s, &k, &s->sweeps_done)) {
        release(&k);
        return 0;
    }
    int64_t a_n = k.n_active;
    for (int round = 0; round < s->rounds; round++)
        descend(q, s, &k, FINE, &s->sweeps_done);
    weigh(q, s, &k, FINE);
    errors(q, s, &k);
    learn(q, s, &k);
    for (int64_t t = 0; t < s->slots; t++)
        for (int64_t a = 0; a < a_n; a++) {
            s->queue_ns[t * q->links + k.active[a]] = k.x[t * a_n + a];
            s->sigma_ns[t * q->links + k.active[a]] = sqrt(k.s2[t * a_n + a]);
        }
    for (int64_t a = 0; a < a_n && s->slots; a++)
        q->last_ns[k.active[a]] = k.x[(s->slots - 1) * a_n + a];
    q->seen += s->slots;
    release(&k);
    return 1;
}
