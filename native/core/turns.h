/* Who looks at which links when: probes in turns; see turns.c. */
#ifndef FABRICTIME_TURNS_H
#define FABRICTIME_TURNS_H

#include <stdint.h>

struct ft_turns {
    /* in, all checked before */
    int32_t nics, links, turns, shots; /* turns of a round; shots: ways that share a turn */
    const int64_t *way_start;          /* [nics + 1] first way of each NIC; at least one each */
    const int64_t *hop_start;          /* [ways + 1] first hop of each way */
    const int32_t *hop;                /* links that a way's probe and its answer cross */
    const double *phase;               /* [nics] when a NIC's turn begins, in turns, 0 to 1 */
    uint64_t seed;
    /* out */
    int32_t *way; /* [nics][turns][shots] numbers of a NIC's ways, from 0 */
};

/* Plan. Returns 0 without memory. */
int ft_turns_plan(struct ft_turns *t);

#endif
