/* Layout of the shared memory between a process with a profiler and the reporter of its host.
 *
 * The process creates one segment as a sealed memfd (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL). It passes the
 * descriptor over the reporter's Unix socket, so that neither /dev/shm nor a file name is needed. The segment
 * survives the death of either side: the process keeps its descriptor and passes it to the next reporter, and
 * the reporter drains the rings of a process that has died.
 *
 * Each thread of the process writes one ring. A ring has one writer and one reader, no lock and no system
 * call. A full ring counts the event in `dropped`. The writer never waits, and never reads `tail` as an index
 * without masking it. The reader trusts nothing in the segment: it checks sizes and offsets once against the
 * descriptor's size, copies each event before it reads the event, and masks every index.
 *
 * Socket protocol (SOCK_SEQPACKET): the process sends "SEGMENT 1" with the descriptor (SCM_RIGHTS). The
 * reporter answers "OK" or "ERROR <one line>". The connection then stays open; its end means that the process
 * has ended, or that the reporter has. The process connects again every 500 ms. Its environment names the
 * socket: FABRICTIME_COLLECTIVES; without it, the profiler does nothing. FABRICTIME_COLLECTIVES_EVENTS sets the
 * events of a ring. A child after fork has no segment until it opens one.
 *
 * Times are CLOCK_MONOTONIC_RAW. The reader converts them to fabric time by the clock page of the host, which
 * costs the job nothing. */
#ifndef FABRICTIME_SEGMENT_H
#define FABRICTIME_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#define FT_SEGMENT_MAGIC   "FTCOLL1" /* including its NUL: 8 bytes */
#define FT_SEGMENT_VERSION 2u

enum {
    FT_SEGMENT_HEAD = 4096,     /* offset of the first communicator */
    FT_COMMUNICATORS = 4096,    /* of 256 bytes each */
    FT_DEVICES = 64,            /* of 64 bytes each: names of RDMA devices */
    FT_RINGS_MAX = 256,         /* threads with a ring of their own */
    FT_RING_HEAD = 256,         /* bytes before a ring's events */
    FT_RING_EVENTS_MIN = 64,    /* events of a ring: a power of two */
    FT_RING_EVENTS = 4096,      /* by default */
    FT_RING_EVENTS_MAX = 65536, /* at most */
    FT_SEGMENT_MAX = 1 << 30    /* bytes */
};

enum ft_source { FT_SOURCE_UNKNOWN, FT_SOURCE_NCCL, FT_SOURCE_RCCL, FT_SOURCE_MPI, FT_SOURCE_VERBS };

/* The head. All but the counters is written before the segment is passed on. */
struct ft_segment {
    char magic[8];
    uint32_t version;
    uint32_t source;      /* enum ft_source */
    uint64_t bytes;       /* of the whole segment */
    uint32_t rings;       /* room for so many rings */
    uint32_t ring_events; /* events of each ring, a power of two */
    uint64_t created_raw_ns;
    uint32_t pid; /* in its own pid namespace; the reporter takes the socket's credentials instead */
    uint32_t reserved;
    char job[128]; /* job_name.h; empty: unknown */
    char tenant[128];
    char version_text[64];          /* library and interface, such as 2.30.7/v6 */
    uint64_t rings_used;            /* atomic */
    uint64_t ringless;              /* atomic: events of threads that found no ring */
    uint64_t closed;                /* atomic: 1 after the last finalize */
    uint64_t batch;                 /* atomic: number of the process's next record; written by the reader */
    uint64_t communicators_used;    /* atomic: rows that are or were in use, from the first */
    uint64_t communicators_changed; /* atomic: grows with each change of a row */
};

/* A communicator; `ready` is stored last, with release. A row of one that has ended is used again, with the next
 * generation, once the reader has committed all events before its end. */
enum ft_ready { FT_ROW_FREE, FT_ROW_IN_USE, FT_ROW_ENDED };

