/* Collectives and point-to-point operations, from their launch to their true end.
 *
 * NCCL stops the event of an operation when it has enqueued the operation. So an operation ends here when its
 * event has stopped and its last child, a transfer or a kernel channel, has ended. Where the number of its
 * kernel channels is known, all of them must have ended. NCCL finishes the launches of a communicator in
 * order: the end of a later launch ends an operation that had no child or fewer than announced.
 *
 * A message to the own rank confuses NCCL (seen in 2.28.9; the source of 2.26 to 2.30 is alike). Its kernel
 * counts work for which NCCL's host side expects none, so kernel channels are reported for earlier operations
 * from then on: at once, with their times. Such a communicator's kernel channels are only counted. Its
 * operations begin when a transfer shows that the GPU has delivered data. */
#include <stdlib.h>

#include "plugin.h"

enum {
    PEERS_UNKNOWN = 4096 /* peers whose point-to-point operations are numbered, if NCCL hides the number */
};

struct ft_nccl_context ft_contexts[FT_CONTEXTS];

/* The context of a handle, or NULL: finalized, invented, or another process's. */
struct ft_nccl_context *ft_context_of(uint64_t handle) {
    uint64_t index = handle & ((1u << FT_SLOT_BITS) - 1u);
    struct ft_nccl_context *context = &ft_contexts[index % FT_CONTEXTS];
    uint32_t generation = __atomic_load_n(&context->generation, __ATOMIC_ACQUIRE);

    if (ft_handle_kind(handle) != FT_HANDLE_CONTEXT || index >= FT_CONTEXTS || !(generation & 1u) ||
        (generation & FT_GENERATION_MASK) != (handle >> 29 & FT_GENERATION_MASK))
        return NULL;
    return context;
}

