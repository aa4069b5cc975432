/* libfabrictime-testbed.so: an LD_PRELOAD library for MPI programs on the testbed. Not for a cluster.
 *
 * MPI polls while it waits. Where it calls sched_yield() between two polls, this sleeps for 200 us, so that ranks
 * that wait leave the processors to those that compute. New TCP sockets get the congestion control that
 * FABRICTIME_CONGESTION names, since a host's namespace cannot choose another default than the machine's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define FT_EXPORT __attribute__((visibility("default")))

FT_EXPORT int sched_yield(void) {
    const struct timespec pause = {.tv_nsec = 200000};

    nanosleep(&pause, NULL);
    return 0;
}

FT_EXPORT int socket(int domain, int type, int protocol) {
    static int (*next)(int, int, int);
    const char *name = getenv("FABRICTIME_CONGESTION");
    int fd, error;

    if (!next) next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    fd = next(domain, type, protocol);
    error = errno;
    if (fd >= 0 && name && (domain == AF_INET || domain == AF_INET6) && (type & 15) == SOCK_STREAM)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name));
    errno = error;
    return fd;
}
