/* Transfers: operations of the proxy, with the four waits of their steps.
 *
 * A step passes through states, and NCCL calls the profiler at each: four clock reads a step would cost the
 * proxy thread too much. So one step of each block of N is measured, drawn at random, and the others receive
 * no handle: NCCL makes no further call for them. N = steps / 64, rounded up, so that a transfer of up to 64
 * steps is measured whole. Operations of fewer than 8 channels have few transfers, so more of their steps are
 * measured: 64 * 8 / channels. A transfer's waits are those of its measured steps, times steps / measured.
 *
 * Error of a wait's share p, with n measured steps of a collective, if waits vary by their mean: at most about
 * sqrt(2 p (1 - p) / n). A collective has a transfer per channel, peer and direction: 16 transfers of 64
 * measured steps give 2.2 points at p = 0.5, 64 transfers 1.1. Drawing one step of each block, not any,
 * removes the error of phases that are longer than a block, and of periods. */
#include "plugin.h"

enum step_state { FREE, STARTED, SEND_GPU, SEND_PEER, SEND_WAIT, RECV_WAIT, RECV_FLUSH, RECV_GPU, STATES };

static const uint8_t state_of[FT_NCCL_STEP_SEND_PEER_WAIT + 1] = {
    [FT_NCCL_STEP_SEND_GPU_WAIT] = SEND_GPU,     [FT_NCCL_STEP_SEND_PEER_WAIT] = SEND_PEER,
    [FT_NCCL_STEP_SEND_WAIT] = SEND_WAIT,        [FT_NCCL_STEP_RECV_WAIT] = RECV_WAIT,
    [FT_NCCL_STEP_RECV_FLUSH_WAIT] = RECV_FLUSH, [FT_NCCL_STEP_RECV_GPU_WAIT] = RECV_GPU,
};
static const uint8_t wait_of[STATES] = {
    [SEND_GPU] = FT_WAIT_GPU,      [SEND_PEER] = FT_WAIT_PEER,   [SEND_WAIT] = FT_WAIT_NETWORK,
    [RECV_WAIT] = FT_WAIT_NETWORK, [RECV_FLUSH] = FT_WAIT_FLUSH, [RECV_GPU] = FT_WAIT_GPU,
};

static uint64_t parent_of(const struct ft_nccl_descriptor *of) {
    return ft_forward_own((uint64_t)(uintptr_t)of->parent);
}

static void fill(struct ft_transfer *to, const struct ft_nccl_proxy_op *of, const struct ft_slot *parent) {
    uint32_t steps = of->steps > 0 ? (uint32_t)of->steps : 1, samples = FT_GET(ft_samples);
    uint16_t channels = parent ? FT_GET(parent->operation.channels) : 0;
    uint64_t number = parent ? FT_GET(parent->operation.number) : 0;

    FT_SET(to->number, number);
    FT_SET(to->sequence, parent ? FT_GET(parent->operation.sequence) : 0);
    FT_SET(to->tag, parent ? FT_GET(parent->operation.tag) : 0);
    FT_SET(to->function, parent ? FT_GET(parent->operation.function) : FT_UNKNOWN_FUNCTION);
    FT_SET(to->algorithm, parent ? FT_GET(parent->operation.algorithm) : FT_NO_ALGORITHM);
    FT_SET(to->protocol, parent ? FT_GET(parent->operation.protocol) : FT_NO_PROTOCOL);
    FT_SET(to->bytes, 0);
    FT_SET(to->exact_bytes, 0);
    for (unsigned n = 0; n < FT_PLACES; n++) FT_SET(to->places[n], 0);
    for (unsigned n = 0; n < FT_WAITS; n++) FT_SET(to->waits[n], 0);
    FT_SET(to->started, 0);
    FT_SET(to->sampled, 0);
    FT_SET(to->next, 0);
    FT_SET(to->block_end, 0);
    if (channels && channels < FT_MANY_CHANNELS) samples *= FT_MANY_CHANNELS / channels; /* few transfers */
    FT_SET(to->block, samples ? (steps + samples - 1) / samples : 1);
    FT_SET(to->chance,
           (uint32_t)(number * 2654435761u) ^ (uint32_t)of->peer << 8 ^ of->channel ^ 0x9e3779b9u);
    FT_SET(to->chunk, of->chunk > 0 ? (uint32_t)of->chunk : 0);
    FT_SET(to->peer, ft_rank(of->peer));
    FT_SET(to->channel, of->channel);
    FT_SET(to->sends, of->sends != 0);
    FT_SET(to->marks, parent && ft_kernels_lag(parent));
}

