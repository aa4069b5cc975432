#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>

#include "connect.h"
#include "job_name.h"
#include "writer.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum {
    NUMBERS = 4096, /* operation numbers that a thread takes at a time */
    FEW_ROWS = 256  /* of communicators: beyond, rows of ended ones are used first */
};

/* What the hot path uses of a thread, without a call to find it. */
struct thread {
    struct ft_ring_head *ring; /* NULL: none yet */
    struct ft_event *events;
    uint64_t head, tail; /* copies; `tail` is read again only when the ring seems full */
    uint64_t mask;
    uint64_t number, numbers_end;
    bool ringless; /* no ring was free */
};

static __thread struct thread self __attribute__((tls_model("initial-exec")));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_segment *segment; /* atomic */
static int segment_fd = -1;
static unsigned users; /* opened and not yet closed */
static bool watching;  /* threads that exit, and forks */
static pthread_key_t at_exit;
static uint64_t numbers = 1; /* atomic */

/* Rows of communicators. `order` has those that ended, the oldest first; the positions only grow. */
static struct {
    uint32_t users[FT_COMMUNICATORS]; /* 0: free or ended */
    uint16_t order[FT_COMMUNICATORS];
    uint64_t taken, free, waiting, ended; /* each at most the next */
    uint64_t heads[FT_RINGS_MAX];         /* of the rings, when those before `waiting` had ended */
} rows;

uint64_t ft_trace_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *part(struct ft_segment *of, uint64_t offset) {
    return (char *)of + offset;
}

static struct ft_ring_head *ring_of(struct ft_segment *of, uint32_t n) {
    return part(of, ft_segment_rings_at() + n * ft_segment_ring_bytes(of->ring_events));
}

