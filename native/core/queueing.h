/* Delays above each path's floor in short slots of fabric time; see queueing.pyx. */
#ifndef FABRICTIME_QUEUEING_H
#define FABRICTIME_QUEUEING_H

#include "decode.h"

#include <stdint.h>

enum { FT_TO_PEER = 1, FT_FROM_PEER = 2, FT_ROUND_TRIP = 3 };

/* A clock in fabric time, as ClockLine; `is_usable` 0: no model. The offset is offset_ns + fraction_ns. */
struct ft_clock {
    int is_usable;
    int64_t at_ns, offset_ns;
    double fraction_ns, rate, bound_ns;
};

/* Two NICs: numbers of the prober and the peer, and the standard deviation of a delay between them. */
struct ft_nic_pair {
    int32_t prober, peer;
    double noise_ns;
};

/* One direction of a path, or its round trip. */
struct ft_path {
    int32_t pair, path, direction, dscp;
    double floor_ns[2]; /* least delay of this stretch and of the one before */
    double bound_ns[2]; /* bound of the clocks that made these floors */
    double noise_ns;
    int64_t stretch;
    int64_t suspect; /* of a forward direction: the models under which a clock was found wrong */
    int64_t steady;  /* delays above the floor, at most STEADY */
    int64_t lost;    /* requests since the last take */
};

struct ft_path_delay {
    int64_t at_ns;
    double delay_ns;
    int32_t row;
    int8_t is_single, is_marked;
};

/* The samples of one direction in one slot. */
struct ft_cell {
    int32_t slot, count, marked;
    double min_ns, mean_ns; /* above the floor */
    int64_t at_ns;          /* mean time within the slot */
};

/* A direction with samples or losses. */
struct ft_used_path {
    int32_t row;
    int64_t singles, idle, cells;
};

struct ft_slots {
    int64_t slot_ns, floor_ns;
    struct ft_path *paths;
    int64_t n_paths, path_capacity;
    int64_t *table; /* open addressing: row + 1, or 0 */
    int64_t table_size;
    struct ft_path_delay *delays;
    int64_t n_delays, delay_capacity;
    int64_t unsynced;
    /* results of ft_take_slots */
    struct ft_used_path *used;
    int64_t n_used, used_capacity;
    struct ft_cell *cells;
    int64_t n_cells, cell_capacity;
    /* scratch */
    struct ft_slot_entry *entries;
    int64_t entry_capacity;
};

/* The row of a path; a new one gets `noise_ns`. -1 without memory. */
int64_t ft_path_row(struct ft_slots *s, int32_t pair, int32_t path, int32_t direction, int32_t dscp,
                    double noise_ns);
/* Make room for so many more delays. Returns 0 without memory. */
int ft_reserve_delays(struct ft_slots *s, int64_t delays);
/* Add group g of a message; `mark` is where its marks begin and advances past them. `system_ns`: the host's
 * system clock minus the prober's. Room for two delays a sample is reserved. Returns 0 without memory. */
int ft_add_group(struct ft_slots *s, const struct ft_batches *b, int64_t g, int64_t mark[2], int32_t pair,
                 double noise_ns, const struct ft_clock *own, const struct ft_clock *other,
                 int64_t system_ns);
/* Set a path's floor, if it is lower. Returns 0 without memory. */
int ft_set_floor(struct ft_slots *s, int32_t pair, int32_t path, int32_t direction, int32_t dscp,
                 double noise_ns, double floor_ns, int64_t at_ns);
/* Reduce the delays to `used` and `cells`, and forget them; *first is the first slot. Returns 0 without memory. */
int ft_take_slots(struct ft_slots *s, int64_t *first);
/* The floor of a path with the correction for noise; 0 if it has none. */
double ft_floor_of(const struct ft_path *path);
/* Drop the paths whose floors ended before a time. Returns 0 without memory. */
int ft_forget_paths(struct ft_slots *s, int64_t before_ns);
void ft_slots_free(struct ft_slots *s);

#endif
