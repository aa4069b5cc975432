/* Random sequences of calls in all versions at once, from several threads, with handles that are live, stale, of
 * other types, and invented. Whatever comes, the plugin neither crashes nor writes an event that the reader
 * refuses. Prints "clean".
 *
 *     fuzz PLUGIN SEED CALLS THREADS */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "replay.h"

enum { HANDLES = 256, CONTEXTS = 8, MAX_THREADS = 16 };

static const char *plugin;
static struct caller callers[FT_NCCL_LAST + 1];
static void *shared[HANDLES]; /* atomic: handles that all threads use */
static void *contexts[CONTEXTS];
static int running; /* atomic */

struct fuzzer {
    uint64_t state;
    long calls;
};

static uint64_t chance(struct fuzzer *of, uint64_t below) {
    of->state ^= of->state << 13;
    of->state ^= of->state >> 7;
    of->state ^= of->state << 17;
    return of->state % below;
}

static void *some_handle(struct fuzzer *of) {
    uint64_t handle = (uint64_t)(uintptr_t)__atomic_load_n(&shared[chance(of, HANDLES)], __ATOMIC_RELAXED);

    switch (chance(of, 16)) {
    case 0:
        return NULL;
    case 1:
        return (void *)(uintptr_t)(chance(of, UINT64_MAX));
    case 2: /* one that differs in a bit */
        return (void *)(uintptr_t)(handle ^ UINT64_C(1) << chance(of, 64));
    case 3:
        return __atomic_load_n(&contexts[chance(of, CONTEXTS)], __ATOMIC_RELAXED);
    default:
        return (void *)(uintptr_t)handle;
    }
}

static const char *some_name(struct fuzzer *of) {
    static const char *const names[] = {"AllReduce", "AlltoAll", "Send",     "Recv",        "",
                                        "Unknown",   "RING",     "PAT",      "LL128",       "LL",
                                        "TREE",      "SIMPLE",   "ncclInt8", "ncclFloat16", NULL};

    return names[chance(of, sizeof(names) / sizeof(names[0]))];
}

static void describe(struct fuzzer *of, int version, unsigned type, struct ft_nccl_descriptor *to,
                     struct ft_nccl_net_ib *chunk) {
    bool collective = type == FT_NCCL_COLLECTIVE;

    memset(to, 0, sizeof(*to));
    for (size_t n = 0; n < sizeof(*to) / 4; n++)
        if (!chance(of, 8)) ((uint32_t *)to)[n] = (uint32_t)chance(of, UINT64_MAX);
    to->rank = (int)chance(of, 5) - 1;
    if (type == FT_NCCL_PROXY_OP) {
        to->proxy_op.pid = chance(of, 4) ? getpid() : 1;
        if (chance(of, 4)) to->proxy_op.steps = (int)chance(of, 300);
    } else if (type == FT_NCCL_NET_PLUGIN) {
        *chunk = (struct ft_nccl_net_ib){.type = chance(of, 8) ? FT_NCCL_NET_QUEUE_PAIR : 9,
                                         .queue_pair = {.device = (int)chance(of, 70) - 2,
                                                        .number = (int)chance(of, 2000) - 2,
                                                        .length = 4096}};
        to->net_plugin.id = chance(of, 8) ? FT_NCCL_NET_IB_V1 : 3;
        to->net_plugin.data = chance(of, 8) ? chunk : NULL;
    } else if (version == 1 && (collective || type == FT_NCCL_P2P)) {
        to->coll_v1.name = some_name(of);
    } else if (version < 4 && collective) {
        to->coll_v2.name = some_name(of);
        to->coll_v2.function = some_name(of);
        to->coll_v2.datatype = some_name(of);
        if (version == 2) {
            to->coll_v2.algorithm = some_name(of);
            to->coll_v2.protocol = some_name(of);
        } else {
            to->coll_v3.algorithm = some_name(of);
            to->coll_v3.protocol = some_name(of);
        }
    } else if (version < 4) {
        to->p2p_v2.name = some_name(of);
        to->p2p_v2.function = some_name(of);
        to->p2p_v2.datatype = some_name(of);
    } else if (collective) {
        to->coll.function = some_name(of);
        to->coll.datatype = some_name(of);
        to->coll.algorithm = some_name(of);
        to->coll.protocol = some_name(of);
        to->coll.channels = (uint8_t)chance(of, 4);
    } else if (type == FT_NCCL_P2P) {
        to->p2p.function = some_name(of);
        to->p2p.datatype = some_name(of);
        to->p2p.channels = (uint8_t)chance(of, 4);
    }
}

