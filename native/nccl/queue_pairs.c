/* Chunks of queue pairs, from post to completion, where NCCL's network code reports them. A queue pair's chunks
 * are folded, and one event an interval is written. A chunk's handle holds its queue pair and its time, so that
 * chunks in flight need no memory. */
#include <stdio.h>

#include "plugin.h"

enum {
    QUEUE_PAIRS = 1024,
    PROBES = 16, /* entries where a queue pair may stand */
    DEVICES = 64,
    BUCKETS = 96, /* four an octave, from 256 ns to 4.3 s: p99 within a factor of 1.2 */
    MIN_LOG = 8,
    UNIT_LOG = 4, /* times in handles are in units of 16 ns */
    TIME_BITS = 40,
};
#define INTERVAL_NS 100000000u

struct queue_pair {
    uint64_t key; /* device and number, plus 1; 0: free */
    uint64_t begin, bytes, sum, min, max;
    int64_t posted; /* and not completed */
    uint32_t completed;
    uint16_t context, communicator, device;
    uint32_t buckets[BUCKETS];
};

static struct queue_pair queue_pairs[QUEUE_PAIRS];
static uint16_t devices[DEVICES]; /* index in the segment, plus 1 */

static unsigned bucket_of(uint64_t ns) {
    unsigned log = 63u - (unsigned)__builtin_clzll(ns | 1u);

    if (log < MIN_LOG) return 0;
    log = 4 * (log - MIN_LOG) + (ns >> (log - 2) & 3u);
    return log < BUCKETS ? log : BUCKETS - 1;
}

/* The upper edge of the bucket that holds the 99th percentile. */
static uint64_t p99_of(const struct queue_pair *of, uint32_t completed) {
    uint64_t above = completed - completed * UINT64_C(99) / 100, seen = 0, edge;
    unsigned n = BUCKETS;

    while (n > 0 && seen < above) seen += FT_GET(of->buckets[--n]);
    edge = (UINT64_C(5) + n % 4) << (n / 4 + MIN_LOG - 2);
    return edge < FT_GET(of->max) ? edge : FT_GET(of->max);
}

static void write_interval(struct queue_pair *of, uint64_t now) {
    uint32_t completed = FT_GET(of->completed);
    int64_t posted = FT_GET(of->posted);
    uint64_t key = FT_GET(of->key); /* 0: another thread has finalized the communicator */
    uint64_t max = FT_GET(of->max), min = completed ? FT_GET(of->min) : 0;
    struct ft_event event = {
        .begin_raw_ns = FT_GET(of->begin),
        .end_raw_ns = now,
        .bytes = FT_GET(of->bytes),
        .kind = FT_EVENT_QUEUE_PAIR,
        .communicator = FT_GET(of->communicator),
        .peer = -1,
        .device = FT_GET(of->device),
        .queue_pair = (uint32_t)(key - 1),
        .completed = completed,
        .min_ns = min < UINT32_MAX ? (uint32_t)min : UINT32_MAX,
        .max_ns = max < UINT32_MAX ? (uint32_t)max : UINT32_MAX,
        .sum_ns = FT_GET(of->sum),
        .p99_ns = completed ? p99_of(of, completed) : 0,
        .posted = posted > 0 ? (uint64_t)posted : 0,
    };

    if (key && (completed || posted > 0)) ft_event_put(&event);
    FT_SET(of->begin, now);
    FT_SET(of->bytes, 0);
    FT_SET(of->sum, 0);
    FT_SET(of->min, UINT64_MAX);
    FT_SET(of->max, 0);
    FT_SET(of->completed, 0);
    for (unsigned n = 0; n < BUCKETS; n++) FT_SET(of->buckets[n], 0);
}

/* The segment's index of a device, which NCCL numbers; registered once. */
static uint16_t device_of(int device) {
    unsigned at = (unsigned)device % DEVICES;
    char name[32];
    int index;

    if (!FT_GET(devices[at])) {
        snprintf(name, sizeof(name), "nccl:%d", device);
        index = ft_trace_device(name);
        FT_SET(devices[at], (uint16_t)((index < 0 ? 0 : index) + 1));
    }
    return FT_GET(devices[at]) - 1;
}

static struct queue_pair *entry_of(int device, uint32_t number, uint16_t context, uint64_t now) {
    uint64_t key = ((uint64_t)(uint32_t)device << 32 | number) + 1;
    uint32_t hash = (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 40);

