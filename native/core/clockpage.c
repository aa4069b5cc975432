/* A sequence lock with two copies. While the sequence is odd, readers use copy 1, else copy 0, so one copy is
 * whole at any moment and a writer that dies half-way blocks no reader. The order of stores is that of Boehm,
 * "Can seqlocks get along with programming language memory models?" (MSPC 2012), section 4. */
#define _GNU_SOURCE
#include "clockpage.h"

#include <errno.h>
#include <time.h>

static const int64_t SPIN_NS = 150000;

static int64_t ns_of(const struct timespec *t) {
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

int64_t ft_page_raw_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return ns_of(&t);
}

int ft_page_cross(int clock, int tries, int64_t *before_ns, int64_t *clock_ns, int64_t *after_ns) {
    struct timespec before, read, after;
    int64_t best = INT64_MAX;
    for (int i = 0; i < tries; i++) {
        clock_gettime(CLOCK_MONOTONIC_RAW, &before);
        if (clock_gettime(clock, &read)) return errno;
        clock_gettime(CLOCK_MONOTONIC_RAW, &after);
        int64_t took = ns_of(&after) - ns_of(&before);
        if (took >= best) continue;
        best = took;
        *before_ns = ns_of(&before), *clock_ns = ns_of(&read), *after_ns = ns_of(&after);
    }
    return 0;
}

static void fill(uint64_t *to, const uint64_t *from, size_t count) {
    for (size_t i = 0; i < count; i++) __atomic_store_n(to + i, from[i], __ATOMIC_RELAXED);
}

uint64_t ft_page_read(const uint64_t *sequence, const uint64_t *copies, size_t count, uint64_t *to,
                      int *whole) {
    uint64_t begun = 0;
    for (int tries = 0; tries < 1000; tries++) {
        begun = __atomic_load_n(sequence, __ATOMIC_ACQUIRE);
        const uint64_t *from = copies + (begun & 1) * count;
        for (size_t i = 0; i < count; i++) to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        *whole = __atomic_load_n(sequence, __ATOMIC_RELAXED) == begun;
        if (*whole) break;
    }
    return begun;
}

/* Wait until the raw clock reads `raw_ns`: asleep, except for the end, which a late timer must not miss. */
static int64_t wait_until(int64_t raw_ns) {
    int64_t now = ft_page_raw_ns(), rest = raw_ns - now - SPIN_NS;
    if (rest > 0) {
        struct timespec pause = {.tv_nsec = (long)rest}; /* below 10 ms */
        clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    }
    while ((now = ft_page_raw_ns()) < raw_ns) {
    }
    return now;
}

int ft_page_write(uint64_t *sequence, uint64_t *copies, size_t count, const uint64_t *from,
                  int64_t from_raw_ns, int64_t latest_raw_ns) {
    uint64_t begun = __atomic_load_n(sequence, __ATOMIC_RELAXED);
    if (begun & 1) { /* a writer died here: readers have copy 1 */
        begun++;
        for (size_t i = 0; i < count; i++) __atomic_store_n(copies + i, copies[count + i], __ATOMIC_RELAXED);
        __atomic_store_n(sequence, begun, __ATOMIC_RELEASE);
        __atomic_thread_fence(__ATOMIC_RELEASE);
    } else { /* or here: copy 1 may be half-written, and readers are about to use it */
        __atomic_thread_fence(__ATOMIC_RELEASE);
        for (size_t i = 0; i < count; i++) __atomic_store_n(copies + count + i, copies[i], __ATOMIC_RELAXED);
    }
    __atomic_store_n(sequence, begun + 1, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    fill(copies, from, count);
    int64_t now = wait_until(from_raw_ns);
    int stands = now <= latest_raw_ns;
    if (!stands) fill(copies, copies + count, count);
    __atomic_store_n(sequence, begun + 2, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    if (stands) fill(copies + count, from, count);
    return stands;
}