/* The GPU has delivered or taken the data of a step: the operation of the transfer runs. */
static void mark(struct ft_transfer *of, uint64_t now) {
    uint64_t parent = FT_GET(of->parent);
    struct ft_slot *operation = parent ? ft_slot_of(parent, 1u << FT_HANDLE_SLOT) : NULL;

    FT_SET(of->marks, 0);
    if (operation) ft_operation_seen(operation, now);
}

uint64_t ft_transfer_start(int version, uint64_t handle, const struct ft_nccl_descriptor *of) {
    /* With PXN, the operation and its context are those of another process: their handles mean nothing here. */
    bool here = of->proxy_op.pid == FT_GET(ft_pid);
    uint64_t parent = here ? parent_of(of) : 0;
    struct ft_nccl_context *context = here ? ft_context_of(handle) : NULL;
    int sole = FT_GET(ft_sole_context);
    struct ft_slot *slot, *operation;

    if (!here && sole >= 0) context = &ft_contexts[sole];
    operation = parent ? ft_operation_join(parent) : NULL;
    if (parent && !operation) ft_trace_misuse();
    if (!operation && (!context || FT_GET(context->communicator) < 0)) {
        if (here && handle && !context) ft_trace_misuse();
        return 0;
    }
    slot = ft_slot_take();
    if (!slot) {
        if (operation) ft_operation_leave(operation, parent, ft_trace_now_ns());
        return 0;
    }
    fill(&slot->transfer, &of->proxy_op, operation);
    FT_SET(slot->transfer.sized, version >= 4);
    FT_SET(slot->transfer.parent, operation ? parent : 0);
    FT_SET(slot->context, operation ? FT_GET(operation->context) : (uint16_t)(context - ft_contexts));
    FT_SET(slot->communicator,
           operation ? FT_GET(operation->communicator) : (uint16_t)FT_GET(context->communicator));
    FT_SET(slot->type, FT_NCCL_PROXY_OP);
    FT_SET(slot->transfer.begin, ft_trace_now_ns());
    return ft_slot_begin(slot);
}

/* Before version 4, NCCL states the bytes moved so far with an operation of the proxy. */
void ft_transfer_record(uint64_t handle, int state, const union ft_nccl_arguments *arguments) {
    struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_SLOT);
    struct ft_transfer *of;

    if (!slot || FT_GET(slot->type) != FT_NCCL_PROXY_OP) {
        ft_trace_misuse();
        return;
    }
    of = &slot->transfer;
    if (arguments && !FT_GET(of->sized) && state >= FT_NCCL_OP_SEND_POSTED && state <= FT_NCCL_OP_RECV_DONE &&
        arguments->proxy_op.bytes > FT_GET(of->exact_bytes))
        FT_SET(of->exact_bytes, arguments->proxy_op.bytes);
}

/* Scale a sum over the measured steps to all steps. */
static uint64_t scaled(uint64_t sum, uint32_t steps, uint32_t sampled) {
    unsigned __int128 all;

    if (steps == sampled || !sampled) return ft_bounded(sum);
    all = ((unsigned __int128)sum * steps + sampled / 2) / sampled;
    return all < FT_MAX ? (uint64_t)all : FT_MAX;
}

