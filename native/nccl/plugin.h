/* The NCCL and RCCL profiler plugin: what its files share.
 *
 * A handle that NCCL keeps is a number, never a pointer: 11 bits of the process, 3 bits of its kind, 50 bits
 * of the kind's own. So a handle that is stale, invented, or another process's (PXN) is recognized without an
 * access to memory. */
#ifndef FABRICTIME_NCCL_PLUGIN_H
#define FABRICTIME_NCCL_PLUGIN_H

#include "profiler_abi.h"
#include "writer.h"

enum ft_handle_kind {
    FT_HANDLE_SLOT = 1, /* generation 21, part 9, slot 20 bits */
    FT_HANDLE_STEP,     /* likewise; part: place and sequence of a measured step */
    FT_HANDLE_KERNEL,   /* likewise; part: channel */
    FT_HANDLE_CALL,     /* ns of the call of a group, collective or point-to-point operation */
    FT_HANDLE_NET,      /* queue pair 10, units of 16 ns of its post 40 bits */
    FT_HANDLE_CONTEXT,  /* likewise a slot's */
    FT_HANDLE_FORWARD,  /* ordinal of an event that another profiler receives as well */
};

enum {
    FT_SLOT_BITS = 20,
    FT_PART_BITS = 9,
    FT_GENERATION_BITS = 21,
    FT_PLACES = 8,          /* measured steps in flight: NCCL's NCCL_STEPS */
    FT_THREADS = 256,       /* with slots of their own */
    FT_THREAD_SLOTS = 4096, /* operations and transfers in flight that a thread began */
    FT_CONTEXTS = 256,      /* communicators at a time */
    FT_RECENT = 256,        /* operations of a communicator that may end without a sign of their own */
    FT_SAMPLES = 64,        /* measured steps of a transfer, about */
    FT_MANY_CHANNELS = 8,   /* of an operation: fewer are measured more closely */
    FT_SILENT = 8,          /* operations without kernel channels, until none are expected */
};

#define FT_GENERATION_MASK ((1u << FT_GENERATION_BITS) - 1u)

/* A field that two threads may reach if NCCL misuses a handle. */
#define FT_GET(field)        __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define FT_SET(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

enum ft_wait { FT_WAIT_GPU, FT_WAIT_PEER, FT_WAIT_NETWORK, FT_WAIT_FLUSH, FT_WAITS };

/* A collective or a point-to-point operation. */
struct ft_operation {
    uint64_t begin, call, last_end;    /* raw ns; 0: none */
    uint64_t kernel_seen;              /* raw ns when the first kernel channel began */
    uint64_t kernel_begin, kernel_end; /* ns of the GPU's timer */
    uint64_t number, sequence, bytes, tag;
    uint64_t group;           /* handle of the group that launched it */
    uint64_t kernels_open[4]; /* bits of channels */
    uint64_t waits[FT_WAITS]; /* of its transfers */
    uint32_t steps, sampled;
    int32_t open; /* the operation itself until its stop, transfers and kernel channels */
    int32_t peer;
    uint32_t ordinal;      /* in its context */
    uint32_t kernels_done; /* kernel channels that ended */
    uint16_t channels;
    uint8_t function, algorithm, protocol;
    uint8_t stopped, children, begun;
};

/* An operation of the proxy: data of an operation on one channel to or from one peer. */
struct ft_transfer {
    uint64_t begin, parent; /* handle; 0: none in this process */
    uint64_t number, sequence, tag;
    uint64_t bytes, exact_bytes;
    uint64_t places[FT_PLACES]; /* since 56, state 4, sequence 4 bits; 0: free */
    uint64_t waits[FT_WAITS];
    uint32_t started, sampled;       /* steps */
    uint32_t next, block_end, block; /* the step to measure, in blocks of so many steps */
    uint32_t chance;
    uint32_t chunk;
    int32_t peer;
    uint16_t channel;
    uint8_t function, algorithm, protocol;
    uint8_t sends, sized; /* sized: NCCL states the bytes of a step */
    uint8_t marks;        /* shows when its operation begins on the GPU */
};

struct ft_slot {
    uint32_t generation; /* odd: in use */
    uint32_t next;       /* free slot after this one, plus 1 */
    uint16_t owner;      /* thread */
    uint16_t context;
    uint16_t communicator;
    uint8_t type; /* enum ft_nccl_type */
    union {
        struct ft_operation operation;
        struct ft_transfer transfer;
    };
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct ft_slot) == 256, "slot");

/* Sequences of point-to-point operations, per peer and direction. A greater table replaces a smaller one, which
 * stays: a call for a former communicator may still read it. */
struct ft_pairs {
    struct ft_pairs *former;
    uint32_t peers;
    uint32_t sequences[];
};

struct ft_nccl_context {
    uint32_t generation; /* odd: in use */
    int communicator;    /* -1: not yet registered, or no capacity */
    uint8_t traced;      /* holds the segment open */
    uint8_t described;   /* its description is complete */
    uint8_t kernels;     /* kernel channels are on */
    uint8_t no_counts;   /* operations end before as many kernel channels as announced */
    uint8_t silent;      /* operations in succession whose kernel channels were not reported */
    uint8_t sweeping;
    uint8_t lagging; /* its kernel channels are those of earlier operations */
    struct ft_segment_communicator description;
    uint64_t sequence; /* of collectives */
    struct ft_pairs *pairs;
    uint32_t ordinals, swept;
    uint64_t recent[FT_RECENT]; /* handles of operations, by ordinal */
    void *forwarded;            /* the other profiler's context */
};