static void start_one(struct fuzzer *of, struct caller *nccl) {
    static const unsigned types[] = {FT_NCCL_COLLECTIVE, FT_NCCL_COLLECTIVE,    FT_NCCL_P2P,
                                     FT_NCCL_PROXY_OP,   FT_NCCL_PROXY_OP,      FT_NCCL_PROXY_STEP,
                                     FT_NCCL_PROXY_STEP, FT_NCCL_KERNEL_CHANNEL};
    unsigned type = chance(of, 4) ? types[chance(of, 8)] : 1u << chance(of, nccl->version < 5 ? 8 : 17);
    struct ft_nccl_descriptor descriptor;
    struct ft_nccl_net_ib chunk;
    void *event = NULL, *context = __atomic_load_n(&contexts[chance(of, CONTEXTS)], __ATOMIC_RELAXED);

    describe(of, nccl->version, type, &descriptor, &chunk);
    if (nccl->version < 5)
        descriptor.type.narrow = (uint8_t)type;
    else
        descriptor.type.wide = type;
    descriptor.parent = some_handle(of);
    if (!chance(of, 32)) context = some_handle(of);
    nccl->table->start(context, &event, &descriptor);
    if (event) __atomic_store_n(&shared[chance(of, HANDLES)], event, __ATOMIC_RELAXED);
}

static void open_one(struct fuzzer *of, struct caller *nccl) {
    void **slot = &contexts[chance(of, CONTEXTS)], *context = NULL;
    int mask = 0;

    if (chance(of, 2)) {
        nccl->table->finalize(__atomic_exchange_n(slot, NULL, __ATOMIC_RELAXED));
        return;
    }
    if (nccl->version >= 5)
        nccl->table->init(&context, chance(of, 4), &mask, some_name(of), 1, (int)chance(of, 9) - 1, 0, NULL);
    else if (nccl->version == 4)
        nccl->table->init_v4(&context, &mask, some_name(of), chance(of, 4), 1, (int)chance(of, 9), 0, NULL);
    else
        nccl->table->init_v1(&context, &mask);
    nccl->table->finalize(__atomic_exchange_n(slot, context, __ATOMIC_RELAXED));
}

static void *fuzz(void *own) {
    struct fuzzer *of = own;

    for (long n = 0; n < of->calls; n++) {
        struct caller *nccl = &callers[1 + chance(of, FT_NCCL_LAST)];
        union ft_nccl_arguments arguments = {.step_bytes = chance(of, 4) ? chance(of, 1 << 20) : UINT64_MAX};

        switch (chance(of, 16)) {
        case 0:
        case 1:
        case 2:
            nccl->table->stop(some_handle(of));
            break;
        case 3:
        case 4:
        case 5:
        case 6:
            nccl->table->record(some_handle(of), (int)chance(of, 40) - 2, chance(of, 8) ? &arguments : NULL);
            break;
        case 7:
            if (!chance(of, 20)) open_one(of, nccl);
            break;
        default:
            start_one(of, nccl);
        }
    }
    __atomic_sub_fetch(&running, 1, __ATOMIC_RELEASE);
    return NULL;
}

int main(int argc, char **argv) {
    static struct fuzzer fuzzers[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    int count;

    if (argc != 5 || (count = atoi(argv[4])) > MAX_THREADS || !drain_open(getenv("TMPDIR"))) return 2;
    plugin = argv[1];
    for (int version = FT_NCCL_FIRST; version <= FT_NCCL_LAST; version++) {
        callers[version].ranks = 4;
        if (!caller_load(&callers[version], plugin, version)) return 2;
        caller_init(&callers[version], "fuzz");
        contexts[version] = callers[version].context;
    }
    if (!drain_wait()) return 2;
    running = count;
    for (int n = 0; n < count; n++) {
        fuzzers[n].state = (strtoull(argv[2], NULL, 10) + (uint64_t)n) * UINT64_C(0x9e3779b97f4a7c15) | 1;
        fuzzers[n].calls = atol(argv[3]);
        pthread_create(&threads[n], NULL, fuzz, &fuzzers[n]);
    }
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE))
        if (!drain(NULL, NULL)) usleep(200);
    for (int n = 0; n < count; n++) pthread_join(threads[n], NULL);
    while (drain(NULL, NULL));
    if (drain_counters().invalid) {
        fprintf(stderr, "%lu events that the reader refuses\n", (unsigned long)drain_counters().invalid);
        return 1;
    }
    puts("clean");
    return 0;
}
