/* libfabrictime-yield.so: an LD_PRELOAD library for jobs with more ranks than processors, as on the testbed.
 * MPI polls while it waits. Where it calls sched_yield() between two polls, this sleeps for 200 us, so that ranks
 * that wait leave the processors to those that compute. Not for a cluster. */
#include <time.h>

__attribute__((visibility("default"))) int sched_yield(void) {
    const struct timespec pause = {.tv_nsec = 200000};

    nanosleep(&pause, NULL);
    return 0;
}
