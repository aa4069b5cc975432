/* Who looks at which links when: probes in turns; see probe_schedule.c. */
#ifndef FABRICTIME_PROBE_SCHEDULE_H
#define FABRICTIME_PROBE_SCHEDULE_H

#include <stdint.h>

struct ft_schedule_plan_input {
    /* in, all checked before */
    int32_t nics, links, slots, probes_per_slot; /* turns of a round; shots: ways that share a turn */
    const int64_t *path_start;                   /* [nics + 1] first way of each NIC; at least one each */
    const int64_t *link_start;                   /* [ways + 1] first hop of each way */
    const int32_t *link;                         /* links that a way's probe and its answer cross */
    const double *phase;                         /* [nics] when a NIC's turn begins, in turns, 0 to 1 */
    uint64_t seed;
    /* out */
    int32_t *path; /* [nics][turns][shots] numbers of a NIC's ways, from 0 */
};

/* Plan. Returns 0 without memory. */
int ft_schedule_plan(struct ft_schedule_plan_input *t);

#endif
