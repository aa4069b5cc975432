/* Another profiler plugin, as a user's own: it keeps pointers in its handles, as NCCL's example does, and aborts at
 * a handle that it did not issue. OTHER_VERSION is the version of the interface that it has. */
#include <stdio.h>
#include <stdlib.h>

#include "profiler_abi.h"

#define JOIN(a, b)    a##b
#define TABLE(n)      JOIN(ncclProfiler_v, n)
#define MAGIC_EVENT   0x0e7e
#define MAGIC_CONTEXT 0xc0de

struct event {
    unsigned magic, type, stopped;
    struct event *parent;
};

static struct {
    unsigned magic;
    long started[16], stopped, recorded, tags;
} own;

static int open_(void **context, int *mask) {
    own.magic = MAGIC_CONTEXT;
    *context = &own;
    *mask = FT_NCCL_COLLECTIVE | FT_NCCL_P2P | FT_NCCL_KERNEL_CHANNEL;
    return 0;
}

#if OTHER_VERSION >= 5
static int init(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                ft_nccl_log *log) {
    (void)id, (void)name, (void)nodes, (void)ranks, (void)rank, (void)log;
    return open_(context, mask);
}
#else
static int init(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
                ft_nccl_log *log) {
    (void)id, (void)name, (void)nodes, (void)ranks, (void)rank, (void)log;
    return open_(context, mask);
}
#endif

static void check(const struct event *event) {
    if (event && event->magic != MAGIC_EVENT) abort();
}

static int start(void *context, void **out, struct ft_nccl_descriptor *of) {
    unsigned type = OTHER_VERSION < 5 ? of->type.narrow : (unsigned)of->type.wide;
    struct event *event = calloc(1, sizeof(*event));

    if (context != &own || own.magic != MAGIC_CONTEXT || !event) abort();
    check(of->parent);
    if (type & (FT_NCCL_COLLECTIVE | FT_NCCL_P2P) && OTHER_VERSION >= 5) check(of->coll.group);
    event->magic = MAGIC_EVENT;
    event->type = type;
    event->parent = of->parent;
    __atomic_fetch_add(&own.started[__builtin_ctz(type)], 1, __ATOMIC_RELAXED);
    *out = event;
    return 0;
}

static int stop(void *event) {
    check(event);
    if (__atomic_exchange_n(&((struct event *)event)->stopped, 1, __ATOMIC_RELAXED)) abort();
    __atomic_fetch_add(&own.stopped, 1, __ATOMIC_RELAXED);
    return 0;
}

static int record(void *event, int state, union ft_nccl_arguments *arguments) {
    (void)state, (void)arguments;
    check(event);
    __atomic_fetch_add(&own.recorded, 1, __ATOMIC_RELAXED);
    return 0;
}

static int finalize(void *context) {
    if (context != &own) abort();
    fprintf(stderr,
            "other: collectives=%ld p2p=%ld proxy=%ld steps=%ld kernels=%ld stopped=%ld recorded=%ld\n",
            own.started[1], own.started[2], own.started[3], own.started[4], own.started[6], own.stopped,
            own.recorded);
    return 0;
}

#if OTHER_VERSION >= 5
const struct ft_nccl_profiler TABLE(OTHER_VERSION) = {
    .name = "other", .init = init, .start = start, .stop = stop, .record = record, .finalize = finalize};
#else
const struct ft_nccl_profiler TABLE(OTHER_VERSION) = {
    .name = "other", .init_v4 = init, .start = start, .stop = stop, .record = record, .finalize = finalize};
#endif
