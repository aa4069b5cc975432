/* Verbs of a device that is not there, for a host without RDMA: queue pairs that are only numbers, a device that
   limits rates. What real verbs do is tried in tests/rdma. */
#include <stdlib.h>
#include <string.h>

#include "verbs_abi.h"

static _Atomic uint32_t next_number = 1;
static struct ft_extended extended;

/* Completions that wait to be polled. Opcode 0xfe is refused by post_send, 0xff completes with an error. */
static struct ft_wc waiting[1 << 12];
static uint64_t first, last;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int post_send(struct ft_qp *qp, struct ft_send_wr *wr, struct ft_send_wr **bad_wr) {
    for (; wr; wr = wr->next) {
        *bad_wr = wr;
        if (wr->opcode == 0xfe) return 12;
        if (!(wr->send_flags & FT_SEND_SIGNALED)) continue;
        pthread_mutex_lock(&lock);
        struct ft_wc *wc = &waiting[last++ % (sizeof(waiting) / sizeof(*waiting))];

        wc->wr_id = wr->wr_id;
        wc->status = wr->opcode == 0xff ? 12 : 0;
        wc->qp_num = qp->qp_num;
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

static int poll_cq(struct ft_cq *cq, int count, struct ft_wc *wc) {
    int n = 0;

    (void)cq;
    pthread_mutex_lock(&lock);
    for (; n < count && first < last; n++) wc[n] = waiting[first++ % (sizeof(waiting) / sizeof(*waiting))];
    pthread_mutex_unlock(&lock);
    return n;
}

static int query_device_ex(struct ft_context *context, const void *input, void *attr, size_t attr_size) {
    struct ft_device_attr_ex *found = attr;

    (void)context, (void)input, (void)attr_size;
    found->rate_limit_max_kbps = 100000000;
    found->rate_limit_qp_types = 1 << FT_QPT_RC;
    return 0;
}

struct ft_context *ibv_open_device(void *device) {
    extended.size = sizeof(extended);
    extended.query_device_ex = query_device_ex;
    extended.context.device = device;
    extended.context.post_send = post_send;
    extended.context.poll_cq = poll_cq;
    extended.context.abi_compat = (void *)UINTPTR_MAX;
    return &extended.context;
}

const char *ibv_get_device_name(void *device) {
    return device;
}

struct ft_qp *ibv_create_qp(void *pd, void *init_attr) {
    struct ft_qp *qp = calloc(1, sizeof(*qp));

    (void)init_attr;
    qp->context = pd;
    qp->qp_type = FT_QPT_RC;
    qp->qp_num = next_number++;
    return qp;
}

int ibv_modify_qp(struct ft_qp *qp, struct ft_qp_attr *attr, int mask) {
    if (mask & FT_QP_STATE) qp->state = attr->qp_state;
    return 0;
}

int ibv_destroy_qp(struct ft_qp *qp) {
    memset(qp, 0x5a, sizeof(*qp));
    free(qp);
    return 0;
}
