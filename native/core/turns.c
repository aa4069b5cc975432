/* A round of turns for a fleet's probes, so that every link is looked at in even steps.
 *
 * A queue that nobody looks at for a time g is guessed from the looks before and after. It moves like a random walk,
 * so the guess is off by a variance that grows as g in the middle and, summed over the gap, as g^2. What all links
 * together are off by is the sum of their gaps squared, and for gaps as they come at random half of that sum lies in
 * the few longest. With turns, probes can be laid so that gaps are even: each turn of each NIC, in the order of time,
 * takes the way (peer and path) that ends the most of it,
 *
 *   sum over the links of the way, out and back, of ((now - last look) / g0)^2  +  c ((now - last turn of the way) / W)^2
 *
 * with g0 the mean time between looks at a link and W the time in which the NIC takes all of its ways once. The second
 * term keeps every way in the round: clocks need all pairs. With c = 6, about the links of a way, a pair has between
 * half and one and a half times its share, and the mean squared gap is a tenth larger than without. A greedy choice;
 * the time is in turns, and equal choices are drawn for.
 *
 * The round is planned RUNS times over, each from where the last ended, so that it begins as it ends.
 */
#include "turns.h"

#include <stdlib.h>

enum { RUNS = 2 };
static const double MOST = 8; /* a gap counts for so many mean ones at most */
static const double WAYS = 6; /* c */
static const double LONG_AGO = -1e9;

static inline uint64_t draw(uint64_t *state) /* splitmix64, Steele, Lea and Flood (2014) */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

struct turn {
    double phase;
    int32_t nic;
};

static int in_order(const void *a, const void *b) {
    const struct turn *x = a, *y = b;
    if (x->phase != y->phase) return x->phase < y->phase ? -1 : 1;
    return x->nic < y->nic ? -1 : x->nic > y->nic;
}

static inline double squared(double gap) {
    gap = gap < MOST ? gap : MOST;
    return gap * gap;
}

/* Mean looks at a link in a turn: the length of each NIC's ways, over the links that any crosses. */
static double looks_a_turn(const struct ft_turns *t, uint8_t *crossed) {
    double looks = 0, links = 0;
    for (int32_t n = 0; n < t->nics; n++) {
        int64_t first = t->way_start[n], end = t->way_start[n + 1];
        looks += (double)t->shots * (double)(t->hop_start[end] - t->hop_start[first]) / (double)(end - first);
    }
    for (int64_t h = 0; h < t->hop_start[t->way_start[t->nics]]; h++) {
        links += !crossed[t->hop[h]];
        crossed[t->hop[h]] = 1;
    }
    return links > 0 ? looks / links : 1;
}

struct memory {
    double *looked, *taken; /* [links], [ways] when last, in turns */
    double per_gap;         /* mean looks at a link in a turn */
    uint64_t draws;
};

/* The way that a NIC takes now. */
static int64_t choose(const struct ft_turns *t, struct memory *m, int32_t nic, double now) {
    int64_t first = t->way_start[nic], end = t->way_start[nic + 1], best = first;
    double per_age = (double)t->shots / (double)(end - first), most = -1;
    for (int64_t w = first; w < end; w++) {
        double age = (now - m->taken[w]) * per_age, score = WAYS * age * age;
        for (int64_t h = t->hop_start[w]; h < t->hop_start[w + 1]; h++)
            score += squared((now - m->looked[t->hop[h]]) * m->per_gap);
        score *= 1 + 1e-3 * (double)(draw(&m->draws) >> 11) * 0x1p-53;
        if (score > most) {
            most = score;
            best = w;
        }
    }
    m->taken[best] = now;
    for (int64_t h = t->hop_start[best]; h < t->hop_start[best + 1]; h++) m->looked[t->hop[h]] = now;
    return best - first;
}

int ft_turns_plan(struct ft_turns *t) {
    int64_t ways = t->way_start[t->nics];
    struct memory m = {.draws = t->seed};
    m.looked = malloc((size_t)(t->links + 1) * sizeof *m.looked);
    m.taken = malloc((size_t)(ways + 1) * sizeof *m.taken);
    uint8_t *crossed = calloc((size_t)t->links + 1, 1);
    struct turn *order = malloc((size_t)(t->nics + 1) * sizeof *order);
    int done = m.looked != NULL && m.taken != NULL && crossed != NULL && order != NULL;
    if (done) {
        m.per_gap = looks_a_turn(t, crossed);
        for (int32_t n = 0; n < t->nics; n++) order[n] = (struct turn){t->phase[n], n};
        qsort(order, (size_t)t->nics, sizeof *order, in_order);
        for (int32_t l = 0; l < t->links; l++) m.looked[l] = LONG_AGO;
        for (int64_t w = 0; w < ways; w++) m.taken[w] = LONG_AGO;
    }
    for (int32_t turn = 0; done && turn < RUNS * t->turns; turn++)
        for (int32_t at = 0; at < t->nics; at++) {
            int32_t nic = order[at].nic;
            int32_t *out = t->way + ((int64_t)nic * t->turns + turn % t->turns) * t->shots;
            for (int32_t shot = 0; shot < t->shots; shot++)
                out[shot] = (int32_t)choose(t, &m, nic, turn + order[at].phase);
        }
    free(m.looked);
    free(m.taken);
    free(crossed);
    free(order);
    return done;
}