static uint32_t saturated(uint64_t ns) {
    return ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

static void put(const struct ft_slot *slot, enum ft_event_kind kind, uint64_t end) {
    const struct ft_operation *of = &slot->operation;
    uint64_t seen = FT_GET(of->kernel_seen), begin = seen ? seen : FT_GET(of->begin);
    uint64_t call = FT_GET(of->call), first = FT_GET(of->kernel_begin), last = FT_GET(of->kernel_end);
    uint32_t sampled = FT_GET(of->sampled);
    struct ft_event event = {
        .begin_raw_ns = begin,
        .end_raw_ns = end && end <= begin ? begin + 1 : end,
        .operation = FT_GET(of->number),
        .sequence = FT_GET(of->sequence),
        .bytes = ft_bounded(FT_GET(of->bytes)),
        .tag = FT_GET(of->tag),
        .kind = (uint8_t)kind,
        .function = FT_GET(of->function),
        .algorithm = FT_GET(of->algorithm),
        .protocol = FT_GET(of->protocol),
        .communicator = FT_GET(slot->communicator),
        .channel = FT_GET(of->channels),
        .peer = FT_GET(of->peer),
        .flags = sampled ? FT_FLAG_SPLIT : 0,
        .steps = FT_GET(of->steps),
        .sampled = sampled,
        .launch_ns = call && begin > call ? saturated(begin - call) : 0,
        .kernel_ns = first && last > first ? saturated(last - first) : 0,
        .gpu_late_ns = ft_bounded(FT_GET(of->waits[FT_WAIT_GPU])),
        .peer_late_ns = ft_bounded(FT_GET(of->waits[FT_WAIT_PEER])),
        .network_late_ns = ft_bounded(FT_GET(of->waits[FT_WAIT_NETWORK])),
        .flush_ns = ft_bounded(FT_GET(of->waits[FT_WAIT_FLUSH])),
    };

    ft_event_put(&event);
}

/* End an operation; one caller alone succeeds. */
static void finish(struct ft_slot *slot, uint64_t handle, uint64_t end) {
    struct ft_nccl_context *context = &ft_contexts[FT_GET(slot->context)];

    if (!ft_slot_end(slot, handle)) return;
    if (FT_GET(slot->operation.kernel_seen))
        FT_SET(context->silent, 0);
    else if (FT_GET(slot->operation.children) && FT_GET(context->silent) < FT_SILENT)
        FT_SET(context->silent, FT_GET(context->silent) + 1);
    put(slot, FT_EVENT_END, end);
    ft_slot_free(slot);
}

/* Return true if kernel channels are reported. Otherwise operations begin at their launch. */
static bool with_kernels(const struct ft_nccl_context *context) {
    return FT_GET(context->kernels) && FT_GET(context->silent) < FT_SILENT && !FT_GET(context->lagging);
}

/* Return true if the operation's kernel channels may be those of an earlier one. */
bool ft_kernels_lag(const struct ft_slot *slot) {
    return FT_GET(ft_contexts[FT_GET(slot->context)].lagging);
}

/* The operation runs on the GPU by now. */
void ft_operation_seen(struct ft_slot *slot, uint64_t now) {
    uint64_t none = 0;

    __atomic_compare_exchange_n(&slot->operation.kernel_seen, &none, now, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
}

static bool counted(const struct ft_nccl_context *context, const struct ft_operation *of) {
    return FT_GET(of->channels) && with_kernels(context) && !FT_GET(context->no_counts);
}

/* Return true if nothing of the operation runs. */
static bool idle(struct ft_slot *slot) {
    return __atomic_load_n(&slot->operation.open, __ATOMIC_ACQUIRE) <= 0;
}

/* End the idle operations of launches before `last`, one of whose children has ended. */
static void sweep(struct ft_nccl_context *context, const struct ft_operation *last) {
    uint32_t ordinal = FT_GET(last->ordinal), at, kept;
    uint64_t group = FT_GET(last->group);

    if (__atomic_exchange_n(&context->sweeping, 1, __ATOMIC_ACQUIRE)) return; /* another thread does */
    at = FT_GET(context->swept);
    if ((int32_t)(ordinal - at) <= 0)
        at = ordinal; /* swept already */
    else if (ordinal - at > FT_RECENT)
        at = ordinal - FT_RECENT;
    kept = ordinal;
    for (; at != ordinal; at++) {
        uint64_t handle = FT_GET(context->recent[at % FT_RECENT]);
        struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_SLOT);

        if (!slot || FT_GET(slot->operation.ordinal) != at) continue;
        if (!idle(slot) || (group && FT_GET(slot->operation.group) == group)) {
            if (kept == ordinal) kept = at;
            continue;
        }
        if (FT_GET(slot->operation.children) && counted(context, &slot->operation))
            FT_SET(context->no_counts, 1);
        finish(slot, handle, FT_GET(slot->operation.last_end));
    }
    if ((int32_t)(kept - FT_GET(context->swept)) > 0) FT_SET(context->swept, kept);
    __atomic_store_n(&context->sweeping, 0, __ATOMIC_RELEASE);
}

/* One part of the operation less runs: its event, a transfer or a kernel channel. */
void ft_operation_leave(struct ft_slot *slot, uint64_t handle, uint64_t now) {
    struct ft_operation *of = &slot->operation;
    struct ft_nccl_context *context = &ft_contexts[FT_GET(slot->context)];
    uint64_t end = FT_GET(of->last_end);

    while (end < now &&
           !__atomic_compare_exchange_n(&of->last_end, &end, now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (__atomic_sub_fetch(&of->open, 1, __ATOMIC_ACQ_REL) > 0 || !FT_GET(of->children)) return;
    sweep(context, of);
    if (counted(context, of) && FT_GET(of->kernels_done) < FT_GET(of->channels)) return;
    finish(slot, handle, FT_GET(of->last_end));
}

/* A transfer or kernel channel of the operation begins. Return the operation, or NULL: none in this process. */
struct ft_slot *ft_operation_join(uint64_t handle) {
    struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_SLOT);

    if (!slot || !(FT_GET(slot->type) & (FT_NCCL_COLLECTIVE | FT_NCCL_P2P))) return NULL;
    __atomic_add_fetch(&slot->operation.open, 1, __ATOMIC_ACQ_REL);
    FT_SET(slot->operation.children, 1);
    return slot;
}

static uint64_t next_sequence(struct ft_nccl_context *context, const struct ft_description *of,
                              unsigned type) {
    struct ft_pairs *pairs = __atomic_load_n(&context->pairs, __ATOMIC_ACQUIRE);
    uint32_t at = 2 * (uint32_t)of->peer + (of->function == FT_SEND);

    if (type == FT_NCCL_COLLECTIVE) return __atomic_fetch_add(&context->sequence, 1, __ATOMIC_RELAXED);
    if (of->peer < 0 || !pairs || (uint32_t)of->peer >= pairs->peers) return 0;
    return __atomic_fetch_add(&pairs->sequences[at], 1, __ATOMIC_RELAXED);
}

static void fill(struct ft_operation *to, const struct ft_description *of, uint64_t now) {
    FT_SET(to->begin, now);
    FT_SET(to->last_end, 0);
    FT_SET(to->kernel_seen, 0);
    FT_SET(to->kernel_begin, 0);
    FT_SET(to->kernel_end, 0);
    FT_SET(to->number, ft_trace_operation());
    FT_SET(to->bytes, of->bytes);
    FT_SET(to->tag, of->tag);
    FT_SET(to->group, of->group);
    for (unsigned n = 0; n < 4; n++) FT_SET(to->kernels_open[n], 0);
    for (unsigned n = 0; n < FT_WAITS; n++) FT_SET(to->waits[n], 0);
    FT_SET(to->steps, 0);
    FT_SET(to->sampled, 0);
    FT_SET(to->open, 1);
    FT_SET(to->peer, of->peer);
    FT_SET(to->kernels_done, 0);
    FT_SET(to->channels, of->channels);
    FT_SET(to->function, of->function);
    FT_SET(to->algorithm, of->algorithm);
    FT_SET(to->protocol, of->protocol);
    FT_SET(to->stopped, 0);
    FT_SET(to->children, 0);
    FT_SET(to->begun, 0);
}

/* The ns of a call, of which its handle keeps the lower 50 bits. */
static uint64_t call_of(uint64_t handle, uint64_t now) {
    handle = ft_forward_own(handle);
    if (ft_handle_kind(handle) != FT_HANDLE_CALL) return 0;
    return now - ((now - handle) & ((UINT64_C(1) << 50) - 1));
}

uint64_t ft_operation_start(int version, unsigned type, uint64_t handle,
                            const struct ft_nccl_descriptor *of) {
    struct ft_nccl_context *context = ft_context_of(handle);
    struct ft_description description;
    struct ft_slot *slot, *former;
    uint64_t now, sequence, made, displaced;
    uint32_t ordinal;

    if (!context) {
        if (handle) ft_trace_misuse(); /* NULL: a communicator that is not recorded */
        return 0;
    }
    if (type == FT_NCCL_COLLECTIVE)
        ft_describe_collective(version, of, &description);
    else
        ft_describe_p2p(version, of, &description);
    if (version < 4 && !FT_GET(context->described)) ft_context_describe(handle, &description, of->rank);
    if (type == FT_NCCL_P2P && description.peer == of->rank) FT_SET(context->lagging, 1);
    sequence = next_sequence(context, &description, type); /* of a dropped operation as well */
    if (FT_GET(context->communicator) < 0) {
        if (FT_GET(context->traced)) ft_trace_dropped();
        return 0;
    }
    slot = ft_slot_take();
    if (!slot) return 0;
    now = ft_trace_now_ns();
    description.group = ft_forward_own(description.group);
    fill(&slot->operation, &description, now);
    FT_SET(slot->operation.call, call_of(description.call, now));
    FT_SET(slot->operation.sequence, sequence);
    FT_SET(slot->context, (uint16_t)(context - ft_contexts));
    FT_SET(slot->communicator, (uint16_t)FT_GET(context->communicator));
    FT_SET(slot->type, (uint8_t)type);
    ordinal = __atomic_fetch_add(&context->ordinals, 1, __ATOMIC_RELAXED);
    FT_SET(slot->operation.ordinal, ordinal);
    if (!with_kernels(context)) {
        FT_SET(slot->operation.begun, 1);
        put(slot, FT_EVENT_BEGIN, 0);
    }
    made = ft_slot_begin(slot);
    displaced = __atomic_exchange_n(&context->recent[ordinal % FT_RECENT], made, __ATOMIC_ACQ_REL);
    former = ft_slot_of(displaced, 1u << FT_HANDLE_SLOT);
    if (former && idle(former)) finish(former, displaced, FT_GET(former->operation.last_end));
    return made;
}

void ft_operation_stop(uint64_t handle) {
    struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_SLOT);
    uint64_t now;

    if (!slot || __atomic_exchange_n(&slot->operation.stopped, 1, __ATOMIC_ACQ_REL)) {
        ft_trace_misuse();
        return;
    }
    /* Without a child so far, this is the best end that is known. */
    now = FT_GET(slot->operation.children) ? 0 : ft_trace_now_ns();
    ft_operation_leave(slot, handle, now);
}

uint64_t ft_kernel_start(int version, const struct ft_nccl_descriptor *of) {
    uint64_t parent = ft_forward_own((uint64_t)(uintptr_t)of->parent), none = 0, first, handle;
    uint8_t channel = of->kernel_channel.channel;
    struct ft_slot *slot = ft_operation_join(parent);
    struct ft_operation *operation;

    if (!slot) {
        if (parent) ft_trace_misuse();
        return 0;
    }
    operation = &slot->operation;
    if (__atomic_fetch_or(&operation->kernels_open[channel / 64], UINT64_C(1) << channel % 64,
                          __ATOMIC_RELAXED) >>
            channel % 64 &
        1u) {
        ft_trace_misuse();
        ft_operation_leave(slot, parent, 0);
        return 0;
    }
    handle = (parent & ~(UINT64_C(7) << 50)) | (uint64_t)FT_HANDLE_KERNEL << 50 |
             (uint64_t)channel << FT_SLOT_BITS;
    if (ft_kernels_lag(slot)) return handle;
    if (!FT_GET(operation->kernel_seen) &&
        __atomic_compare_exchange_n(&operation->kernel_seen, &none, ft_trace_now_ns(), false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
        !__atomic_exchange_n(&operation->begun, 1, __ATOMIC_RELAXED))
        put(slot, FT_EVENT_BEGIN, 0);
    first = FT_GET(operation->kernel_begin);
    if (version >= 4 && (!first || of->kernel_channel.timer < first))
        FT_SET(operation->kernel_begin, of->kernel_channel.timer);
    return handle;
}

void ft_kernel_record(uint64_t handle, int state, const union ft_nccl_arguments *arguments) {
    struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_KERNEL);

    if (!slot)
        ft_trace_misuse();
    else if (state == FT_NCCL_KERNEL_CHANNEL_STOP && arguments && !ft_kernels_lag(slot) &&
             arguments->timer > FT_GET(slot->operation.kernel_end))
        FT_SET(slot->operation.kernel_end, arguments->timer);
}

void ft_kernel_stop(uint64_t handle) {
    struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_KERNEL);
    uint32_t channel = ft_handle_part(handle) & 255u;
    uint64_t bit = UINT64_C(1) << channel % 64;

    if (!slot ||
        !(__atomic_fetch_and(&slot->operation.kernels_open[channel / 64], ~bit, __ATOMIC_RELAXED) & bit)) {
        ft_trace_misuse();
        return;
    }
    __atomic_add_fetch(&slot->operation.kernels_done, 1, __ATOMIC_RELAXED);
    handle = (handle & ~(UINT64_C(7) << 50 | UINT64_C(511) << FT_SLOT_BITS)) | (uint64_t)FT_HANDLE_SLOT << 50;
    ft_operation_leave(slot, handle, ft_trace_now_ns());
}

