/* The process's clock. A thread that sets `replay_now_ns` lives in simulated time: the plugin reads it too,
 * since the program's clock_gettime precedes the C library's. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "replay.h"

__thread uint64_t replay_now_ns;

#ifdef REPLAY_SIMULATED_TIME
__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!replay_now_ns) return (int)syscall(SYS_clock_gettime, clock, now);
    now->tv_sec = (time_t)(replay_now_ns / 1000000000u);
    now->tv_nsec = (long)(replay_now_ns % 1000000000u);
    return 0;
}
#endif

uint64_t clock_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
