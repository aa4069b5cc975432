/* The wrapped verbs, on the application's threads: they pass their arguments on and record the results.
 * Nothing waits for another process, and posting takes no lock.
 *
 *     ibv_open_device                                     replaces the functions that verbs.h calls through a context
 *     ibv_create_qp, create_qp_ex, mlx5dv_create_qp       a new queue pair
 *     ibv_modify_qp                                       its state and its path
 *     ibv_destroy_qp                                      it is gone
 *     post_send                                           counts bytes; requests built by other means (ibv_wr_*, a
 *                                                         library that writes a device's own queue) are not counted
 *     poll_cq                                             measures delays, if FABRICTIME_COLLECTIVES is set */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "delays.h"

enum { CONTEXTS = 64 };

static struct {
    _Atomic(struct ft_context *) context;
    _Atomic(ft_post_send *) post_send;
    _Atomic(ft_poll_cq *) poll_cq;
    struct ft_qp *(*create_qp_ex)(struct ft_context *context, void *init_attr);
} contexts[CONTEXTS];
static pthread_mutex_t adopting = PTHREAD_MUTEX_INITIALIZER;

static int find(const struct ft_context *context) {
    int n = 0;

    while (n < CONTEXTS && atomic_load_explicit(&contexts[n].context, memory_order_acquire) != context) n++;
    return n;
}

/* Payload bytes that a request sends, without those that it reads. */
static uint64_t payload(const struct ft_send_wr *wr) {
    uint64_t sum = 0;

    if (wr->opcode >= FT_WR_RDMA_READ && wr->opcode <= FT_WR_LAST_ATOMIC) return 0;
    for (int i = 0; i < wr->num_sge; i++) sum += wr->sg_list[i].length;
    return sum;
}

static int counted_post_send(struct ft_qp *qp, struct ft_send_wr *wr, struct ft_send_wr **bad_wr) {
    struct ft_pair *pair = ft_pair_of(qp);
    struct ft_delays *delays = pair ? pair->delays : NULL;
    int n = find(qp->context);
    uint64_t first = 0;
    ft_post_send *real;
    int error;

    if (n == CONTEXTS) return ENOSYS;
    if (delays) first = ft_delays_post(delays, wr);
    real = atomic_load_explicit(&contexts[n].post_send, memory_order_relaxed);
    error = real(qp, wr, bad_wr);
    if (error && delays) ft_delays_refused(delays, first, wr, *bad_wr);
    if (!pair) return error;
    uint64_t mtu = atomic_load_explicit(&pair->mtu, memory_order_relaxed);
    uint64_t headers = atomic_load_explicit(&pair->header_bytes, memory_order_relaxed);
    uint64_t sum = 0;

    for (; wr && !(error && wr == *bad_wr); wr = wr->next) {
        uint64_t bytes = payload(wr);

        sum += bytes + (bytes ? (bytes + mtu - 1) / mtu : 1) * headers;
    }
    atomic_fetch_add_explicit(&pair->frame_bytes, sum, memory_order_relaxed);
    return error;
}

static int measured_poll_cq(struct ft_cq *cq, int count, struct ft_wc *wc) {
    int n = find(cq->context);

    if (n == CONTEXTS) return -1;
    count = atomic_load_explicit(&contexts[n].poll_cq, memory_order_relaxed)(cq, count, wc);
    if (count > 0) ft_delays_polled(cq->context, wc, count);
    return count;
}

static void note_new(struct ft_qp *qp, const void *init_attr);

static struct ft_qp *noted_create_qp_ex(struct ft_context *context, void *init_attr) {
    int n = find(context);

    if (n == CONTEXTS) {
        errno = ENOSYS;
        return NULL;
    }
    struct ft_qp *qp = contexts[n].create_qp_ex(context, init_attr);

    if (qp) note_new(qp, init_attr);
    return qp;
}

static struct ft_extended *extended(struct ft_context *context) {
    struct ft_extended *found = (void *)((char *)context - offsetof(struct ft_extended, context));

    if (context->abi_compat != (void *)UINTPTR_MAX || found->size < sizeof(*found)) return NULL;
    return found;
}

bool ft_device_paces(struct ft_context *context, uint32_t qp_type) {
    struct ft_extended *more = extended(context);
    struct ft_device_attr_ex attr;

    memset(&attr, 0, sizeof(attr));
    if (!more || !more->query_device_ex || more->query_device_ex(context, NULL, &attr, sizeof(attr)))
        return false;
    return qp_type < 32 && (attr.rate_limit_qp_types >> qp_type & 1) && attr.rate_limit_max_kbps;
}

