/* A round of turns for a fleet's probes, so that every link is looked at in even steps.
 *
 * A queue that nobody looks at for a time g is guessed from the looks before and after. It moves like a random walk,
 * so the guess is off by a variance that grows as g in the middle and, summed over the gap, as g^2. What all links
 * together are off by is the sum of their gaps squared, and for gaps as they come at random half of that sum lies in
 * the few longest. With turns, probes can be laid so that gaps are even: each turn of each NIC, in the order of time,
 * takes the way (peer and path) that ends the most of it,
 *
 *   sum over the links of the way, out and back, of ((now - last look) / g0)^2  +  ((now - last turn of the way) / W)^2
 *
 * with g0 the mean time between looks at a link and W the number of the NIC's ways. The second term keeps every way
 * in the round: clocks need all pairs. A greedy choice; the time is in turns, and equal choices are drawn for.
 *
 * The round is planned RUNS times over, each from where the last ended, so that it begins as it ends.
 */
#include "turns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 2 };
static const double MOST = 8; /* a gap counts for so many mean ones at most */
static const double WAYS = 6; /* what evenness over ways counts for, beside that over links */

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

static int in_order(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;
    if (x->phase != y->phase)
        return x->phase < y->phase ? -1 : 1;
    return x->nic < y->nic ? -1 : x->nic > y->nic;
}

static inline double squared(double gap)
{
    gap = gap < MOST ? gap : MOST;
    return gap * gap;
}

int ft_turns_plan(struct ft_turns *t)
{
    int64_t ways = t->way_start[t->nics], hops = t->hop_start[ways];
    double *looked = malloc((size_t)(t->links + 1) * sizeof *looked);
    double *sum = calloc((size_t)(2 * t->links + 2), sizeof *sum), *span = sum == NULL ? NULL : sum + t->links + 1;
    double *taken = malloc((size_t)(ways + 1) * sizeof *taken);
    struct turn *order = malloc((size_t)(t->nics + 1) * sizeof *order);
    int done = looked != NULL && sum != NULL && taken != NULL && order != NULL;
    if (done) {
        int64_t links = 0;
        memset(t->gap, 0, (size_t)t->links * sizeof *t->gap);
        for (int64_t h = 0; h < hops; h++) {
            links += t->gap[t->hop[h]] == 0;
            t->gap[t->hop[h]] = 1;
        }
        /* looks a turn: each NIC's shots times the mean length of a way */
        double looks = 0;
        for (int32_t n = 0; n < t->nics; n++)
            looks += (double)t->shots * (double)(t->hop_start[t->way_start[n + 1]] - t->hop_start[t->way_start[n]])
                     / (double)(t->way_start[n + 1] - t->way_start[n]);
        double per_gap = looks > 0 ? looks / (double)links : 1;
        for (int32_t n = 0; n < t->nics; n++)
            order[n] = (struct turn){t->phase[n], n};
        qsort(order, (size_t)t->nics, sizeof *order, in_order);
        for (int32_t l = 0; l < t->links; l++)
            looked[l] = -1e9;
        for (int64_t w = 0; w < ways; w++)
            taken[w] = -1e9;
        uint64_t state = t->seed;
        for (int32_t turn = 0; turn < RUNS * t->turns; turn++) {
            int last_run = turn >= (RUNS - 1) * t->turns;
            for (int32_t at = 0; at < t->nics; at++) {
                int32_t nic = order[at].nic;
                double now = turn + order[at].phase;
                int64_t first = t->way_start[nic], end = t->way_start[nic + 1];
                double per_age = (double)t->shots / (double)(end - first);
                int32_t *out = t->way + ((int64_t)nic * t->turns + turn % t->turns) * t->shots;
                for (int32_t shot = 0; shot < t->shots; shot++) {
                    double most = -1;
                    int64_t best = first;
                    for (int64_t w = first; w < end; w++) {
                        double age = (now - taken[w]) * per_age, score = WAYS * age * age;
                        for (int64_t h = t->hop_start[w]; h < t->hop_start[w + 1]; h++)
                            score += squared((now - looked[t->hop[h]]) * per_gap);
                        score *= 1 + 0x1p-60 * (double)(draw(&state) >> 4) * 1e-3;
                        if (score > most) {
                            most = score;
                            best = w;
                        }
                    }
                    out[shot] = (int32_t)(best - first);
                    taken[best] = now;
                    for (int64_t h = t->hop_start[best]; h < t->hop_start[best + 1]; h++) {
                        int32_t l = t->hop[h];
                        double gap = now - looked[l];
                        if (last_run && gap > 0 && gap < 1e8) {
                            sum[l] += gap * gap * gap;
                            span[l] += gap;
                        }
                        looked[l] = now;
                    }
                }
            }
        }
        /* as seen by time, not by gap: long gaps hold more of it */
        for (int32_t l = 0; l < t->links; l++)
            t->gap[l] = span[l] > 0 ? sqrt(sum[l] / span[l]) : 0;
    }
    free(looked);
    free(sum);
    free(taken);
    free(order);
    return done;
}