/* Take a free ring, maybe one of a thread that has ended. */
static bool __attribute__((noinline, cold)) take_ring(void) {
    struct ft_segment *of = __atomic_load_n(&segment, __ATOMIC_ACQUIRE);
    struct ft_ring_head *ring;
    uint32_t n = 0, none = 0;

    if (!of) return false;
    while (n < of->rings && !__atomic_compare_exchange_n(&ring_of(of, n)->taken, &none, 1, false,
                                                         __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        none = 0;
        n++;
    }
    if (n == of->rings) {
        self.ringless = true;
        return false;
    }
    ring = ring_of(of, n);
    ring->tid = (uint32_t)syscall(SYS_gettid);
    for (uint64_t used = __atomic_load_n(&of->rings_used, __ATOMIC_RELAXED); used < n + 1u;)
        if (__atomic_compare_exchange_n(&of->rings_used, &used, n + 1u, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
            break;
    /* Have the pages now, not one by one in the middle of operations. */
    uint64_t begin = (uint64_t)(uintptr_t)ring & ~UINT64_C(4095);
    uint64_t end = (uint64_t)(uintptr_t)ring + ft_segment_ring_bytes(of->ring_events);

    madvise((void *)(uintptr_t)begin, end - begin, MADV_POPULATE_WRITE);
    self.events = (struct ft_event *)(ring + 1);
    self.mask = of->ring_events - 1u;
    self.head = __atomic_load_n(&ring->head, __ATOMIC_RELAXED);
    self.tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
    self.ring = ring;
    pthread_setspecific(at_exit, ring);
    return true;
}

static void return_ring(void *ring) {
    memset(&self, 0, sizeof(self));
    __atomic_store_n(&((struct ft_ring_head *)ring)->taken, 0, __ATOMIC_RELEASE);
}

void ft_trace_put(const struct ft_event *event) {
    struct ft_ring_head *ring = self.ring;

    if (__builtin_expect(!ring, 0)) {
        if (self.ringless || !take_ring()) {
            struct ft_segment *of = __atomic_load_n(&segment, __ATOMIC_RELAXED);

            if (of) __atomic_fetch_add(&of->ringless, 1, __ATOMIC_RELAXED);
            return;
        }
        ring = self.ring;
    }
    if (__builtin_expect(self.head - self.tail > self.mask, 0)) {
        self.tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
        if (self.head - self.tail > self.mask) {
            __atomic_store_n(&ring->dropped, ring->dropped + 1, __ATOMIC_RELAXED);
            return;
        }
    }
    self.events[self.head & self.mask] = *event;
    __atomic_store_n(&ring->head, ++self.head, __ATOMIC_RELEASE);
}

void ft_trace_misuse(void) {
    if (self.ring || (!self.ringless && take_ring()))
        __atomic_store_n(&self.ring->misuse, self.ring->misuse + 1, __ATOMIC_RELAXED);
}

void ft_trace_dropped(void) {
    if (self.ring || (!self.ringless && take_ring()))
        __atomic_store_n(&self.ring->dropped, self.ring->dropped + 1, __ATOMIC_RELAXED);
}

uint64_t ft_trace_operation(void) {
    if (__builtin_expect(self.number == self.numbers_end, 0)) {
        self.number = __atomic_fetch_add(&numbers, NUMBERS, __ATOMIC_RELAXED);
        self.numbers_end = self.number + NUMBERS;
    }
    return self.number++;
}

static const char *setting(const char *variable) {
    const char *value = secure_getenv(variable);

    return value && *value ? value : NULL;
}

static void copy(char *to, size_t size, const char *text) {
    if (text) memcpy(to, text, strnlen(text, size - 1));
}

/* Events of a ring: FABRICTIME_COLLECTIVES_EVENTS, as the power of two that holds them. */
static uint32_t ring_events(void) {
    const char *value = setting("FABRICTIME_COLLECTIVES_EVENTS");
    unsigned long wanted = value ? strtoul(value, NULL, 10) : FT_RING_EVENTS;
    uint32_t events = FT_RING_EVENTS_MIN;

    while (events < wanted && events < FT_RING_EVENTS_MAX) events *= 2;
    return events;
}

/* Return a new segment, or NULL. A limit on file sizes would end the process with a signal: respect it. */
static struct ft_segment *create(enum ft_source source, const char *version_text) {
    uint32_t events = ring_events(), rings = FT_RINGS_MAX;
    struct rlimit limit;
    struct ft_segment *made;
    uint64_t bytes;

    while (rings > 1 && ft_segment_bytes(rings, events) > FT_SEGMENT_MAX) rings /= 2;
    bytes = ft_segment_bytes(rings, events);
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur < bytes) return NULL;
    segment_fd = memfd_create("fabrictime-collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (segment_fd < 0) return NULL;
    if (ftruncate(segment_fd, (off_t)bytes) ||
        fcntl(segment_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        goto failed;
    made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment_fd, 0);
    if (made == MAP_FAILED) goto failed;
    made->version = FT_SEGMENT_VERSION;
    made->source = (uint32_t)source;
    made->bytes = bytes;
    made->rings = rings;
    made->ring_events = events;
    made->created_raw_ns = ft_trace_now_ns();
    made->pid = (uint32_t)getpid();
    ft_job_name(setting, made->job);
    if (setting("FABRICTIME_TENANT")) ft_copy_name(made->tenant, setting("FABRICTIME_TENANT"));
    copy(made->version_text, sizeof(made->version_text), version_text);
    memcpy(made->magic, FT_SEGMENT_MAGIC, sizeof(made->magic));
    return made;
failed:
    close(segment_fd);
    segment_fd = -1;
    return NULL;
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* The child has no segment: its parent's rings are not its own. */
static void in_child(void) {
    if (segment) {
        munmap(segment, segment->bytes);
        close(segment_fd);
        ft_connect_forget();
        pthread_setspecific(at_exit, NULL);
    }
    segment = NULL;
    segment_fd = -1;
    users = 0;
    memset(&rows, 0, sizeof(rows));
    memset(&self, 0, sizeof(self));
    pthread_mutex_init(&lock, NULL);
}

static bool watch(void) {
    if (!watching)
        watching =
            !pthread_key_create(&at_exit, return_ring) && !pthread_atfork(before_fork, in_parent, in_child);
    return watching;
}

bool ft_trace_open(enum ft_source source, const char *version_text) {
    const char *path = setting("FABRICTIME_COLLECTIVES");
    struct ft_segment *made;

    if (!path) return false;
    pthread_mutex_lock(&lock);
    if (!segment && watch() && (made = create(source, version_text))) {
        if (ft_connect_start(path, segment_fd)) {
            __atomic_store_n(&segment, made, __ATOMIC_RELEASE);
        } else {
            munmap(made, made->bytes);
            close(segment_fd);
        }
    }
    if (segment) {
        users++;
        __atomic_store_n(&segment->closed, 0, __ATOMIC_RELAXED);
    }
    made = segment;
    pthread_mutex_unlock(&lock);
    return made;
}

void ft_trace_close(void) {
    pthread_mutex_lock(&lock);
    if (segment && users && !--users) __atomic_store_n(&segment->closed, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}

static struct ft_segment_communicator *row_of(uint32_t n) {
    return part(segment, FT_SEGMENT_HEAD + (uint64_t)n * sizeof(struct ft_segment_communicator));
}

/* Return true if the reader has committed the events that were in the rings when rows up to `waiting` had ended. */
static bool are_committed(void) {
    for (uint32_t n = 0; n < segment->rings; n++)
        if (rows.heads[n] && __atomic_load_n(&ring_of(segment, n)->tail, __ATOMIC_ACQUIRE) < rows.heads[n])
            return false;
    return true;
}

/* Free ended rows whose events were read, and begin to wait for those of the rows that ended meanwhile. */
static void free_rows(void) {
    for (int pass = 0; pass < 2; pass++) {
        if (rows.free < rows.waiting && are_committed()) rows.free = rows.waiting;
        if (rows.free < rows.waiting || rows.waiting == rows.ended) return;
        rows.waiting = rows.ended;
        for (uint32_t n = 0; n < segment->rings; n++) {
            struct ft_ring_head *ring = ring_of(segment, n);

            rows.heads[n] = n < __atomic_load_n(&segment->rings_used, __ATOMIC_ACQUIRE)
                                ? __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE)
                                : 0;
        }
    }
}

/* Return a free row, or -1. Few rows in all keep the reader's checks short. */
static int free_row(void) {
    uint64_t used = segment->communicators_used;

    if (used >= FEW_ROWS) free_rows();
    if (rows.taken < rows.free) return rows.order[rows.taken++ % FT_COMMUNICATORS];
    if (used == FT_COMMUNICATORS) return -1;
    __atomic_store_n(&segment->communicators_used, used + 1, __ATOMIC_RELEASE);
    return (int)used;
}

static bool is_same(const struct ft_segment_communicator *a, const struct ft_segment_communicator *b) {
    const size_t from = offsetof(struct ft_segment_communicator, rank);

    return !memcmp((const char *)a + from, (const char *)b + from,
                   offsetof(struct ft_segment_communicator, generation) - from);
}

static void set_ready(uint32_t n, enum ft_ready ready) {
    __atomic_store_n(&row_of(n)->ready, (uint32_t)ready, __ATOMIC_RELEASE);
    __atomic_fetch_add(&segment->communicators_changed, 1, __ATOMIC_RELEASE);
}

static int add_communicator(const struct ft_segment_communicator *communicator) {
    struct ft_segment_communicator made = *communicator;
    int n = 0;

    for (; n < (int)segment->communicators_used; n++)
        if (rows.users[n] && is_same(row_of((uint32_t)n), communicator)) {
            rows.users[n]++;
            return n;
        }
    if ((n = free_row()) < 0) return -1;
    set_ready((uint32_t)n, FT_ROW_FREE);
    made.ready = FT_ROW_FREE;
    made.generation = row_of((uint32_t)n)->generation + 1;
    *row_of((uint32_t)n) = made;
    rows.users[n] = 1;
    set_ready((uint32_t)n, FT_ROW_IN_USE);
    return n;
}

int ft_trace_communicator(const struct ft_segment_communicator *communicator) {
    int n = -1;
    bool has_segment;

    pthread_mutex_lock(&lock);
    has_segment = segment;
    if (segment) n = add_communicator(communicator);
    pthread_mutex_unlock(&lock);
    if (has_segment && n < 0) ft_trace_dropped();
    return n;
}

void ft_trace_communicator_end(int index) {
    pthread_mutex_lock(&lock);
    if (segment && index >= 0 && index < FT_COMMUNICATORS && rows.users[index] && !--rows.users[index]) {
        rows.order[rows.ended++ % FT_COMMUNICATORS] = (uint16_t)index;
        set_ready((uint32_t)index, FT_ROW_ENDED);
    }
    pthread_mutex_unlock(&lock);
}

int ft_trace_device(const char *name) {
    struct ft_segment_device *all;
    int n = -1;

    pthread_mutex_lock(&lock);
    if (segment) {
        all = part(segment, ft_segment_devices_at());
        for (n = 0; n < FT_DEVICES && all[n].ready && strncmp(all[n].name, name, sizeof(all[n].name) - 1);
             n++);
        if (n == FT_DEVICES) {
            n = -1;
        } else if (!all[n].ready) {
            copy(all[n].name, sizeof(all[n].name), name);
            __atomic_store_n(&all[n].ready, 1, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&lock);
    return n;
}
