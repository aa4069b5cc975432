/* Finds verbs as NCCL does, by dlvsym in a library loaded for itself alone, and makes and destroys queue pairs on
   several threads until told to stop; one stands all the while. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "verbs_abi.h"

static struct ft_context *(*open_device)(void *);
static struct ft_qp *(*create)(void *, void *);
static int (*modify)(struct ft_qp *, struct ft_qp_attr *, int);
static int (*destroy)(struct ft_qp *);
static struct ft_context *context;
static atomic_bool stop;

static struct ft_qp *ready(void) {
    struct ft_qp *qp = create(context, NULL);
    struct ft_qp_attr attr;

    memset(&attr, 0, sizeof(attr));
    attr.qp_state = FT_QPS_RTR;
    modify(qp, &attr, FT_QP_STATE | FT_QP_AV);
    attr.qp_state = FT_QPS_RTS;
    modify(qp, &attr, FT_QP_STATE);
    return qp;
}

static void *churn(void *arg) {
    struct ft_send_wr wr, *bad;

    memset(&wr, 0, sizeof(wr));
    while (!stop) {
        struct ft_qp *qp = ready();

        context->post_send(qp, &wr, &bad);
        destroy(qp);
        usleep(500); /* real ones take that long */
    }
    return arg;
}

int main(int count, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    pthread_t threads[3];

    if (count != 2 || !library) return 2;
    open_device = (struct ft_context * (*)(void *)) dlvsym(library, "ibv_open_device", "IBVERBS_1.1");
    create = (struct ft_qp * (*)(void *, void *)) dlvsym(library, "ibv_create_qp", "IBVERBS_1.1");
    modify = (int (*)(struct ft_qp *, struct ft_qp_attr *, int))dlsym(library, "ibv_modify_qp");
    destroy = (int (*)(struct ft_qp *))dlsym(library, "ibv_destroy_qp");
    if (!open_device || !create || !modify || !destroy) return 3;
    if (dlsym(library, "ibv_no_such_verb") || dlvsym(library, "ibv_create_qp", "IBVERBS_9.9")) return 4;
    /* A lookup of another name after the caller finds the C library's, not the caller's own. */
    if (dlsym(RTLD_NEXT, "puts") != dlsym(RTLD_DEFAULT, "puts")) return 5;
    context = open_device("made_up0");
    struct ft_qp *standing = ready();

    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, churn, NULL);
    printf("standing %u\n", standing->qp_num);
    fflush(stdout);
    getchar();
    stop = true;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    destroy(standing);
    return 0;
}
