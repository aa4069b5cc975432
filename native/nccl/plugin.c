/* The plugin's seven tables, and its contexts: one a communicator. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin.h"
#include "sockets.h"

uint64_t ft_process;
uint32_t ft_samples = FT_SAMPLES;
int ft_pid;
int ft_sole_context = -1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned setting(const char *variable, unsigned otherwise) {
    const char *value = secure_getenv(variable);
    char *end;
    unsigned long number;

    if (!value || *value < '0' || *value > '9') return otherwise;
    number = strtoul(value, &end, 10);
    return *end || number > 1u << 20 ? otherwise : (unsigned)number;
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* The child has its parent's handles and none of its threads: forget all, until it makes a communicator. */
static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    FT_SET(ft_process, 0);
    FT_SET(ft_sole_context, -1);
    for (unsigned n = 0; n < FT_CONTEXTS; n++)
        if (ft_contexts[n].generation & 1u) ft_contexts[n].generation++;
    ft_pool_reset();
    ft_net_reset();
}

/* Prepare the process. A process that forked gets other handles than its parent. */
static bool open_process(void) {
    static bool watching;
    uint64_t bits;

    if (!ft_pool_open()) return false;
    if (!watching) watching = !pthread_atfork(before_fork, in_parent, in_child);
    if (!watching) return false;
    if (!ft_process) {
        bits = ((uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15) ^ ft_trace_now_ns()) >> 3;
        FT_SET(ft_pid, getpid());
        FT_SET(ft_samples, setting("FABRICTIME_NCCL_SAMPLES", FT_SAMPLES));
        FT_SET(ft_process, bits % 2047 + 1);
    }
    return true;
}

/* Note the communicator that alone is in use. While there is one, the process's TCP connections are registered
 * where a flow reporter is named: NCCL's socket transport moves data over them. */
static void note_sole(void) {
    int sole = -1, count = 0;

    for (int n = 0; n < FT_CONTEXTS; n++)
        if (ft_contexts[n].generation & 1u) {
            count++;
            sole = n;
        }
    FT_SET(ft_sole_context, count == 1 ? sole : -1);
    if (!count)
        ft_sockets_stop();
    else if (secure_getenv("FABRICTIME_FLOWS"))
        ft_sockets_start();
}

static int own_mask(int version, bool kernels) {
    int mask = FT_NCCL_COLLECTIVE | FT_NCCL_P2P | FT_NCCL_PROXY_OP | FT_NCCL_PROXY_STEP;

    if (version >= 3) mask |= FT_NCCL_NET_PLUGIN | (kernels ? FT_NCCL_KERNEL_CHANNEL : 0);
    if (version >= 5) mask |= FT_NCCL_COLLECTIVE_API | FT_NCCL_P2P_API;
    return mask;
}

static struct ft_nccl_context *free_context(void) {
    for (unsigned n = 0; n < FT_CONTEXTS; n++)
        if (!(ft_contexts[n].generation & 1u)) return &ft_contexts[n];
    return NULL;
}

/* Record the communicator, if a reporter is named and there is capacity. */
static void record(struct ft_nccl_context *context, int version, const void *caller, ft_nccl_log *log,
                   int *mask) {
    char text[64];
    enum ft_source source = ft_library(caller, version, text, sizeof(text));
    bool kernels = version >= 3 && setting("FABRICTIME_NCCL_KERNELS", 1);
    int communicator = 0; /* before version 4, registered later */

    FT_SET(context->traced, ft_trace_open(source, text));
    if (context->traced) {
        ft_library_gpu(source, context->description.gpu, sizeof(context->description.gpu));
        FT_SET(context->kernels, kernels);
        if (version >= 4) {
            communicator = ft_trace_communicator(&context->description);
            FT_SET(context->described, 1);
            FT_SET(context->communicator, communicator);
        }
        if (communicator >= 0) *mask |= own_mask(version, kernels);
    }
    if (log)
        log(FT_NCCL_LOG_INFO, FT_NCCL_SUBSYSTEM_INIT, __FILE__, __LINE__,
            !context->traced ? "fabrictime: no reporter (FABRICTIME_COLLECTIVES): nothing is recorded"
            : *mask          ? "fabrictime: records this communicator, %s"
                             : "fabrictime: too many communicators, this one is not recorded, %s",
            text);
}

