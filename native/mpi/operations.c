/* Operations and open requests. See trace.h. */
#include <string.h>

#include "trace.h"

enum {
    BUCKET = 8,             /* entries that are searched for a key */
    REQUEST_BUCKETS = 2048, /* 16,384 open requests */
    COUNT_BUCKETS = 2048    /* 16,384 triples of peer, tag and direction in use at a time */
};

#define IN_USE ((uintptr_t)1)

static struct ft_request requests[REQUEST_BUCKETS][BUCKET];

/* Counters by key: 32 bits of the key, 32 bits of the count. */
static struct {
    _Atomic uint64_t packed[BUCKET];
    _Atomic unsigned next; /* entry that a new key replaces */
} counters[COUNT_BUCKETS];

uint64_t ft_hash(uint64_t seed, uint64_t value) {
    uint64_t mixed = (seed ^ value) + UINT64_C(0x9e3779b97f4a7c15);

    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ mixed >> 31;
}

/* Return how often this key was counted before. If its bucket is full, the key replaces one that was added
 * long ago: a program that uses each tag once never needs an old one again. */
uint64_t ft_count(uint64_t key) {
    uint64_t hash = ft_hash(0, key), tag = (hash >> 32 | 1) << 32;
    _Atomic uint64_t *packed = counters[hash % COUNT_BUCKETS].packed;

    for (int n = 0; n < BUCKET; n++) {
        uint64_t seen = atomic_load_explicit(&packed[n], memory_order_relaxed);

        while (seen >> 32 == tag >> 32)
            if (atomic_compare_exchange_weak_explicit(&packed[n], &seen, tag | (uint32_t)(seen + 1),
                                                      memory_order_relaxed, memory_order_relaxed))
                return (uint32_t)seen;
    }
    unsigned n = atomic_fetch_add_explicit(&counters[hash % COUNT_BUCKETS].next, 1, memory_order_relaxed);

    atomic_store_explicit(&packed[n % BUCKET], tag | 1, memory_order_relaxed);
    return 0;
}

uint64_t ft_bytes(int64_t count, MPI_Datatype type) {
    int size = 0;

    if (count <= 0 || ft_mpi.Type_size(type, &size) != MPI_SUCCESS || size <= 0) return 0;
    return (uint64_t)count * (uint64_t)size;
}

/* Give an operation its number among those of its communicator, or of its peer, tag and direction. */
void ft_operation_number(struct ft_operation *operation, struct ft_communicator *communicator) {
    bool sends = operation->function == FT_SEND;

    if (operation->collective)
        operation->sequence = atomic_fetch_add_explicit(&communicator->operations, 1, memory_order_relaxed);
    else if (operation->peer >= 0 && operation->tag >= 0)
        operation->sequence =
            ft_count(ft_hash((uint64_t)communicator->index << 1 | sends,
                             (uint64_t)(uint32_t)operation->peer << 32 | (uint32_t)operation->tag));
}

static void put(const struct ft_operation *operation, int kind, uint64_t end_raw_ns) {
    struct ft_event event = {
        .begin_raw_ns = operation->begin_raw_ns,
        .end_raw_ns = end_raw_ns,
        .operation = operation->number,
        .sequence = operation->sequence,
        .bytes = operation->bytes,
        .tag = operation->tag > 0 ? (uint64_t)operation->tag : 0,
        .kind = (uint8_t)kind,
        .function = operation->function,
        .communicator = operation->communicator,
        .peer = operation->peer < 0 ? -1 : operation->peer,
    };

    ft_trace_put(&event);
}

/* Number an operation and record its begin. A receive from any source or with any tag gets its number at its
 * end, where the message is known, and has no begin record. */
void ft_operation_begin(struct ft_operation *operation, struct ft_communicator *communicator) {
    bool known = operation->collective || (operation->peer >= 0 && operation->tag >= 0);

    operation->communicator = (uint16_t)communicator->index;
    operation->number = ft_trace_operation();
    operation->open = true;
    if (known && !operation->numbered) ft_operation_number(operation, communicator);
    operation->begin_raw_ns = ft_trace_now_ns();
    if (known) put(operation, FT_EVENT_BEGIN, 0);
}

