/* NCCL's side of the profiler interface, in each version: which events it issues, in which order, with which
 * parents, and when it leaves out a call (for lack of a handle). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "replay.h"

enum {
    TASKS = FT_NCCL_COLLECTIVE | FT_NCCL_P2P | FT_NCCL_PROXY_OP | FT_NCCL_PROXY_STEP |
    FT_NCCL_KERNEL_CHANNEL | FT_NCCL_NET_PLUGIN
};

static void __attribute__((format(printf, 5, 6)))
log_warnings(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    va_list arguments;

    (void)flags, (void)file, (void)line;
    if (level != FT_NCCL_LOG_WARN) return;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* Load a plugin as NCCL does; version 0: the newest that it has. */
bool caller_load(struct caller *of, const char *plugin, int version) {
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    char symbol[32];

    if (!library) {
        fprintf(stderr, "replay: %s\n", dlerror());
        return false;
    }
    for (of->version = version ? version : FT_NCCL_LAST; of->version >= FT_NCCL_FIRST; of->version--) {
        snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", of->version);
        of->table = dlsym(library, symbol);
        if (of->table || version) break;
    }
    of->pid = getpid();
    return of->table != NULL;
}

void caller_init(struct caller *of, const char *name) {
    of->mask = 0;
    if (of->version >= 5)
        of->table->init(&of->context, of->id, &of->mask, name, of->nodes, of->ranks, of->rank, log_warnings);
    else if (of->version == 4)
        of->table->init_v4(&of->context, &of->mask, name, of->id, of->nodes, of->ranks, of->rank,
                           log_warnings);
    else
        of->table->init_v1(&of->context, &of->mask);
}

void caller_finalize(struct caller *of) {
    if (of->context) of->table->finalize(of->context);
    of->context = NULL;
}

static void measure(struct caller *of, uint64_t begin, uint64_t end) {
    struct times *times = of->times;
    uint64_t bare;

    if (times->count == times->capacity) return;
    times->ns[times->count] = (uint32_t)(end - begin);
    begin = clock_ns();
    clock_ns();
    bare = clock_ns() - begin;
    times->bare[times->count++] = (uint32_t)bare;
}

void *caller_start(struct caller *of, struct ft_nccl_descriptor *descriptor, unsigned type, void *parent) {
    uint64_t begin;
    void *event = NULL;

    if (of->version < 5)
        descriptor->type.narrow = (uint8_t)type;
    else
        descriptor->type.wide = type;
    descriptor->parent = parent;
    descriptor->rank = of->rank;
    of->calls++;
    if (!of->times) {
        of->table->start(of->context, &event, descriptor);
        return event;
    }
    begin = clock_ns();
    of->table->start(of->context, &event, descriptor);
    measure(of, begin, clock_ns());
    return event;
}

void caller_stop(struct caller *of, void *event) {
    uint64_t begin;

    if (!event) return;
    of->calls++;
    if (!of->times) {
        of->table->stop(event);
        return;
    }
    begin = clock_ns();
    of->table->stop(event);
    measure(of, begin, clock_ns());
}

void caller_record(struct caller *of, void *event, int state, size_t value) {
    union ft_nccl_arguments arguments = {.step_bytes = of->version >= 4 ? value : 0};
    uint64_t begin;

    if (!event || (of->version < 4 && state > FT_NCCL_STEP_RECV_GPU_WAIT)) return;
    of->calls++;
    if (!of->times) {
        of->table->record(event, state, &arguments);
        return;
    }
    begin = clock_ns();
    of->table->record(event, state, &arguments);
    measure(of, begin, clock_ns());
}

static void describe_collective(const struct caller *of, const struct plan *plan,
                                struct ft_nccl_descriptor *to) {
    uint64_t sequence = of->sequences[plan->function_number];

    if (of->version == 1)
        to->coll_v1 = (struct ft_nccl_coll_v1){.hash = of->id,
                                               .sequence = sequence,
                                               .function = plan->function_number,
                                               .count = plan->count,
                                               .datatype = 7,
                                               .channels = (uint8_t)plan->channels,
                                               .algorithm = plan->algorithm_number,
                                               .protocol = plan->protocol_number};
    else if (of->version == 2)
        to->coll_v2 = (struct ft_nccl_coll_v2){.hash = of->id,
                                               .sequence = sequence,
                                               .function = plan->function,
                                               .count = plan->count,
                                               .datatype = "ncclFloat32",
                                               .channels = (uint8_t)plan->channels,
                                               .algorithm = plan->algorithm,
                                               .protocol = plan->protocol};
    else if (of->version == 3)
        to->coll_v3 = (struct ft_nccl_coll_v3){.hash = of->id,
                                               .sequence = sequence,
                                               .function = plan->function,
                                               .count = plan->count,
                                               .datatype = "ncclFloat32",
                                               .channels = (uint8_t)plan->channels,
                                               .algorithm = plan->algorithm,
                                               .protocol = plan->protocol};
    else
        to->coll = (struct ft_nccl_coll_v4){.sequence = sequence,
                                            .function = plan->function,
                                            .count = plan->count,
                                            .datatype = "ncclFloat32",
                                            .channels = (uint8_t)plan->channels,
                                            .algorithm = plan->algorithm,
                                            .protocol = plan->protocol,
                                            .group = plan->group,
                                            .tag = plan->tag};
}

