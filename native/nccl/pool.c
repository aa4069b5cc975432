/* Slots for operations and transfers in flight. Each thread takes slots of its own without a lock; another
 * thread returns a slot by one atomic exchange. The memory is reserved once and never returned. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "plugin.h"

/* A thread's slots. A thread that ends leaves them to the next. */
struct pool {
    uint32_t taken;                               /* 1 while a thread owns it */
    uint32_t fresh;                               /* slots that were used at least once */
    uint32_t local;                               /* first free slot, plus 1; 0: none */
    uint32_t remote __attribute__((aligned(64))); /* likewise, returned by other threads */
} __attribute__((aligned(64)));

static struct pool pools[FT_THREADS];
static struct ft_slot *slots;
static pthread_key_t at_exit;
static __thread struct pool *own;
static __thread bool none_free;

static void leave(void *pool) {
    own = NULL;
    __atomic_store_n(&((struct pool *)pool)->taken, 0, __ATOMIC_RELEASE);
}

bool ft_pool_open(void) {
    size_t bytes = (size_t)FT_THREADS * FT_THREAD_SLOTS * sizeof(struct ft_slot);
    void *made;

    if (slots) return true;
    if (pthread_key_create(&at_exit, leave)) return false;
    made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) {
        pthread_key_delete(at_exit);
        return false;
    }
    __atomic_store_n(&slots, made, __ATOMIC_RELEASE);
    return true;
}

static struct pool *__attribute__((noinline, cold)) take_pool(void) {
    for (unsigned n = 0; n < FT_THREADS && !none_free; n++) {
        uint32_t expected = 0;

        if (!FT_GET(pools[n].taken) && __atomic_compare_exchange_n(&pools[n].taken, &expected, 1, false,
                                                                   __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            own = &pools[n];
            pthread_setspecific(at_exit, own);
            return own;
        }
    }
    none_free = true;
    return NULL;
}

/* In a child after fork: no thread but this one, and nothing in flight. */
void ft_pool_reset(void) {
    if (!slots) return;
    memset(pools, 0, sizeof(pools));
    own = NULL;
    none_free = false;
    madvise(slots, (size_t)FT_THREADS * FT_THREAD_SLOTS * sizeof(struct ft_slot), MADV_DONTNEED);
}

/* Return a free slot. Without one, count the event as dropped and return NULL. */
struct ft_slot *ft_slot_take(void) {
    struct pool *pool = own ? own : take_pool();
    struct ft_slot *slot;

    if (!pool) {
        ft_trace_dropped();
        return NULL;
    }
    if (!pool->local) pool->local = __atomic_exchange_n(&pool->remote, 0, __ATOMIC_ACQUIRE);
    if (pool->local) {
        slot = &slots[pool->local - 1];
        pool->local = FT_GET(slot->next);
    } else if (pool->fresh < FT_THREAD_SLOTS) {
        slot = &slots[(size_t)(pool - pools) * FT_THREAD_SLOTS + pool->fresh];
        FT_SET(slot->owner, (uint16_t)(pool - pools));
        __atomic_store_n(&pool->fresh, pool->fresh + 1, __ATOMIC_RELEASE);
    } else {
        ft_trace_dropped();
        return NULL;
    }
    return slot;
}

/* Begin the use of a slot, whose fields are set. Return its handle. */
uint64_t ft_slot_begin(struct ft_slot *slot) {
    uint32_t generation = FT_GET(slot->generation) + 1;

    __atomic_store_n(&slot->generation, generation, __ATOMIC_RELEASE);
    return ft_slot_handle(FT_HANDLE_SLOT, generation, 0, (uint32_t)(slot - slots));
}

/* The slot of a handle of one of these kinds (bits), or NULL: invented, stale, or another process's. */
struct ft_slot *ft_slot_of(uint64_t handle, unsigned kinds) {
    unsigned kind = ft_handle_kind(handle);
    uint32_t generation = handle >> 29 & FT_GENERATION_MASK;
    struct ft_slot *slot;

    if (!kind || !(kinds >> kind & 1u)) return NULL;
    slot = &slots[handle & ((1u << FT_SLOT_BITS) - 1u)];
    if ((__atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE) & FT_GENERATION_MASK) != generation ||
        !(generation & 1u))
        return NULL;
    return slot;
}

/* End the use of a slot. One caller alone receives true, and frees the slot then. */
bool ft_slot_end(struct ft_slot *slot, uint64_t handle) {
    uint32_t generation = FT_GET(slot->generation);

    return (generation & FT_GENERATION_MASK) == (handle >> 29 & FT_GENERATION_MASK) &&
           __atomic_compare_exchange_n(&slot->generation, &generation, generation + 1, false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

void ft_slot_free(struct ft_slot *slot) {
    struct pool *owner = &pools[FT_GET(slot->owner)];
    uint32_t index = (uint32_t)(slot - slots) + 1, first;

    if (owner == own) {
        FT_SET(slot->next, owner->local);
        owner->local = index;
        return;
    }
    first = FT_GET(owner->remote);
    do {
        FT_SET(slot->next, first);
    } while (!__atomic_compare_exchange_n(&owner->remote, &first, index, true, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED));
}

/* Visit all slots in use of a context. Not for the hot path. */
void ft_slots_of_context(uint16_t context, void (*visit)(struct ft_slot *slot, uint64_t handle)) {
    for (unsigned n = 0; n < FT_THREADS; n++) {
        uint32_t fresh = __atomic_load_n(&pools[n].fresh, __ATOMIC_ACQUIRE);

        for (uint32_t k = 0; k < fresh; k++) {
            struct ft_slot *slot = &slots[n * FT_THREAD_SLOTS + k];
            uint32_t generation = __atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE);

            if (generation & 1u && FT_GET(slot->context) == context)
                visit(slot, ft_slot_handle(FT_HANDLE_SLOT, generation, 0, (uint32_t)(slot - slots)));
        }
    }
}