/* Replace the functions of a context that verbs.h calls. Empty entries are left alone. */
static void adopt(struct ft_context *context) {
    struct ft_extended *more = extended(context);
    int n;

    pthread_mutex_lock(&adopting);
    n = find(context);
    for (int i = 0; n == CONTEXTS && i < CONTEXTS; i++)
        if (!atomic_load_explicit(&contexts[i].context, memory_order_relaxed)) n = i;
    if (n < CONTEXTS) {
        if (context->post_send != counted_post_send)
            atomic_store_explicit(&contexts[n].post_send, context->post_send, memory_order_relaxed);
        if (more && more->create_qp_ex != noted_create_qp_ex) contexts[n].create_qp_ex = more->create_qp_ex;
        atomic_store_explicit(&contexts[n].context, context, memory_order_release);
        context->post_send = counted_post_send;
        if (ft_measures() && context->poll_cq && context->poll_cq != measured_poll_cq) {
            atomic_store_explicit(&contexts[n].poll_cq, context->poll_cq, memory_order_release);
            context->poll_cq = measured_poll_cq;
        }
        if (more && more->create_qp_ex) more->create_qp_ex = noted_create_qp_ex;
    }
    pthread_mutex_unlock(&adopting);
}

static void note_new(struct ft_qp *qp, const void *init_attr) {
    const char *(*name)(void *device) = (const char *(*)(void *))ft_verbs_symbol("ibv_get_device_name");
    const char *device = name ? name(qp->context->device) : NULL;

    if (ft_pair_of(qp)) return;
    if (qp->context->post_send != counted_post_send) adopt(qp->context);
    if (ft_pair_add(qp, device ? device : "unknown", init_attr)) ft_agent_start();
}

FT_EXPORT void *ibv_open_device(void *device) {
    void *(*real)(void *) = (void *(*)(void *))ft_real(FT_OPEN_DEVICE);
    void *context;

    if (!real) {
        errno = ENOSYS;
        return NULL;
    }
    context = real(device);
    if (context && ft_wanted()) adopt(context);
    return context;
}

FT_EXPORT struct ft_qp *ibv_create_qp(void *pd, void *init_attr) {
    struct ft_qp *(*real)(void *, void *) = (struct ft_qp * (*)(void *, void *)) ft_real(FT_CREATE_QP);
    struct ft_qp *qp;

    if (!real) {
        errno = ENOSYS;
        return NULL;
    }
    qp = real(pd, init_attr);
    if (qp && ft_wanted()) note_new(qp, init_attr);
    return qp;
}

FT_EXPORT struct ft_qp *mlx5dv_create_qp(struct ft_context *context, void *init_attr, void *mlx5_attr) {
    struct ft_qp *(*real)(struct ft_context *, void *, void *) =
        (struct ft_qp * (*)(struct ft_context *, void *, void *)) ft_real(FT_MLX5_CREATE_QP);
    struct ft_qp *qp;

    if (!real) {
        errno = ENOSYS;
        return NULL;
    }
    qp = real(context, init_attr, mlx5_attr);
    if (qp && ft_wanted()) note_new(qp, init_attr);
    return qp;
}

FT_EXPORT int ibv_modify_qp(struct ft_qp *qp, struct ft_qp_attr *attr, int mask) {
    int (*real)(struct ft_qp *, struct ft_qp_attr *, int) =
        (int (*)(struct ft_qp *, struct ft_qp_attr *, int))ft_real(FT_MODIFY_QP);
    struct ft_pair *pair;
    int error;

    if (!real) return ENOSYS;
    pair = ft_pair_of(qp);
    if (!pair) return real(qp, attr, mask);
    pthread_mutex_lock(&pair->lock);
    error = real(qp, attr, mask);
    if (!error) {
        if (mask & FT_QP_STATE) pair->state = attr->qp_state;
        if (mask & FT_QP_DEST_QPN) pair->dest_qpn = attr->dest_qp_num;
        if ((mask & FT_QP_PATH_MTU) && attr->path_mtu >= 1 && attr->path_mtu <= 5)
            atomic_store_explicit(&pair->mtu, 128u << attr->path_mtu, memory_order_relaxed);
        if (mask & FT_QP_AV) {
            pair->path = attr->ah_attr;
            pair->has_path = true;
            pair->source_port = 0;
            pair->source[0] = 0;
        }
        if (mask & FT_QP_RATE_LIMIT) pair->rate_bps = (uint64_t)attr->rate_limit * 1000;
        pair->draining = false;
    }
    pthread_mutex_unlock(&pair->lock);
    if (!error) {
        ft_registry_lock();
        pair->changed = true;
        ft_registry_unlock();
        ft_agent_wake();
    }
    return error;
}

FT_EXPORT int ibv_destroy_qp(struct ft_qp *qp) {
    int (*real)(struct ft_qp *) = (int (*)(struct ft_qp *))ft_real(FT_DESTROY_QP);
    struct ft_pair *pair;
    int error;

    if (!real) return ENOSYS;
    pair = ft_pair_of(qp);
    if (!pair) return real(qp);
    /* Remove it from the table first: its address may belong to another queue pair as soon as it is
     * destroyed. If it cannot be destroyed, it is registered again as a new one. */
    pthread_mutex_lock(&pair->lock);
    ft_pair_retire(pair);
    error = real(qp);
    pthread_mutex_unlock(&pair->lock);
    if (error) note_new(qp, NULL);
    ft_agent_wake();
    return error;
}