static void describe_p2p(const struct caller *of, const struct plan *plan, struct ft_nccl_descriptor *to) {
    if (of->version == 1)
        to->p2p_v1 = (struct ft_nccl_p2p_v1){.hash = of->id,
                                             .function = plan->function_number,
                                             .datatype = 7,
                                             .count = plan->count,
                                             .peer = plan->peer};
    else if (of->version < 4)
        to->p2p_v2 = (struct ft_nccl_p2p_v2){.hash = of->id,
                                             .function = plan->function,
                                             .datatype = "ncclFloat32",
                                             .count = plan->count,
                                             .peer = plan->peer};
    else
        to->p2p = (struct ft_nccl_p2p_v4){.function = plan->function,
                                          .datatype = "ncclFloat32",
                                          .count = plan->count,
                                          .peer = plan->peer,
                                          .channels = (uint8_t)plan->channels,
                                          .group = plan->group,
                                          .tag = plan->tag};
}

/* The user's thread: calls, then the launch. NCCL stops the operation's event once it has enqueued it. */
void plan_launch(struct caller *of, struct plan *plan) {
    bool collective = plan->peer < 0;
    struct ft_nccl_descriptor descriptor = {0};

    plan->group_api = plan->api = NULL;
    if (of->version >= 5 && of->mask) {
        plan->group_api = caller_start(of, &descriptor, FT_NCCL_GROUP_API, NULL);
        plan->api = caller_start(of, &descriptor, collective ? FT_NCCL_COLLECTIVE_API : FT_NCCL_P2P_API,
                                 plan->group_api);
        caller_stop(of, plan->api);
    }
    plan->task = plan->group = NULL;
    if (of->mask & TASKS) {
        plan->group = caller_start(of, &descriptor, FT_NCCL_GROUP, NULL);
        memset(&descriptor, 0, sizeof(descriptor));
        if (collective)
            describe_collective(of, plan, &descriptor);
        else
            describe_p2p(of, plan, &descriptor);
        plan->task = caller_start(of, &descriptor, collective ? FT_NCCL_COLLECTIVE : FT_NCCL_P2P,
                                  of->version >= 5 ? plan->api : plan->group);
        if (collective) of->sequences[plan->function_number]++;
        caller_stop(of, plan->task);
        caller_stop(of, plan->group);
    }
    caller_stop(of, plan->group_api);
}

void transfer_begin(struct caller *of, struct plan *plan, struct transfer *transfer) {
    struct ft_nccl_descriptor descriptor = {.proxy_op = {.pid = of->pid,
                                                         .channel = transfer->channel,
                                                         .peer = transfer->peer,
                                                         .steps = plan->steps,
                                                         .chunk = plan->chunk,
                                                         .sends = transfer->sends}};

    transfer->operation = NULL;
    if (of->mask & (FT_NCCL_PROXY_OP | FT_NCCL_PROXY_STEP | FT_NCCL_NET_PLUGIN))
        transfer->operation = caller_start(of, &descriptor, FT_NCCL_PROXY_OP, plan->task);
    caller_record(of, transfer->operation, FT_NCCL_OP_IN_PROGRESS, 0);
}

void transfer_end(struct caller *of, struct transfer *transfer) {
    caller_stop(of, transfer->operation);
    transfer->operation = NULL;
}

void step_post(struct caller *of, struct transfer *transfer, int step) {
    struct ft_nccl_descriptor descriptor = {.step = step};
    void **event = &transfer->steps[step % REPLAY_DEPTH];

    *event = NULL;
    transfer->chunks[step % REPLAY_DEPTH] = NULL;
    if (of->mask & (FT_NCCL_PROXY_STEP | FT_NCCL_NET_PLUGIN))
        *event = caller_start(of, &descriptor, FT_NCCL_PROXY_STEP, transfer->operation);
    caller_record(of, *event, transfer->sends ? FT_NCCL_STEP_SEND_GPU_WAIT : FT_NCCL_STEP_RECV_WAIT, 0);
}

static void post_chunk(struct caller *of, struct transfer *transfer, int step, size_t bytes) {
    struct ft_nccl_net_ib chunk = {.type = FT_NCCL_NET_QUEUE_PAIR,
                                   .queue_pair = {.device = of->rank % 8,
                                                  .request = (uint64_t)step,
                                                  .number = 100 + transfer->peer * 64 + transfer->channel,
                                                  .length = bytes}};
    struct ft_nccl_descriptor descriptor = {.net_plugin = {.id = FT_NCCL_NET_IB_V1, .data = &chunk}};

    if (of->mask & FT_NCCL_NET_PLUGIN)
        transfer->chunks[step % REPLAY_DEPTH] =
            caller_start(of, &descriptor, FT_NCCL_NET_PLUGIN, transfer->steps[step % REPLAY_DEPTH]);
}