    for (unsigned n = 0; n < PROBES; n++) {
        struct queue_pair *entry = &queue_pairs[(hash + n) % QUEUE_PAIRS];
        uint64_t found = __atomic_load_n(&entry->key, __ATOMIC_ACQUIRE);

        if (!found && __atomic_compare_exchange_n(&entry->key, &found, key, false, __ATOMIC_ACQ_REL,
                                                  __ATOMIC_ACQUIRE)) {
            FT_SET(entry->context, context);
            FT_SET(entry->communicator, (uint16_t)FT_GET(ft_contexts[context].communicator));
            FT_SET(entry->device, device_of(device));
            FT_SET(entry->begin, now);
            FT_SET(entry->min, UINT64_MAX);
            return entry;
        }
        if (found == key) return entry;
    }
    return NULL;
}

static void close_interval(struct queue_pair *of, uint64_t now) {
    uint64_t begin = FT_GET(of->begin);

    if (begin && now > begin && now - begin >= INTERVAL_NS) write_interval(of, now);
}

uint64_t ft_net_start(uint64_t handle, const struct ft_nccl_descriptor *of) {
    const struct ft_nccl_net_ib *chunk = of->net_plugin.data;
    struct ft_nccl_context *context = ft_context_of(handle);
    int sole = FT_GET(ft_sole_context);
    struct queue_pair *entry;
    uint64_t now;

    if (of->net_plugin.id != FT_NCCL_NET_IB_V1 || !chunk || chunk->type != FT_NCCL_NET_QUEUE_PAIR) return 0;
    if (!context && sole >= 0) context = &ft_contexts[sole]; /* on behalf of another process */
    if (!context || FT_GET(context->communicator) < 0) return 0;
    now = ft_trace_now_ns();
    entry = entry_of(chunk->queue_pair.device, (uint32_t)chunk->queue_pair.number & 0xffffffu,
                     (uint16_t)(context - ft_contexts), now);
    if (!entry) {
        ft_trace_dropped();
        return 0;
    }
    close_interval(entry, now);
    __atomic_fetch_add(&entry->posted, 1, __ATOMIC_RELAXED);
    FT_SET(entry->bytes, FT_GET(entry->bytes) + chunk->queue_pair.length);
    return ft_handle(FT_HANDLE_NET, (uint64_t)(entry - queue_pairs) << TIME_BITS |
                                        (now >> UNIT_LOG & ((UINT64_C(1) << TIME_BITS) - 1)));
}

void ft_net_stop(uint64_t handle) {
    struct queue_pair *entry = &queue_pairs[handle >> TIME_BITS & (QUEUE_PAIRS - 1)];
    uint64_t now = ft_trace_now_ns();
    uint64_t ns = (((now >> UNIT_LOG) - handle) & ((UINT64_C(1) << TIME_BITS) - 1)) << UNIT_LOG;
    uint32_t *bucket = &entry->buckets[bucket_of(ns)];

    if (__atomic_sub_fetch(&entry->posted, 1, __ATOMIC_RELAXED) < 0) {
        __atomic_fetch_add(&entry->posted, 1, __ATOMIC_RELAXED);
        ft_trace_misuse();
        return;
    }
    FT_SET(entry->sum, FT_GET(entry->sum) + ns);
    if (ns < FT_GET(entry->min)) FT_SET(entry->min, ns);
    if (ns > FT_GET(entry->max)) FT_SET(entry->max, ns);
    FT_SET(*bucket, FT_GET(*bucket) + 1);
    FT_SET(entry->completed, FT_GET(entry->completed) + 1);
    close_interval(entry, now);
}

/* Write the last interval of a communicator's queue pairs, and forget them. */
void ft_net_finalize(uint16_t context) {
    for (unsigned n = 0; n < QUEUE_PAIRS; n++) {
        struct queue_pair *entry = &queue_pairs[n];

        if (!FT_GET(entry->key) || FT_GET(entry->context) != context) continue;
        write_interval(entry, ft_trace_now_ns());
        FT_SET(entry->posted, 0);
        __atomic_store_n(&entry->key, 0, __ATOMIC_RELEASE);
    }
}

/* In a child after fork: the parent's devices have no index in its segment. */
void ft_net_reset(void) {
    for (unsigned n = 0; n < DEVICES; n++) FT_SET(devices[n], 0);
    for (unsigned n = 0; n < QUEUE_PAIRS; n++) FT_SET(queue_pairs[n].key, 0);
}