struct ft_segment_communicator {
    uint32_t ready; /* atomic: enum ft_ready */
    uint32_t rank;
    uint32_t ranks; /* 0: unknown */
    uint32_t nodes; /* 0: unknown */
    uint64_t id;    /* equal at all ranks */
    char name[128];
    char gpu[32]; /* PCI address or index; empty: unknown */
    uint32_t generation;
    char reserved[68];
};

struct ft_segment_device {
    uint32_t ready; /* atomic */
    char name[60];
};

/* The head of a ring. Writer and reader have a cache line each. */
struct ft_ring_head {
    uint64_t head; /* atomic: events written since the beginning */
    uint64_t dropped;
    uint64_t misuse; /* calls that the profiler had to ignore: stop without start, and so on */
    uint32_t tid;
    uint32_t taken; /* atomic: 1 while a thread owns the ring, so that another may follow it */
    char pad1[32];
    uint64_t tail; /* atomic: events read; written by the reader */
    char pad2[56];
    char pad3[128];
};

enum ft_event_kind {
    FT_EVENT_NONE,
    FT_EVENT_BEGIN,     /* an operation began: the fields of its end, as far as known; end_raw_ns is 0 */
    FT_EVENT_END,       /* an operation ended */
    FT_EVENT_TRANSFER,  /* data of an operation on one channel to or from one peer has been moved */
    FT_EVENT_QUEUE_PAIR /* chunks of one queue pair that completed within an interval */
};

/* As CollectiveFunction in schemas/CollectiveBatch.avsc. */
enum ft_function {
    FT_UNKNOWN_FUNCTION,
    FT_ALL_REDUCE,
    FT_ALL_GATHER,
    FT_REDUCE_SCATTER,
    FT_BROADCAST,
    FT_REDUCE,
    FT_ALL_TO_ALL,
    FT_GATHER,
    FT_SCATTER,
    FT_SCAN,
    FT_BARRIER,
    FT_SEND,
    FT_RECEIVE,
    FT_SEND_RECEIVE,
    FT_WAIT,
    FT_GATHERV, /* as FT_GATHER, with a size of each rank's own */
    FT_SCATTERV
};

enum ft_algorithm {
    FT_NO_ALGORITHM,
    FT_TREE,
    FT_RING,
    FT_COLLNET_DIRECT,
    FT_COLLNET_CHAIN,
    FT_NVLS,
    FT_NVLS_TREE,
    FT_PAT,
    FT_COPY_ENGINE
};
enum ft_protocol { FT_NO_PROTOCOL, FT_LL, FT_LL128, FT_SIMPLE };

enum { FT_FLAG_SENDS = 1, FT_FLAG_SPLIT = 2 /* the four waits are measured */ };

/* One event: two cache lines. Numbers that are not known are -1 where they are signed, else 0. */
struct ft_event {
    uint64_t begin_raw_ns;
    uint64_t end_raw_ns; /* 0: still running */
    uint64_t operation;  /* of a transfer: its operation's; unique in the segment; 0: none */
    union {
        uint64_t sequence; /* number within the communicator; point-to-point: and the peer and direction */
        uint64_t created;  /* create count of a queue pair, as in its flow's key; 0: unknown */
    };
    uint64_t bytes;
    uint64_t tag;
    uint8_t kind; /* enum ft_event_kind */
    uint8_t function;
    uint8_t algorithm;
    uint8_t protocol;
    uint16_t communicator; /* index */
    uint16_t channel;      /* of a transfer; of an operation: number of channels, 0: unknown */
    int32_t peer;          /* rank, or the root; -1: none */
    uint16_t flags;
    uint16_t device; /* of a queue pair: index of its device */
    union {
        uint32_t steps;      /* of a transfer */
        uint32_t queue_pair; /* number of a queue pair */
    };
    union {
        uint32_t sampled;   /* of a transfer: steps that were measured */
        uint32_t completed; /* of a queue pair: chunks measured within the interval; `bytes` are of all */
    };
    union {
        uint32_t launch_ns; /* from an operation's call to its begin; saturates */
        uint32_t min_ns;    /* of a queue pair: least time from post to completion; saturates */
    };
    union {
        uint32_t kernel_ns; /* by the GPU's timer; saturates */
        uint32_t max_ns;    /* of a queue pair; saturates */
    };
    union {
        uint64_t gpu_late_ns;
        uint64_t sum_ns; /* of a queue pair */
    };
    union {
        uint64_t peer_late_ns;
        uint64_t p99_ns; /* of a queue pair, within a factor of 1.2 */
    };
    union {
        uint64_t network_late_ns;
        uint64_t posted; /* of a queue pair: chunks posted and not completed */
    };
    uint64_t flush_ns;
    uint64_t reserved[2]; /* 0 */
};