/* The step's data arrives from the GPU and is sent, or arrives from the network and is flushed. */
void step_move(struct caller *of, struct transfer *transfer, int step, size_t bytes) {
    void *event = transfer->steps[step % REPLAY_DEPTH];

    if (transfer->sends) {
        for (int n = 0; n < 3; n++) caller_record(of, event, FT_NCCL_STEP_SEND_PEER_WAIT, bytes);
        post_chunk(of, transfer, step, bytes);
        caller_record(of, event, FT_NCCL_STEP_SEND_WAIT, bytes);
    } else {
        caller_record(of, event, FT_NCCL_STEP_RECV_FLUSH_WAIT, bytes);
        caller_record(of, event, FT_NCCL_STEP_RECV_GPU_WAIT, bytes);
    }
}

void step_end(struct caller *of, struct transfer *transfer, int step) {
    caller_stop(of, transfer->chunks[step % REPLAY_DEPTH]);
    caller_stop(of, transfer->steps[step % REPLAY_DEPTH]);
    transfer->steps[step % REPLAY_DEPTH] = transfer->chunks[step % REPLAY_DEPTH] = NULL;
}

void kernels_begin(struct caller *of, struct plan *plan) {
    for (int n = 0; n < plan->channels && n < REPLAY_CHANNELS; n++) {
        struct ft_nccl_descriptor descriptor = {
            .kernel_channel = {.channel = (uint8_t)n, .timer = 1000000 + (uint64_t)n}};

        plan->kernels[n] = NULL;
        if (of->mask & FT_NCCL_KERNEL_CHANNEL)
            plan->kernels[n] = caller_start(of, &descriptor, FT_NCCL_KERNEL_CHANNEL, plan->task);
    }
}

void kernels_end(struct caller *of, struct plan *plan) {
    for (int n = 0; n < plan->channels && n < REPLAY_CHANNELS; n++) {
        caller_record(of, plan->kernels[n], FT_NCCL_KERNEL_CHANNEL_STOP, 1050000 + (size_t)n);
        caller_stop(of, plan->kernels[n]);
    }
}

/* The proxy's thread: all transfers advance together, with several steps in flight each. */
void plan_progress(struct caller *of, struct plan *plan) {
    for (int n = 0; n < plan->transfer_count; n++) transfer_begin(of, plan, &plan->transfers[n]);
    kernels_begin(of, plan);
    for (int step = 0; step < plan->steps + REPLAY_DEPTH - 1; step++)
        for (int n = 0; n < plan->transfer_count; n++) {
            int ending = step - REPLAY_DEPTH + 1;

            if (ending >= 0) {
                step_move(of, &plan->transfers[n], ending, (size_t)plan->chunk);
                step_end(of, &plan->transfers[n], ending);
            }
            if (step < plan->steps) step_post(of, &plan->transfers[n], step);
        }
    for (int n = 0; n < plan->transfer_count; n++) transfer_end(of, &plan->transfers[n]);
    kernels_end(of, plan);
}

static void add(struct plan *to, int channel, int peer, bool sends) {
    if (to->transfer_count < REPLAY_TRANSFERS && peer >= 0)
        to->transfers[to->transfer_count++] =
            (struct transfer){.peer = peer, .channel = (uint8_t)channel, .sends = sends};
}

/* A ring: each channel sends to the next rank and receives from the one before. */
void plan_ring(struct plan *to, const struct caller *of, int channels, int steps) {
    *to = (struct plan){.function = "AllReduce",
                        .algorithm = "RING",
                        .protocol = "SIMPLE",
                        .function_number = 4,
                        .algorithm_number = 1,
                        .protocol_number = 2,
                        .peer = -1,
                        .count = (size_t)steps << 17,
                        .channels = channels,
                        .steps = steps,
                        .chunk = 1 << 19};
    for (int channel = 0; channel < channels; channel++) {
        add(to, channel, (of->rank + 1) % of->ranks, true);
        add(to, channel, (of->rank + of->ranks - 1) % of->ranks, false);
    }
}

/* A binary tree: each channel exchanges data with the parent and up to two children. */
void plan_tree(struct plan *to, const struct caller *of, int channels, int steps) {
    int near[3] = {of->rank ? (of->rank - 1) / 2 : -1, 2 * of->rank + 1, 2 * of->rank + 2};

    plan_ring(to, of, channels, steps);
    to->algorithm = "TREE";
    to->algorithm_number = 0;
    to->protocol = "LL128";
    to->protocol_number = 1;
    to->transfer_count = 0;
    for (int channel = 0; channel < channels; channel++)
        for (int n = 0; n < 3; n++)
            if (near[n] < of->ranks) {
                add(to, channel, near[n], true);
                add(to, channel, near[n], false);
            }
}

void plan_p2p(struct plan *to, const struct caller *of, int peer, bool sends, int channels, int steps) {
    plan_ring(to, of, channels, steps);
    to->function = sends ? "Send" : "Recv";
    to->function_number = sends ? 6 : 7;
    to->peer = peer;
    to->transfer_count = 0;
    for (int channel = 0; channel < channels; channel++) add(to, channel, peer, sends);
}
