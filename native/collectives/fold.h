/* Folds the events of one process: sums by kind of operation, chosen single operations, running operations.
 *
 * One fold serves one thread. It trusts no field of an event. */
#ifndef FABRICTIME_FOLD_H
#define FABRICTIME_FOLD_H

#include <stdint.h>

#include "segment.h"

enum ft_kept { FT_KEPT_ALL, FT_KEPT_SAMPLED, FT_KEPT_SLOW };

/* All operations of one kind that ended since the last take. */
struct ft_fold_kind {
    uint16_t communicator;
    uint8_t function, algorithm, protocol, size_class; /* bytes have so many bits */
    uint8_t measured;                                  /* flags of enum ft_fold_measured */
    uint8_t pad;
    uint64_t first_seq, last_seq, count, bytes, busy_ns, min_ns, p50_ns, max_ns;
    uint64_t launch_ns, kernel_ns, gpu_late_ns, peer_late_ns, network_late_ns, flush_ns;
};

enum ft_fold_measured { FT_HAS_LAUNCH = 1, FT_HAS_KERNEL = 2, FT_HAS_SPLIT = 4 };

struct ft_fold_input {
    const uint64_t *communicators; /* ids */
    uint32_t communicator_count, device_count;
    uint64_t now_raw_ns;
};

struct ft_fold;

/* `slow_factor`: an operation is slow above so many times the usual median of its kind. NULL: no memory. */
struct ft_fold *ft_fold_new(double slow_factor);
void ft_fold_free(struct ft_fold *fold);

/* Keep single operations by their number: one in 2^shift. */
void ft_fold_sample(struct ft_fold *fold, uint32_t shift);
void ft_fold_add(struct ft_fold *fold, const struct ft_event *events, uint64_t count,
                 const struct ft_fold_input *input);

/* Kinds with operations since the last take; up to `max` are copied. They start again at 0. */
uint32_t ft_fold_take_kinds(struct ft_fold *fold, struct ft_fold_kind *to, uint32_t max);
uint32_t ft_fold_kinds(const struct ft_fold *fold);

/* Operations kept since the last take, with the reasons. */
enum { FT_FOLD_KEPT = 8192, FT_FOLD_SLOW = 16 };
uint32_t ft_fold_kept(const struct ft_fold *fold);
uint32_t ft_fold_take_kept(struct ft_fold *fold, struct ft_event *to, uint8_t *reasons);

/* Transfers and events of queue pairs since the last take. Transfers of open operations stay for the next. */
uint32_t ft_fold_take_rows(struct ft_fold *fold, struct ft_event *to);
uint32_t ft_fold_rows(const struct ft_fold *fold);

/* Operations that began at `before_raw_ns` or earlier and have not ended, the oldest first, up to `max`. */
uint32_t ft_fold_running(struct ft_fold *fold, uint64_t before_raw_ns, struct ft_event *to, uint32_t max);

/* Forget open operations that began before `before_raw_ns`, because events were lost. */
void ft_fold_forget(struct ft_fold *fold, uint64_t before_raw_ns);

struct ft_fold_counts {
    uint64_t begun, ended, invalid;
    uint32_t shift, open;
    uint32_t slow; /* since the last take of kept operations */
};
struct ft_fold_counts ft_fold_counts(const struct ft_fold *fold);

/* 64 well mixed bits of a communicator and a number, equal at all ranks. */
uint64_t ft_fold_mix(uint64_t communicator, uint64_t sequence);

#endif