_Static_assert(sizeof(struct ft_segment) <= FT_SEGMENT_HEAD, "head");
_Static_assert(sizeof(struct ft_segment_communicator) == 256, "communicator");
_Static_assert(sizeof(struct ft_segment_device) == 64, "device");
_Static_assert(sizeof(struct ft_ring_head) == FT_RING_HEAD, "ring head");
_Static_assert(sizeof(struct ft_event) == 128, "event");

/* Limits of an event that the reader takes. A sum of 2^17 of these ns or bytes fits in 63 bits. */
#define FT_NS_MAX       (UINT64_C(1) << 46)
#define FT_BYTES_MAX    (UINT64_C(1) << 46)
#define FT_SEQUENCE_MAX (UINT64_C(1) << 62)
#define FT_POSTED_MAX   UINT64_C(1000000000)
enum { FT_RANK_MAX = 0xffffff };

static inline bool ft_queue_pair_plausible(const struct ft_event *event) {
    return event->end_raw_ns && event->device < FT_DEVICES && event->queue_pair <= FT_RANK_MAX &&
           event->min_ns <= event->max_ns && event->posted <= FT_POSTED_MAX;
}

/* Return true if the reader takes the event, whose times must not be later than `now_ns`. */
static inline bool ft_event_plausible(const struct ft_event *event, uint64_t now_ns) {
    uint64_t end = event->end_raw_ns;

    if (event->kind <= FT_EVENT_NONE || event->kind > FT_EVENT_QUEUE_PAIR) return false;
    if (event->function > FT_SCATTERV || event->algorithm > FT_COPY_ENGINE || event->protocol > FT_SIMPLE)
        return false;
    if (event->communicator >= FT_COMMUNICATORS && event->communicator != UINT16_MAX) return false;
    if (event->peer < -1 || event->peer > FT_RANK_MAX) return false;
    if (!event->begin_raw_ns || event->begin_raw_ns > now_ns || end > now_ns) return false;
    if (end && (end < event->begin_raw_ns || end - event->begin_raw_ns > FT_NS_MAX)) return false;
    if ((event->gpu_late_ns | event->peer_late_ns | event->network_late_ns | event->flush_ns) >= FT_NS_MAX)
        return false;
    if (event->bytes > FT_BYTES_MAX || event->tag > INT64_MAX) return false;
    if (event->sequence > FT_SEQUENCE_MAX || event->operation > FT_SEQUENCE_MAX) return false;
    switch (event->kind) {
    case FT_EVENT_BEGIN:
        return !end;
    case FT_EVENT_END:
        return end;
    case FT_EVENT_TRANSFER:
        return event->sampled <= event->steps;
    default:
        return ft_queue_pair_plausible(event);
    }
}

/* Offsets. */
static inline uint64_t ft_segment_devices_at(void) {
    return FT_SEGMENT_HEAD + (uint64_t)FT_COMMUNICATORS * 256;
}
static inline uint64_t ft_segment_rings_at(void) {
    return ft_segment_devices_at() + (uint64_t)FT_DEVICES * 64;
}
static inline uint64_t ft_segment_ring_bytes(uint32_t events) {
    return FT_RING_HEAD + (uint64_t)events * sizeof(struct ft_event);
}
static inline uint64_t ft_segment_bytes(uint32_t rings, uint32_t events) {
    return ft_segment_rings_at() + rings * ft_segment_ring_bytes(events);
}

#endif