/* Before version 4, NCCL describes the communicator with its operations. */
void ft_context_describe(uint64_t handle, const struct ft_description *of, int rank) {
    struct ft_nccl_context *context;

    pthread_mutex_lock(&lock);
    context = ft_context_of(handle);
    if (context && context->traced && !context->described) {
        context->description.id = of->id;
        context->description.rank = rank < 0 ? 0 : (uint32_t)rank;
        if (of->name) strncpy(context->description.name, of->name, sizeof(context->description.name) - 1);
        FT_SET(context->communicator, ft_trace_communicator(&context->description));
    }
    if (context) FT_SET(context->described, 1);
    pthread_mutex_unlock(&lock);
}

static int init(int version, void **handle, int *mask, uint64_t id, const char *name, int nodes, int ranks,
                int rank, ft_nccl_log *log, const void *caller) {
    struct ft_nccl_context *context = NULL;
    int wanted = 0;

    if (!handle || !mask) return 0;
    *handle = NULL;
    pthread_mutex_lock(&lock);
    if (open_process() && (context = free_context()) &&
        ft_context_prepare(context, ranks > 0 ? (uint32_t)ranks : 0)) {
        memset(&context->description, 0, sizeof(context->description));
        context->description.id = id;
        context->description.rank = rank < 0 ? 0 : (uint32_t)rank;
        context->description.ranks = ranks < 0 ? 0 : (uint32_t)ranks;
        context->description.nodes = nodes < 0 ? 0 : (uint32_t)nodes;
        if (name) strncpy(context->description.name, name, sizeof(context->description.name) - 1);
        record(context, version, caller, log, &wanted);
        ft_forward_init(version, context, name, log, &wanted);
        if (wanted || context->forwarded) {
            __atomic_store_n(&context->generation, context->generation + 1, __ATOMIC_RELEASE);
            *handle = (void *)(uintptr_t)ft_slot_handle(FT_HANDLE_CONTEXT, context->generation, 0,
                                                        (uint32_t)(context - ft_contexts));
            note_sole();
        } else if (context->traced) {
            ft_trace_close();
        }
    }
    if (!context) ft_trace_dropped();
    if (wanted) __atomic_fetch_or(mask, wanted, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int finalize(void *handle) {
    struct ft_nccl_context *context;

    pthread_mutex_lock(&lock);
    context = ft_context_of((uint64_t)(uintptr_t)handle);
    if (context) {
        ft_operations_finalize(context);
        ft_net_finalize((uint16_t)(context - ft_contexts));
        __atomic_store_n(&context->generation, context->generation + 1, __ATOMIC_RELEASE);
        note_sole();
        ft_forward_finalize(context);
        if (context->described) ft_trace_communicator_end(context->communicator);
        if (context->traced) ft_trace_close();
    } else {
        ft_trace_misuse();
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static uint64_t start_own(int version, unsigned type, uint64_t context, const struct ft_nccl_descriptor *of) {
    switch (type) {
    case FT_NCCL_PROXY_STEP:
        return ft_step_start(of);
    case FT_NCCL_PROXY_OP:
        return ft_transfer_start(version, context, of);
    case FT_NCCL_KERNEL_CHANNEL:
        return ft_kernel_start(version, of);
    case FT_NCCL_NET_PLUGIN:
        return ft_net_start(context, of);
    case FT_NCCL_COLLECTIVE:
    case FT_NCCL_P2P:
        return ft_operation_start(version, type, context, of);
    case FT_NCCL_GROUP:
        return ft_handle(FT_HANDLE_CALL, ft_trace_now_ns());
    case FT_NCCL_COLLECTIVE_API: /* a graph is launched later, and often: without a call */
        return of->coll_api.captured ? 0 : ft_handle(FT_HANDLE_CALL, ft_trace_now_ns());
    case FT_NCCL_P2P_API:
        return of->p2p_api.captured ? 0 : ft_handle(FT_HANDLE_CALL, ft_trace_now_ns());
    default:
        return 0;
    }
}

static int start(int version, void *context, void **event, const struct ft_nccl_descriptor *of) {
    uint64_t handle = 0;

    if (!event) return 0;
    if (of && FT_GET(ft_process)) {
        handle = start_own(version, ft_type_of(version, of), (uint64_t)(uintptr_t)context, of);
        if (ft_forward_active()) ft_forward_start(version, (uint64_t)(uintptr_t)context, of, &handle);
    }
    *event = (void *)(uintptr_t)handle;
    return 0;
}

static void stop_slot(uint64_t handle) {
    struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_SLOT);

    if (slot && FT_GET(slot->type) == FT_NCCL_PROXY_OP)
        ft_transfer_stop(handle);
    else
        ft_operation_stop(handle);
}

static int stop(void *event) {
    uint64_t handle = (uint64_t)(uintptr_t)event, own = handle;

    if (!handle || !FT_GET(ft_process)) return 0;
    if (ft_handle_kind(handle) == FT_HANDLE_FORWARD) {
        own = ft_forward_own(handle);
        ft_forward_stop(handle);
        if (!own) return 0;
    }
    switch (ft_handle_kind(own)) {
    case FT_HANDLE_STEP:
        ft_step_stop(own);
        break;
    case FT_HANDLE_KERNEL:
        ft_kernel_stop(own);
        break;
    case FT_HANDLE_NET:
        ft_net_stop(own);
        break;
    case FT_HANDLE_CALL:
        break;
    case FT_HANDLE_SLOT:
        stop_slot(own);
        break;
    default:
        ft_trace_misuse();
    }
    return 0;
}

static int record_state(void *event, int state, union ft_nccl_arguments *arguments) {
    uint64_t handle = (uint64_t)(uintptr_t)event, own = handle;

    if (!handle || !FT_GET(ft_process)) return 0;
    if (ft_handle_kind(handle) == FT_HANDLE_FORWARD) {
        own = ft_forward_own(handle);
        ft_forward_record(handle, state, arguments);
        if (!own) return 0;
    }
    switch (ft_handle_kind(own)) {
    case FT_HANDLE_STEP:
        ft_step_record(own, state, arguments);
        break;
    case FT_HANDLE_KERNEL:
        ft_kernel_record(own, state, arguments);
        break;
    case FT_HANDLE_SLOT:
        ft_transfer_record(own, state, arguments);
        break;
    case FT_HANDLE_NET:
    case FT_HANDLE_CALL:
        break;
    default:
        ft_trace_misuse();
    }
    return 0;
}

#define TABLE(n, member, parameters, ...)                                                                    \
    static int init_v##n parameters {                                                                        \
        return init(n, context, mask, __VA_ARGS__, __builtin_return_address(0));                             \
    }                                                                                                        \
    static int start_v##n(void *context, void **event, struct ft_nccl_descriptor *of) {                      \
        return start(n, context, event, of);                                                                 \
    }                                                                                                        \
    __attribute__((visibility("default"))) const struct ft_nccl_profiler ncclProfiler_v##n = {               \
        .name = "fabrictime",                                                                                \
        .member = init_v##n,                                                                                 \
        .start = start_v##n,                                                                                 \
        .stop = stop,                                                                                        \
        .record = record_state,                                                                              \
        .finalize = finalize,                                                                                \
    };

#define TO_V3 (void **context, int *mask)
#define V4                                                                                                   \
    (void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,               \
     ft_nccl_log *log)
#define FROM_V5                                                                                              \
    (void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,               \
     ft_nccl_log *log)

TABLE(1, init_v1, TO_V3, 0, NULL, 0, 0, 0, NULL)
TABLE(2, init_v1, TO_V3, 0, NULL, 0, 0, 0, NULL)
TABLE(3, init_v1, TO_V3, 0, NULL, 0, 0, 0, NULL)
TABLE(4, init_v4, V4, id, name, nodes, ranks, rank, log)
TABLE(5, init, FROM_V5, id, name, nodes, ranks, rank, log)
TABLE(6, init, FROM_V5, id, name, nodes, ranks, rank, log)
TABLE(7, init, FROM_V5, id, name, nodes, ranks, rank, log)
