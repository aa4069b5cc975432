/* In-band delays: the time from the post of a request until its completion, per queue pair.
 *
 * A queue pair has a ring of its outstanding requests. A posting thread adds to it, a polling thread removes
 * the requests up to the one that completed: requests of a queue pair complete in the order of their posts.
 * A completion names its request by wr_id, which need not be unique, so the first signalled request with it is
 * taken. Only signalled requests are measured: the others complete earlier than anybody learns, and add only
 * their bytes. Nothing waits and nothing is allocated: of two threads that poll completions of one queue pair
 * at one moment, one leaves its request to the next completion.
 *
 * The memory of a queue pair's delays is never freed, only used again, because a thread may still poll when
 * the queue pair is destroyed. At worst, one sample is counted for its successor. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "delays.h"

enum { PLACES = 1 << 15, SEARCH = 256, REQUESTS_MIN = 64, REQUESTS_MAX = 1 << 14, SEARCH_AHEAD = 1024 };
enum { BUCKETS = 160 }; /* four for each power of two of ns */
enum state { SILENT, SIGNALLED, REFUSED };

struct request {
    _Atomic uint64_t number; /* from 1; stored last */
    uint64_t wr_id;
    uint64_t posted_ns;
    uint32_t bytes;
    _Atomic uint32_t state;
};

struct ft_delays {
    _Atomic(const struct ft_context *) context; /* NULL: free */
    _Atomic uint32_t qp_num;
    uint64_t mask;
    bool all_signalled;
    struct ft_delays *next_free;
    _Atomic uint64_t head __attribute__((aligned(64))); /* requests posted */
    _Atomic uint64_t tail __attribute__((aligned(64))); /* requests completed */
    atomic_flag polled;                                 /* a thread is removing requests */

    /* Written by that thread; all but the least and greatest only grow. */
    _Atomic uint64_t completed, bytes, sum_ns;
    _Atomic uint32_t min_ns, max_ns;
    _Atomic uint32_t bucket[BUCKETS];

    /* The figures of the last report; used by the agent's thread only. */
    uint64_t was_completed, was_bytes, was_sum_ns, was_until_ns;
    uint32_t was_bucket[BUCKETS];

    struct request requests[] __attribute__((aligned(64)));
};

static _Atomic(struct ft_delays *) places[PLACES];
static struct ft_delays *const USED = (struct ft_delays *)&places;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_delays *free_ones;
static atomic_bool polls; /* whether this process polls by a way that is counted */

static uint32_t place_of(const struct ft_context *context, uint32_t qp_num) {
    uint64_t key = (uint64_t)(uintptr_t)context ^ (uint64_t)qp_num << 40 ^ qp_num;

    return (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 40) % PLACES;
}

static struct ft_delays *find(const struct ft_context *context, uint32_t qp_num) {
    uint32_t place = place_of(context, qp_num);

    for (int i = 0; i < SEARCH; i++, place = (place + 1) % PLACES) {
        struct ft_delays *found = atomic_load_explicit(&places[place], memory_order_acquire);

        if (!found) return NULL;
        if (found != USED && atomic_load_explicit(&found->context, memory_order_relaxed) == context &&
            atomic_load_explicit(&found->qp_num, memory_order_relaxed) == qp_num)
            return found;
    }
    return NULL;
}

/* Return memory for so many requests: that of a former queue pair, or new. Under the lock. */
static struct ft_delays *allocated(uint64_t requests) {
    struct ft_delays **link = &free_ones, *found;

    while (*link && (*link)->mask != requests - 1) link = &(*link)->next_free;
    found = *link;
    if (found) {
        *link = found->next_free;
        atomic_store(&found->tail, atomic_load(&found->head));
        return found;
    }
    found = mmap(NULL, sizeof(*found) + requests * sizeof(struct request), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return NULL;
    found->mask = requests - 1;
    found->min_ns = UINT32_MAX;
    return found;
}

struct ft_delays *ft_delays_add(const struct ft_qp *qp, const struct ft_qp_init_attr *init) {
    uint32_t place = place_of(qp->context, qp->qp_num);
    uint64_t requests = REQUESTS_MIN;
    struct ft_delays *made = NULL;