/* Record the end of an operation. `status`: of a receive, if known. */
void ft_operation_end(struct ft_operation *operation, struct ft_communicator *communicator,
                      const MPI_Status *status) {
    uint64_t now_ns = ft_trace_now_ns();
    int bytes = MPI_UNDEFINED;
    MPI_Count many;

    operation->open = false;
    if (operation->function == FT_RECEIVE && status) {
        struct ft_operation received = *operation;

        if (ft_mpi.Get_count(status, FT_BYTE, &bytes) == MPI_SUCCESS && bytes >= 0)
            received.bytes = (uint64_t)bytes;
        else if (ft_mpi.Get_elements_x(status, FT_BYTE, &many) == MPI_SUCCESS && many >= 0)
            received.bytes = (uint64_t)many; /* above 2 GiB */
        if (operation->peer < 0 || operation->tag < 0) {
            received.peer = status->MPI_SOURCE;
            received.tag = status->MPI_TAG;
            ft_operation_number(&received, communicator);
        }
        put(&received, FT_EVENT_END, now_ns);
        return;
    }
    if (operation->peer < 0 && !operation->collective) { /* no status: the sender is unknown */
        ft_trace_dropped();
        return;
    }
    put(operation, FT_EVENT_END, now_ns);
}

/* -- open requests -------------------------------------------------------------------------------------- */

static struct ft_request *bucket_of(uintptr_t handle) {
    return requests[ft_hash(1, handle) % REQUEST_BUCKETS];
}

/* Remember an operation by its request. MPI gives all operations that are complete at once the same handle, so
 * an operation with this handle has ended. */
void ft_request_add(MPI_Request handle, const struct ft_operation *operation,
                    struct ft_communicator *communicator) {
    uintptr_t key = (uintptr_t)handle;
    struct ft_request *bucket = bucket_of(key);

    for (int pass = 0; pass < 2; pass++) {
        for (int n = 0; n < BUCKET; n++) {
            uintptr_t expected = pass ? 0 : key;

            if (!atomic_compare_exchange_strong_explicit(&bucket[n].handle, &expected, IN_USE,
                                                         memory_order_acquire, memory_order_relaxed))
                continue;
            if (!pass && bucket[n].operation.open)
                ft_operation_end(&bucket[n].operation, bucket[n].communicator, NULL);
            bucket[n].key = key;
            bucket[n].communicator = communicator;
            bucket[n].operation = *operation;
            atomic_store_explicit(&bucket[n].handle, key, memory_order_release);
            return;
        }
    }
    ft_trace_dropped();
}

/* Take the entry of a request, so that a request that MPI creates meanwhile with the same handle is another
 * one. Return NULL if there is none. */
struct ft_request *ft_request_take(MPI_Request handle) {
    uintptr_t key = (uintptr_t)handle;
    struct ft_request *bucket = bucket_of(key);

    for (int n = 0; n < BUCKET; n++) {
        uintptr_t expected = key;

        if (atomic_load_explicit(&bucket[n].handle, memory_order_relaxed) == key &&
            atomic_compare_exchange_strong_explicit(&bucket[n].handle, &expected, IN_USE,
                                                    memory_order_acquire, memory_order_relaxed))
            return &bucket[n];
    }
    return NULL;
}

/* Return a taken entry to the table, or free it. */
void ft_request_return(struct ft_request *request, bool ended) {
    atomic_store_explicit(&request->handle, ended ? 0 : request->key, memory_order_release);
}

/* Count the operations that have not ended. */
uint64_t ft_requests_open(void) {
    uint64_t open = 0;

    for (int n = 0; n < REQUEST_BUCKETS * BUCKET; n++) {
        const struct ft_request *request = &requests[n / BUCKET][n % BUCKET];

        open +=
            atomic_load_explicit(&request->handle, memory_order_acquire) > IN_USE && request->operation.open;
    }
    return open;
}
