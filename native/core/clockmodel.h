/* A clock that a test gives to a NIC: its reading at a moment of the system clock can be recomputed exactly. */
#ifndef FT_CLOCKMODEL_H
#define FT_CLOCKMODEL_H

#include <stdint.h>

#define FT_CLOCK_MEMORY 256 /* seconds of the random walk kept at hand */

typedef struct {
    int64_t offset_ns, epoch_ns, step_ns, step_at_ns;
    double drift_ppb, wander; /* wander: ppb per square root of a second */
    uint64_t seed;
    /* the walk so far: y[k % MEMORY] is its rate (ppb) at second k, x[...] its offset (ns); `known` is the last k */
    int64_t known;
    double y[FT_CLOCK_MEMORY], x[FT_CLOCK_MEMORY];
} ft_clock;

#define FT_CLOCK_MAX_S (366LL * 86400)

void ft_clock_init(ft_clock *clock, int64_t offset_ns, double drift_ppb, double wander, int64_t epoch_ns,
                   uint64_t seed, int64_t step_ns, int64_t step_at_ns);
int64_t ft_clock_read(ft_clock *clock, int64_t system_ns);

#endif