static void end_transfer(struct ft_slot *slot, uint64_t handle) {
    if (FT_GET(slot->type) == FT_NCCL_PROXY_OP) ft_transfer_stop(handle);
}

static void end_operation(struct ft_slot *slot, uint64_t handle) {
    if (FT_GET(slot->type) != FT_NCCL_PROXY_OP) finish(slot, handle, ft_trace_now_ns());
}

/* End all that a communicator has in flight. */
void ft_operations_finalize(struct ft_nccl_context *context) {
    uint16_t index = (uint16_t)(context - ft_contexts);

    ft_slots_of_context(index, end_transfer);
    ft_slots_of_context(index, end_operation);
}

/* Make a context ready for a communicator. Return false without memory. */
bool ft_context_prepare(struct ft_nccl_context *context, uint32_t ranks) {
    uint32_t peers = ranks ? ranks : PEERS_UNKNOWN;
    struct ft_pairs *pairs = context->pairs;

    if (!pairs || peers > pairs->peers) {
        pairs = calloc(1, sizeof(*pairs) + 2 * (size_t)peers * sizeof(pairs->sequences[0]));
        if (!pairs) return false;
        pairs->former = context->pairs;
        pairs->peers = peers;
        __atomic_store_n(&context->pairs, pairs, __ATOMIC_RELEASE);
    } else {
        for (uint32_t n = 0; n < 2 * pairs->peers; n++) FT_SET(pairs->sequences[n], 0);
    }
    FT_SET(context->sequence, 0);
    FT_SET(context->ordinals, 0);
    FT_SET(context->swept, 0);
    FT_SET(context->no_counts, 0);
    FT_SET(context->silent, 0);
    FT_SET(context->lagging, 0);
    FT_SET(context->described, 0);
    FT_SET(context->communicator, -1);
    for (unsigned n = 0; n < FT_RECENT; n++) FT_SET(context->recent[n], 0);
    return true;
}
