/* Posts on queue pairs of the made-up device and polls the completions.
 *
 *     traffic LIBRARY delays     prints what was posted, with known delays
 *     traffic LIBRARY churn      threads post, poll, make and destroy queue pairs
 *     traffic LIBRARY cost       prints ns of a post and its poll */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "verbs_abi.h"

static struct ft_context *context;
static struct ft_qp *(*create)(void *, void *);
static int (*destroy)(struct ft_qp *);

static uint64_t now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct ft_qp *made(uint32_t requests) {
    struct ft_qp_init_attr init;

    memset(&init, 0, sizeof(init));
    init.qp_type = FT_QPT_RC;
    init.max_send_wr = requests;
    return create(context, &init);
}

static int post(struct ft_qp *qp, uint64_t wr_id, uint32_t bytes, uint32_t flags, uint32_t opcode) {
    struct ft_sge part = {.length = bytes};
    struct ft_send_wr wr, *bad;

    memset(&wr, 0, sizeof(wr));
    wr.wr_id = wr_id;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.send_flags = flags;
    wr.opcode = opcode;
    return context->post_send(qp, &wr, &bad);
}

static int poll_all(void) {
    struct ft_cq cq = {.context = context};
    struct ft_wc wc[16];
    int sum = 0, count;

    while ((count = context->poll_cq(&cq, 16, wc)) > 0) sum += count;
    return sum;
}

static void pass(uint64_t ns) {
    for (uint64_t end = now_ns() + ns; now_ns() < end;);
}

/* 40 signalled requests of 1 ms, each behind three that are not; three refused, two failed, one outstanding. */
static int delays(void) {
    struct ft_qp *qp = made(256);
    int failed = 0;

    for (int i = 0; i < 40; i++) {
        for (int silent = 0; silent < 3; silent++) post(qp, 7, 1000, 0, FT_WR_RDMA_WRITE);
        post(qp, 7, 1000, FT_SEND_SIGNALED, FT_WR_RDMA_WRITE);
        pass(1000000);
        poll_all();
    }
    for (int i = 0; i < 3; i++) failed += !!post(qp, 7, 1000, FT_SEND_SIGNALED, 0xfe);
    for (int i = 0; i < 2; i++) post(qp, 8, 1000, FT_SEND_SIGNALED, 0xff);
    poll_all();
    post(qp, 7, 1000, FT_SEND_SIGNALED, FT_WR_RDMA_WRITE);
    printf("posted %u %d\n", qp->qp_num, failed);
    fflush(stdout);
    getchar();
    destroy(qp);
    return 0;
}

static void *churn_one(void *arg) {
    for (int round = 0; round < 200; round++) {
        struct ft_qp *qp = made(64);

        for (uint64_t i = 0; i < 100; i++) {
            post(qp, i, 10, FT_SEND_SIGNALED, FT_WR_RDMA_WRITE);
            poll_all();
        }
        destroy(qp);
    }
    return arg;
}

static int churn(void) {
    pthread_t threads[4];

    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn_one, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    poll_all();
    printf("posted\n");
    return 0;
}

static int cost(void) {
    enum { BATCH = 32, ROUNDS = 20000 };
    struct ft_qp *qp = made(256);
    double best = 1e9, clock = 1e9;

    for (int repeat = 0; repeat < 7; repeat++) {
        uint64_t begin = now_ns();

        for (int round = 0; round < ROUNDS; round++) {
            for (uint64_t i = 0; i < BATCH; i++) post(qp, i, 4096, FT_SEND_SIGNALED, FT_WR_RDMA_WRITE);
            poll_all();
        }
        double ns = (double)(now_ns() - begin) / (BATCH * ROUNDS);

        best = ns < best ? ns : best;
        begin = now_ns();
        for (int i = 0; i < 100000; i++) now_ns();
        ns = (double)(now_ns() - begin) / 100000;
        clock = ns < clock ? ns : clock;
    }
    printf("cost %.1f %.1f\n", best, clock);
    return 0;
}

int main(int count, char **arguments) {
    void *library = count == 3 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;

    if (!library) return 2;
    struct ft_context *(*open_device)(void *) =
        (struct ft_context * (*)(void *)) dlsym(library, "ibv_open_device");

    create = (struct ft_qp * (*)(void *, void *)) dlsym(library, "ibv_create_qp");
    destroy = (int (*)(struct ft_qp *))dlsym(library, "ibv_destroy_qp");
    context = open_device("made_up0");
    return !strcmp(arguments[2], "delays") ? delays() : !strcmp(arguments[2], "churn") ? churn() : cost();
}
