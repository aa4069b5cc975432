/* Delays of queue pairs while one thread posts, one polls and one reports. Built by test_qp.py with sanitizers;
 * prints "clean" at the end. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "delays.h"

enum { POSTS = 3000, EACH = 3 };

static struct ft_context context;
static struct ft_qp qp = {.context = &context, .qp_num = 5, .qp_type = FT_QPT_RC};
static struct ft_delays *delays;
static _Atomic uint64_t posted, polled;

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* Lists of requests, the last one signalled; at most 20 lists are outstanding. */
static void *post(void *arg) {
    struct ft_sge part = {.length = 10};
    struct ft_send_wr wr[EACH];

    memset(wr, 0, sizeof(wr));
    for (int i = 0; i < EACH; i++) {
        wr[i].wr_id = 9;
        wr[i].next = i + 1 < EACH ? &wr[i + 1] : NULL;
        wr[i].sg_list = &part;
        wr[i].num_sge = 1;
    }
    wr[EACH - 1].send_flags = FT_SEND_SIGNALED;
    for (uint64_t n = 0; n < POSTS; n++) {
        while (n - atomic_load(&polled) > 20) sched_yield();
        CHECK(ft_delays_post(delays, wr) == n * EACH);
        atomic_store(&posted, n + 1);
    }
    return arg;
}

static void *poll_all(void *arg) {
    struct ft_wc wc = {.wr_id = 9, .qp_num = 5}, other = {.wr_id = 9, .qp_num = 6}, received = wc;

    received.opcode = FT_WC_RECV;
    for (uint64_t n = 0; n < POSTS; n++) {
        while (n == atomic_load(&posted)) sched_yield();
        ft_delays_polled(&context, &wc, 1);
        ft_delays_polled(&context, &other, 1);
        ft_delays_polled(&context, &received, 1);
        atomic_store(&polled, n + 1);
    }
    return arg;
}

int main(void) {
    struct ft_qp_init_attr init = {.max_send_wr = 100, .qp_type = FT_QPT_RC};
    struct ft_event event;
    uint64_t completed = 0, bytes = 0;
    pthread_t threads[2];

    delays = ft_delays_add(&qp, &init);
    CHECK(delays && !ft_delays_report(delays, &event));
    pthread_create(&threads[0], NULL, post, NULL);
    pthread_create(&threads[1], NULL, poll_all, NULL);
    while (completed < POSTS) {
        sched_yield();
        if (!ft_delays_report(delays, &event)) continue;
        CHECK(event.min_ns <= event.p99_ns && event.p99_ns <= event.max_ns && event.posted <= 22 * EACH);
        completed += event.completed;
        bytes += event.bytes;
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    if (ft_delays_report(delays, &event)) bytes += event.bytes;
    CHECK(completed == POSTS && bytes == (uint64_t)POSTS * EACH * 10);
    ft_delays_retire(delays);
    ft_delays_free(delays);
    CHECK(ft_delays_add(&qp, &init) == delays); /* its memory is used again */
    puts("clean");
    return 0;
}