    if (!init || (qp->qp_type != FT_QPT_RC && qp->qp_type != FT_QPT_XRC_SEND)) return NULL;
    while (requests < init->max_send_wr && requests < REQUESTS_MAX) requests *= 2;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SEARCH && !made; i++, place = (place + 1) % PLACES) {
        struct ft_delays *found = atomic_load_explicit(&places[place], memory_order_relaxed);

        if (found && found != USED) continue;
        made = allocated(requests);
        if (!made) break;
        made->all_signalled = init->sq_sig_all;
        atomic_store_explicit(&made->qp_num, qp->qp_num, memory_order_relaxed);
        atomic_store_explicit(&made->context, qp->context, memory_order_relaxed);
        atomic_store_explicit(&places[place], made, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return made;
}

void ft_delays_retire(struct ft_delays *delays) {
    const struct ft_context *context = atomic_load_explicit(&delays->context, memory_order_relaxed);
    uint32_t place = place_of(context, atomic_load_explicit(&delays->qp_num, memory_order_relaxed));

    pthread_mutex_lock(&lock);
    for (int i = 0; i < SEARCH; i++, place = (place + 1) % PLACES) {
        if (atomic_load_explicit(&places[place], memory_order_relaxed) != delays) continue;
        atomic_store_explicit(&places[place], USED, memory_order_release);
        break;
    }
    pthread_mutex_unlock(&lock);
}

void ft_delays_free(struct ft_delays *delays) {
    pthread_mutex_lock(&lock);
    atomic_store_explicit(&delays->context, NULL, memory_order_relaxed);
    delays->next_free = free_ones;
    free_ones = delays;
    pthread_mutex_unlock(&lock);
}

void ft_delays_forget(void) {
    pthread_mutex_init(&lock, NULL);
    memset(places, 0, sizeof(places));
    atomic_store(&polls, false);
}

static uint32_t bytes_of(const struct ft_send_wr *wr) {
    uint64_t sum = 0;

    for (int i = 0; i < wr->num_sge; i++) sum += wr->sg_list[i].length;
    return sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
}

uint64_t ft_delays_post(struct ft_delays *delays, const struct ft_send_wr *wr) {
    uint64_t count = 0, now_ns = ft_trace_now_ns();
    uint64_t head = atomic_load_explicit(&delays->head, memory_order_relaxed);

    for (const struct ft_send_wr *each = wr; each; each = each->next) count++;
    do
        if (head + count - atomic_load_explicit(&delays->tail, memory_order_acquire) > delays->mask + 1)
            return FT_UNTRACKED;
    while (!atomic_compare_exchange_weak_explicit(&delays->head, &head, head + count, memory_order_relaxed,
                                                  memory_order_relaxed));
    for (uint64_t number = head; wr; wr = wr->next, number++) {
        struct request *request = &delays->requests[number & delays->mask];
        bool signalled = delays->all_signalled || (wr->send_flags & FT_SEND_SIGNALED);

        request->wr_id = wr->wr_id;
        request->posted_ns = now_ns;
        request->bytes = bytes_of(wr);
        atomic_store_explicit(&request->state, signalled ? SIGNALLED : SILENT, memory_order_relaxed);
        atomic_store_explicit(&request->number, number + 1, memory_order_release);
    }
    return head;
}

void ft_delays_refused(struct ft_delays *delays, uint64_t first, const struct ft_send_wr *wr,
                       const struct ft_send_wr *bad) {
    bool refused = false;

    if (first == FT_UNTRACKED) return;
    for (; wr; wr = wr->next, first++) {
        refused = refused || wr == bad;
        if (refused)
            atomic_store_explicit(&delays->requests[first & delays->mask].state, REFUSED,
                                  memory_order_relaxed);
    }
}

static uint32_t bucket_of(uint64_t ns) {
    uint32_t power = 63u - (uint32_t)__builtin_clzll(ns | 4);
    uint32_t bucket = power * 4 + (uint32_t)(ns >> (power - 2) & 3);

    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* The middle of a bucket. */
static uint64_t bucket_ns(uint32_t bucket) {
    uint32_t power = bucket / 4;

    return power < 2 ? 2 : ((UINT64_C(9) + bucket % 4 * 2) << power) / 8;
}

static void add(_Atomic uint64_t *sum, uint64_t value) {
    atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + value, memory_order_relaxed);
}

static void measure(struct ft_delays *delays, uint64_t ns) {
    uint32_t short_ns = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
    _Atomic uint32_t *bucket = &delays->bucket[bucket_of(ns)];

    add(&delays->completed, 1);
    add(&delays->sum_ns, ns);
    atomic_store_explicit(bucket, atomic_load_explicit(bucket, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    if (short_ns < atomic_load_explicit(&delays->min_ns, memory_order_relaxed))
        atomic_store_explicit(&delays->min_ns, short_ns, memory_order_relaxed);
    if (short_ns > atomic_load_explicit(&delays->max_ns, memory_order_relaxed))
        atomic_store_explicit(&delays->max_ns, short_ns, memory_order_relaxed);
}

/* Return the number of the request that completed, or `head` if it is not in the ring. */
static uint64_t completed(struct ft_delays *delays, uint64_t tail, uint64_t head, uint64_t wr_id) {
    uint64_t end = head - tail > SEARCH_AHEAD ? tail + SEARCH_AHEAD : head;

    for (uint64_t number = tail; number < end; number++) {
        struct request *request = &delays->requests[number & delays->mask];

        if (atomic_load_explicit(&request->number, memory_order_acquire) != number + 1) break;
        if (request->wr_id == wr_id &&
            atomic_load_explicit(&request->state, memory_order_relaxed) == SIGNALLED)
            return number;
    }
    return head;
}

static void complete(struct ft_delays *delays, uint64_t wr_id, bool failed, uint64_t now_ns) {
    uint64_t head, tail, last;

    if (atomic_flag_test_and_set_explicit(&delays->polled, memory_order_acquire)) return;
    head = atomic_load_explicit(&delays->head, memory_order_acquire);
    tail = atomic_load_explicit(&delays->tail, memory_order_relaxed);
    if (head - tail > delays->mask + 1) tail = head; /* a former queue pair's thread was still here */
    last = completed(delays, tail, head, wr_id);
    if (last != head) {
        for (; tail <= last; tail++) {
            struct request *request = &delays->requests[tail & delays->mask];
            uint32_t state = atomic_load_explicit(&request->state, memory_order_relaxed);

            if (failed || state == REFUSED) continue;
            add(&delays->bytes, request->bytes);
            if (state == SIGNALLED) measure(delays, now_ns - request->posted_ns);
        }
    }
    atomic_store_explicit(&delays->tail, tail, memory_order_release);
    atomic_flag_clear_explicit(&delays->polled, memory_order_release);
}

void ft_delays_polled(const struct ft_context *context, const struct ft_wc *wc, int count) {
    uint64_t now_ns = ft_trace_now_ns();

    if (!atomic_load_explicit(&polls, memory_order_relaxed))
        atomic_store_explicit(&polls, true, memory_order_relaxed);
    for (int i = 0; i < count; i++) {
        struct ft_delays *delays;

        if (!wc[i].status && (wc[i].opcode & FT_WC_RECV)) continue;
        delays = find(context, wc[i].qp_num);
        if (delays) complete(delays, wc[i].wr_id, wc[i].status, now_ns);
    }
}

/* The 99th percentile of the samples since the last report. */
static uint64_t p99_of(struct ft_delays *delays) {
    uint32_t fresh[BUCKETS];
    uint64_t sum = 0, seen = 0;
    uint32_t n = 0;

    for (uint32_t b = 0; b < BUCKETS; b++) {
        uint32_t now = atomic_load_explicit(&delays->bucket[b], memory_order_relaxed);

        sum += fresh[b] = now - delays->was_bucket[b];
        delays->was_bucket[b] = now;
    }
    while (n < BUCKETS - 1 && (seen += fresh[n]) * 100 < sum * 99) n++;
    return bucket_ns(n);
}

static uint64_t increment(_Atomic uint64_t *counter, uint64_t *was) {
    uint64_t now = atomic_load_explicit(counter, memory_order_relaxed), by = now - *was;

    *was = now;
    return by;
}

bool ft_delays_report(struct ft_delays *delays, struct ft_event *event) {
    uint64_t now_ns = ft_trace_now_ns(), done, p99_ns;

    if (!atomic_load_explicit(&polls, memory_order_relaxed)) return false;
    memset(event, 0, sizeof(*event));
    event->kind = FT_EVENT_QUEUE_PAIR;
    event->begin_raw_ns = delays->was_until_ns ? delays->was_until_ns : now_ns;
    event->end_raw_ns = delays->was_until_ns = now_ns;
    event->communicator = UINT16_MAX;
    event->peer = -1;
    event->queue_pair = atomic_load_explicit(&delays->qp_num, memory_order_relaxed);
    event->posted = atomic_load_explicit(&delays->head, memory_order_relaxed) -
                    atomic_load_explicit(&delays->tail, memory_order_relaxed);
    if (event->posted > delays->mask + 1) event->posted = 0; /* the counters were read at two times */
    event->bytes = increment(&delays->bytes, &delays->was_bytes);
    done = increment(&delays->completed, &delays->was_completed);
    event->sum_ns = increment(&delays->sum_ns, &delays->was_sum_ns);
    event->min_ns = atomic_exchange_explicit(&delays->min_ns, UINT32_MAX, memory_order_relaxed);
    event->max_ns = atomic_exchange_explicit(&delays->max_ns, 0, memory_order_relaxed);
    p99_ns = p99_of(delays);
    if (!done) {
        event->sum_ns = event->min_ns = event->max_ns = 0;
        return event->posted || event->bytes;
    }
    event->completed = done < UINT32_MAX ? (uint32_t)done : UINT32_MAX;
    if (event->min_ns > event->max_ns) /* samples arrived while they were read */
        event->min_ns = event->max_ns = (uint32_t)(event->sum_ns / done);
    event->p99_ns = p99_ns < event->min_ns ? event->min_ns : p99_ns > event->max_ns ? event->max_ns : p99_ns;
    return true;
}
