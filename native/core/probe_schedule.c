/* Plans a round of probe slots for all NICs, so that every link is probed at even intervals.
 *
 * Between two probes of a queue, g apart, its depth is interpolated. The queue moves like a random walk, so the
 * variance of the error grows as g in the middle and, summed over the gap, as g^2. The error of all links together is
 * the sum of their squared gaps, and with random gaps half of that sum comes from the few longest. A schedule makes
 * gaps even: each slot of each NIC, in the order of time, takes the path that reduces the most of
 *
 *   sum over the links of the path, out and back, of ((now - last probe) / g0)^2  +  c ((now - last slot of the path) / W)^2
 *
 * with g0 the mean time between probes of a link and W the time in which the NIC takes all of its paths once. The
 * second term keeps every path in the round, because clocks need all pairs. With c = 6, about the number of links of a
 * path, a pair has between half and one and a half times its share, and the mean squared gap is a tenth larger than
 * without. The choice is greedy. Time is in slots, and a random draw decides between equal paths.
 *
 * The round is planned RUNS times, each from the end of the last, so that its end fits its beginning. */
#include "probe_schedule.h"

#include <stdlib.h>

enum { RUNS = 2 };
static const double MAX_PATHS_TOTAL = 8; /* a gap counts for so many mean ones at most */
static const double PATH_SPREAD = 6;     /* c */
static const double LONG_AGO = -1e9;

static inline uint64_t draw(uint64_t *state) /* splitmix64, Steele, Lea and Flood (2014) */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

struct slot {
    double phase;
    int32_t nic;
};

static int in_order(const void *a, const void *b) {
    const struct slot *x = a, *y = b;
    if (x->phase != y->phase) return x->phase < y->phase ? -1 : 1;
    return x->nic < y->nic ? -1 : x->nic > y->nic;
}

static inline double squared(double gap) {
    gap = gap < MAX_PATHS_TOTAL ? gap : MAX_PATHS_TOTAL;
    return gap * gap;
}

/* Mean probes of a link per slot: the length of each NIC's paths, over the links that any crosses. */
static double probes_per_slot(const struct ft_schedule_plan_input *t, uint8_t *crossed) {
    double probes = 0, links = 0;
    for (int32_t n = 0; n < t->nics; n++) {
        int64_t first = t->path_start[n], end = t->path_start[n + 1];
        probes += (double)t->probes_per_slot * (double)(t->link_start[end] - t->link_start[first]) /
                  (double)(end - first);
    }
    for (int64_t h = 0; h < t->link_start[t->path_start[t->nics]]; h++) {
        links += !crossed[t->link[h]];
        crossed[t->link[h]] = 1;
    }
    return links > 0 ? probes / links : 1;
}

struct memory {
    double *looked, *taken; /* [links], [paths] time of the last probe, in slots */
    double per_gap;         /* mean looks at a link in a turn */
    uint64_t draws;
};

/* The way that a NIC takes now. */
static int64_t choose(const struct ft_schedule_plan_input *t, struct memory *m, int32_t nic, double now) {
    int64_t first = t->path_start[nic], end = t->path_start[nic + 1], best = first;
    double per_age = (double)t->probes_per_slot / (double)(end - first), highest = -1;
    for (int64_t w = first; w < end; w++) {
        double age = (now - m->taken[w]) * per_age, score = PATH_SPREAD * age * age;
        for (int64_t h = t->link_start[w]; h < t->link_start[w + 1]; h++)
            score += squared((now - m->looked[t->link[h]]) * m->per_gap);
        score *= 1 + 1e-3 * (double)(draw(&m->draws) >> 11) * 0x1p-53;
        if (score > highest) {
            highest = score;
            best = w;
        }
    }
    m->taken[best] = now;
    for (int64_t h = t->link_start[best]; h < t->link_start[best + 1]; h++) m->looked[t->link[h]] = now;
    return best - first;
}

int ft_schedule_plan(struct ft_schedule_plan_input *t) {
    int64_t paths = t->path_start[t->nics];
    struct memory m = {.draws = t->seed};
    m.looked = malloc((size_t)(t->links + 1) * sizeof *m.looked);
    m.taken = malloc((size_t)(paths + 1) * sizeof *m.taken);
    uint8_t *crossed = calloc((size_t)t->links + 1, 1);
    struct slot *order = malloc((size_t)(t->nics + 1) * sizeof *order);
    int done = m.looked != NULL && m.taken != NULL && crossed != NULL && order != NULL;
    if (done) {
        m.per_gap = probes_per_slot(t, crossed);
        for (int32_t n = 0; n < t->nics; n++) order[n] = (struct slot){t->phase[n], n};
        qsort(order, (size_t)t->nics, sizeof *order, in_order);
        for (int32_t l = 0; l < t->links; l++) m.looked[l] = LONG_AGO;
        for (int64_t w = 0; w < paths; w++) m.taken[w] = LONG_AGO;
    }
    for (int32_t slot = 0; done && slot < RUNS * t->slots; slot++)
        for (int32_t at = 0; at < t->nics; at++) {
            int32_t nic = order[at].nic;
            int32_t *out = t->path + ((int64_t)nic * t->slots + slot % t->slots) * t->probes_per_slot;
            for (int32_t probe = 0; probe < t->probes_per_slot; probe++)
                out[probe] = (int32_t)choose(t, &m, nic, slot + order[at].phase);
        }
    free(m.looked);
    free(m.taken);
    free(crossed);
    free(order);
    return done;
}