static uint64_t bytes_of(const struct ft_transfer *of, uint32_t steps, uint32_t sampled) {
    if (FT_GET(of->exact_bytes)) return ft_bounded(FT_GET(of->exact_bytes));
    if (FT_GET(of->sized) && sampled) return scaled(FT_GET(of->bytes), steps, sampled);
    return ft_bounded((uint64_t)steps * FT_GET(of->chunk)); /* at most */
}

static void add_to(struct ft_slot *operation, const struct ft_event *event) {
    struct ft_operation *to = &operation->operation;
    const uint64_t waits[FT_WAITS] = {event->gpu_late_ns, event->peer_late_ns, event->network_late_ns,
                                      event->flush_ns};

    for (unsigned n = 0; n < FT_WAITS; n++)
        if (waits[n]) __atomic_fetch_add(&to->waits[n], waits[n], __ATOMIC_RELAXED);
    __atomic_fetch_add(&to->steps, event->steps, __ATOMIC_RELAXED);
    __atomic_fetch_add(&to->sampled, event->sampled, __ATOMIC_RELAXED);
}

void ft_transfer_stop(uint64_t handle) {
    struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_SLOT), *operation;
    struct ft_transfer *of;
    struct ft_event event;
    uint32_t steps, sampled;
    uint64_t parent;

    if (!slot || FT_GET(slot->type) != FT_NCCL_PROXY_OP || !ft_slot_end(slot, handle)) {
        ft_trace_misuse();
        return;
    }
    of = &slot->transfer;
    steps = FT_GET(of->started);
    sampled = FT_GET(of->sampled);
    parent = FT_GET(of->parent);
    event = (struct ft_event){
        .begin_raw_ns = FT_GET(of->begin),
        .end_raw_ns = ft_trace_now_ns(),
        .operation = FT_GET(of->number),
        .sequence = FT_GET(of->sequence),
        .bytes = bytes_of(of, steps, sampled),
        .tag = FT_GET(of->tag),
        .kind = FT_EVENT_TRANSFER,
        .function = FT_GET(of->function),
        .algorithm = FT_GET(of->algorithm),
        .protocol = FT_GET(of->protocol),
        .communicator = FT_GET(slot->communicator),
        .channel = FT_GET(of->channel),
        .peer = FT_GET(of->peer),
        .flags = (uint16_t)((FT_GET(of->sends) ? FT_FLAG_SENDS : 0) | (sampled ? FT_FLAG_SPLIT : 0)),
        .steps = steps,
        .sampled = sampled,
        .gpu_late_ns = scaled(FT_GET(of->waits[FT_WAIT_GPU]), steps, sampled),
        .peer_late_ns = scaled(FT_GET(of->waits[FT_WAIT_PEER]), steps, sampled),
        .network_late_ns = scaled(FT_GET(of->waits[FT_WAIT_NETWORK]), steps, sampled),
        .flush_ns = scaled(FT_GET(of->waits[FT_WAIT_FLUSH]), steps, sampled),
    };
    if (event.end_raw_ns <= event.begin_raw_ns) event.end_raw_ns = event.begin_raw_ns + 1;
    ft_event_put(&event);
    ft_slot_free(slot);
    operation = parent ? ft_slot_of(parent, 1u << FT_HANDLE_SLOT) : NULL;
    if (!operation) return;
    add_to(operation, &event);
    ft_operation_leave(operation, parent, event.end_raw_ns);
}

/* Draw the step of the next block that is measured. */
static void next_block(struct ft_transfer *of, uint32_t from) {
    uint32_t chance = FT_GET(of->chance), block = FT_GET(of->block);

    chance ^= chance << 13;
    chance ^= chance >> 17;
    chance ^= chance << 5;
    FT_SET(of->chance, chance ? chance : 1);
    FT_SET(of->next, from + (uint32_t)((uint64_t)chance * block >> 32));
    FT_SET(of->block_end, from + block);
}

