/* Plans the probe slots of all NICs; see probe_schedule.c. */
#ifndef FABRICTIME_PROBE_SCHEDULE_H
#define FABRICTIME_PROBE_SCHEDULE_H

#include <stdint.h>

struct ft_schedule_plan_input {
    /* in, all checked before */
    int32_t nics, links, slots,
        probes_per_slot;       /* slots of a round; probes_per_slot: paths that share a slot */
    const int64_t *path_start; /* [nics + 1] first way of each NIC; at least one each */
    const int64_t *link_start; /* [paths + 1] first link of each path */
    const int32_t *link;       /* links that a way's probe and its answer cross */
    const double *phase;       /* [nics] when a NIC's turn begins, in turns, 0 to 1 */
    uint64_t seed;
    /* out */
    int32_t *path; /* [nics][slots][probes_per_slot] numbers of a NIC's paths, from 0 */
};

/* Plan. Returns 0 without memory. */
int ft_schedule_plan(struct ft_schedule_plan_input *t);

#endif