/* An operation's description, whatever the version. */
struct ft_description {
    uint64_t id, bytes, tag, group, call;
    const char *name;
    int32_t peer;
    uint16_t channels;
    uint8_t function, algorithm, protocol;
};

extern uint64_t ft_process; /* the process's bits of a handle; 0 in a child after fork */
extern uint32_t ft_samples; /* measured steps of a transfer; 0: all */
extern int ft_pid;
extern int ft_sole_context; /* index, if one communicator alone is in use; else -1 */
extern struct ft_nccl_context ft_contexts[FT_CONTEXTS];

static inline uint64_t ft_handle(enum ft_handle_kind kind, uint64_t value) {
    return FT_GET(ft_process) << 53 | (uint64_t)kind << 50 | (value & ((UINT64_C(1) << 50) - 1));
}
static inline uint64_t ft_slot_handle(enum ft_handle_kind kind, uint32_t generation, uint32_t part,
                                      uint32_t slot) {
    return ft_handle(kind, (uint64_t)(generation & FT_GENERATION_MASK) << 29 | (uint64_t)part << 20 | slot);
}
/* The kind of a handle; 0 if it is not this process's. */
static inline unsigned ft_handle_kind(uint64_t handle) {
    uint64_t process = FT_GET(ft_process);

    return process && handle >> 53 == process ? handle >> 50 & 7u : 0;
}
static inline uint32_t ft_handle_part(uint64_t handle) {
    return handle >> FT_SLOT_BITS & ((1u << FT_PART_BITS) - 1u);
}

/* Readers take no greater number of ns or bytes. */
#define FT_MAX (FT_NS_MAX - 1)
static inline uint64_t ft_bounded(uint64_t value) {
    return value < FT_MAX ? value : FT_MAX;
}
static inline int32_t ft_rank(int rank) {
    return rank >= 0 && rank <= FT_RANK_MAX ? rank : -1;
}

/* pool.c */
bool ft_pool_open(void);
void ft_pool_reset(void);
struct ft_slot *ft_slot_take(void);
uint64_t ft_slot_begin(struct ft_slot *slot);
struct ft_slot *ft_slot_of(uint64_t handle, unsigned kinds);
bool ft_slot_end(struct ft_slot *slot, uint64_t handle);
void ft_slot_free(struct ft_slot *slot);
void ft_slots_of_context(uint16_t context, void (*visit)(struct ft_slot *slot, uint64_t handle));

/* events.c */
void ft_event_put(struct ft_event *event);

/* describe.c */
unsigned ft_type_of(int version, const struct ft_nccl_descriptor *from);
void ft_describe_collective(int version, const struct ft_nccl_descriptor *from, struct ft_description *to);
void ft_describe_p2p(int version, const struct ft_nccl_descriptor *from, struct ft_description *to);

/* operations.c */
struct ft_nccl_context *ft_context_of(uint64_t handle);
uint64_t ft_operation_start(int version, unsigned type, uint64_t context,
                            const struct ft_nccl_descriptor *of);
void ft_operation_stop(uint64_t handle);
uint64_t ft_kernel_start(int version, const struct ft_nccl_descriptor *of);
void ft_kernel_record(uint64_t handle, int state, const union ft_nccl_arguments *arguments);
void ft_kernel_stop(uint64_t handle);
struct ft_slot *ft_operation_join(uint64_t handle);
void ft_operation_leave(struct ft_slot *slot, uint64_t handle, uint64_t now);
void ft_operation_seen(struct ft_slot *slot, uint64_t now);
bool ft_kernels_lag(const struct ft_slot *slot);
void ft_operations_finalize(struct ft_nccl_context *context);
void ft_context_describe(uint64_t handle, const struct ft_description *of, int rank);
bool ft_context_prepare(struct ft_nccl_context *context, uint32_t ranks);

/* transfers.c */
uint64_t ft_transfer_start(int version, uint64_t context, const struct ft_nccl_descriptor *of);
void ft_transfer_record(uint64_t handle, int state, const union ft_nccl_arguments *arguments);
void ft_transfer_stop(uint64_t handle);
uint64_t ft_step_start(const struct ft_nccl_descriptor *of);
void ft_step_record(uint64_t handle, int state, const union ft_nccl_arguments *arguments);
void ft_step_stop(uint64_t handle);

/* queue_pairs.c */
uint64_t ft_net_start(uint64_t context, const struct ft_nccl_descriptor *of);
void ft_net_stop(uint64_t handle);
void ft_net_finalize(uint16_t context);
void ft_net_reset(void);

/* library.c */
enum ft_source ft_library(const void *caller, int version, char *text, size_t size);
void ft_library_gpu(enum ft_source source, char *text, size_t size);

/* forward.c: another profiler behind this one */
bool ft_forward_active(void);
uint64_t ft_forward_own(uint64_t handle);
void ft_forward_init(int version, struct ft_nccl_context *context, const char *name, ft_nccl_log *log,
                     int *mask);
void ft_forward_start(int version, uint64_t context, const struct ft_nccl_descriptor *of, uint64_t *handle);
void ft_forward_stop(uint64_t handle);
void ft_forward_record(uint64_t handle, int state, union ft_nccl_arguments *arguments);
void ft_forward_finalize(struct ft_nccl_context *context);

#endif