/* Return a handle if the step is measured. */
uint64_t ft_step_start(const struct ft_nccl_descriptor *of) {
    uint64_t parent = parent_of(of);
    struct ft_slot *slot = ft_slot_of(parent, 1u << FT_HANDLE_SLOT);
    struct ft_transfer *transfer;
    uint32_t step, place, sequence;

    if (!slot || FT_GET(slot->type) != FT_NCCL_PROXY_OP) {
        if (parent) ft_trace_misuse();
        return 0;
    }
    transfer = &slot->transfer;
    step = FT_GET(transfer->started);
    FT_SET(transfer->started, step + 1);
    if (step == FT_PLACES && FT_GET(transfer->marks)) mark(transfer, ft_trace_now_ns());
    if (step == FT_GET(transfer->block_end)) next_block(transfer, step);
    if (step != FT_GET(transfer->next)) return 0;
    place = step % FT_PLACES;
    sequence = step / FT_PLACES % 16;
    if (FT_GET(transfer->places[place])) return 0; /* a former one never stopped */
    FT_SET(transfer->places[place], (uint64_t)STARTED << 4 | sequence);
    return (parent & ~(UINT64_C(7) << 50)) | (uint64_t)FT_HANDLE_STEP << 50 |
           (uint64_t)(place | sequence << 3) << FT_SLOT_BITS;
}

/* The place of a step's handle, or NULL: it was stopped, or never started. */
static uint64_t *place_of(struct ft_slot *slot, uint64_t handle) {
    uint32_t part = ft_handle_part(handle);
    uint64_t *place, value;

    if (!slot || FT_GET(slot->type) != FT_NCCL_PROXY_OP) return NULL;
    place = &slot->transfer.places[part & 7u];
    value = FT_GET(*place);
    return value && (value & 15u) == part >> 3 ? place : NULL;
}

/* Leave a state, entered at `value`, and return the time. */
static uint64_t leave(struct ft_transfer *of, uint64_t value) {
    uint64_t now = ft_trace_now_ns() & (UINT64_MAX >> 8), since = value >> 8;
    unsigned state = value >> 4 & 15u;

    if (state >= SEND_GPU && state < STATES && now > since)
        FT_SET(of->waits[wait_of[state]], FT_GET(of->waits[wait_of[state]]) + now - since);
    return now;
}

void ft_step_record(uint64_t handle, int state, const union ft_nccl_arguments *arguments) {
    struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_STEP);
    uint64_t *place = place_of(slot, handle), value;
    uint8_t to = state >= 0 && state <= FT_NCCL_STEP_SEND_PEER_WAIT ? state_of[state] : FREE;

    if (!place) {
        ft_trace_misuse();
        return;
    }
    value = FT_GET(*place);
    if (to == FREE || to == (value >> 4 & 15u))
        return; /* NCCL repeats SendPeerWait until the peer is ready */
    if ((value >> 4 & 15u) == SEND_GPU && FT_GET(slot->transfer.marks))
        mark(&slot->transfer, ft_trace_now_ns());
    FT_SET(*place, leave(&slot->transfer, value) << 8 | (uint64_t)to << 4 | (value & 15u));
    if ((to == SEND_WAIT || to == RECV_FLUSH) && arguments && FT_GET(slot->transfer.sized))
        FT_SET(slot->transfer.bytes, FT_GET(slot->transfer.bytes) + arguments->step_bytes);
}

void ft_step_stop(uint64_t handle) {
    struct ft_slot *slot = ft_slot_of(handle, 1u << FT_HANDLE_STEP);
    uint64_t *place = place_of(slot, handle), value;

    if (!place) {
        ft_trace_misuse();
        return;
    }
    value = FT_GET(*place);
    leave(&slot->transfer, value);
    FT_SET(*place, 0);
    FT_SET(slot->transfer.sampled, FT_GET(slot->transfer.sampled) + 1);
}
