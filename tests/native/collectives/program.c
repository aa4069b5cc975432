/* A process with a segment, for tests: puts events from threads, on command.
 *
 *     program THREADS EVENTS      each thread puts EVENTS events; then a line a command is read:
 *         put EVENTS              each thread of a new set puts so many
 *         misuse                  counts a call that had to be ignored
 *         groups COUNT            makes, uses and frees so many communicators, one after another
 *         fork                    a child opens a segment of its own and puts one event
 *         close                   after the last operation */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "writer.h"

static int communicator;
static pthread_barrier_t barrier;

static void put(uint64_t operation, uint64_t sequence) {
    struct ft_event event;

    memset(&event, 0, sizeof(event));
    event.begin_raw_ns = ft_trace_now_ns();
    event.end_raw_ns = event.begin_raw_ns + 1000;
    event.operation = operation;
    event.sequence = sequence;
    event.bytes = 4096;
    event.kind = FT_EVENT_END;
    event.function = FT_ALL_REDUCE;
    event.communicator = (uint16_t)communicator;
    event.peer = -1;
    ft_trace_put(&event);
}

static void *work(void *events) {
    for (uint64_t n = 0; n < (uintptr_t)events; n++) put(ft_trace_operation(), n);
    pthread_barrier_wait(&barrier); /* so that each thread has a ring of its own */
    return NULL;
}

static void threads_put(unsigned threads, uintptr_t events) {
    pthread_t thread[1024];

    pthread_barrier_init(&barrier, NULL, threads);
    for (unsigned n = 0; n < threads; n++) pthread_create(&thread[n], NULL, work, (void *)events);
    for (unsigned n = 0; n < threads; n++) pthread_join(thread[n], NULL);
    pthread_barrier_destroy(&barrier);
}

static int register_all(void) {
    struct ft_segment_communicator made;

    memset(&made, 0, sizeof(made));
    made.rank = 3;
    made.ranks = 8;
    made.nodes = 2;
    made.id = 0x1234567890abcdef;
    snprintf(made.name, sizeof(made.name), "world \x1b[31m");
    if (ft_trace_device("mlx5_0") != 0 || ft_trace_device("mlx5_1") != 1 || ft_trace_device("mlx5_0") != 0)
        return -1;
    return ft_trace_communicator(&made);
}

static void groups(unsigned count) {
    struct ft_segment_communicator made;

    for (unsigned n = 0; n < count; n++) {
        static uint64_t id;

        memset(&made, 0, sizeof(made));
        made.id = ++id;
        made.ranks = 2;
        communicator = ft_trace_communicator(&made);
        if (communicator >= 0) put(ft_trace_operation(), id);
        ft_trace_communicator_end(communicator);
    }
}

static void fork_one(void) {
    pid_t child = fork();
    int status;

    if (!child) {
        put(1, 1); /* ignored: it has no segment */
        if (!ft_trace_open(FT_SOURCE_MPI, "child")) _exit(1);
        communicator = register_all();
        put(2, 2);
        exit(communicator ? 2 : 0);
    }
    waitpid(child, &status, 0);
    printf("child %d\n", status);
}

int main(int count, char **arguments) {
    unsigned threads = count > 1 ? (unsigned)atoi(arguments[1]) : 1;
    uintptr_t events = count > 2 ? strtoul(arguments[2], NULL, 10) : 0;
    char line[128];

    if (!ft_trace_open(FT_SOURCE_MPI, "4.1.4/test")) {
        printf("closed\n");
        return 0;
    }
    communicator = register_all();
    threads_put(threads, events);
    printf("put %d\n", communicator);
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        if (sscanf(line, "put %lu", &events) == 1) threads_put(threads, events);
        if (sscanf(line, "groups %lu", &events) == 1) groups((unsigned)events);
        if (!strcmp(line, "misuse\n")) ft_trace_misuse();
        if (!strcmp(line, "fork\n")) fork_one();
        if (!strcmp(line, "close\n")) ft_trace_close();
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
