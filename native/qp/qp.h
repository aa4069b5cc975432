/* Internal interface of libfabrictime-qp.so.
 *
 *     lookup    the real functions behind the wrapped names
 *     wrap      the wrapped verbs, on the application's threads
 *     registry  the queue pairs of the process
 *     delays    the time from post to completion, per queue pair
 *     mover     moves one queue pair, or limits its rate
 *     agent     the thread that talks to the actuator and to the flow reporter */
#ifndef FABRICTIME_QP_INTERNAL_H
#define FABRICTIME_QP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fabrictime_qp.h"
#include "verbs_abi.h"

#define FT_EXPORT __attribute__((visibility("default")))

enum { FT_NAME = 64, FT_TEXT = 160, FT_ADDRESS = 48 };

/* lookup */
enum ft_verb { FT_OPEN_DEVICE, FT_CREATE_QP, FT_MODIFY_QP, FT_DESTROY_QP, FT_MLX5_CREATE_QP, FT_VERBS };
void *ft_real(enum ft_verb verb);
void *ft_verbs_symbol(const char *name);
void *ft_mlx5_symbol(const char *name);

/* registry */
struct ft_delays;
struct ft_pair {
    struct ft_qp *qp;
    struct ft_delays *delays; /* NULL: not measured */
    struct ft_pair *next;
    pthread_mutex_t lock; /* held while the queue pair is modified, by the application or by us */
    char key[FT_NAME * 2];
    char device[FT_NAME];
    uint32_t qp_num;
    uint32_t qp_type;
    uint64_t created;             /* create count */
    _Atomic uint64_t frame_bytes; /* posted since its creation, headers included */
    _Atomic uint32_t mtu;
    _Atomic uint32_t header_bytes; /* of each packet */

    /* under the registry's lock */
    bool dead;
    bool changed; /* the actuator does not know the present state yet */
    bool announced;
    bool reported; /* known to the flow reporter */
    bool paces;
    fabrictime_standby standby;
    void *standby_arg;

    /* under `lock` */
    uint32_t state;
    uint32_t dest_qpn;
    bool has_path;
    struct ft_ah_attr path;
    bool roce_v2;
    uint16_t source_port; /* 0: packets have none, or it is unknown */
    char source[FT_ADDRESS], peer[FT_ADDRESS];
    uint64_t rate_bps; /* 0: not limited */

    /* used by the agent's thread only */
    bool draining; /* its new path is set, but it has not left SQD yet */
    uint64_t move_id;
    uint64_t drain_until_ns;
    uint64_t kick_until_ns; /* Soft-RoCE: new work may have to be posted again */
    uint64_t reported_bytes;
    uint16_t reported_port;
    int trace_device; /* index of its device in the trace, plus 1; 0: not registered yet */
};

void ft_registry_lock(void);
void ft_registry_unlock(void);
struct ft_pair *ft_pairs(void);                     /* under the registry's lock */
struct ft_pair *ft_pair_of(const struct ft_qp *qp); /* from any thread, no lock */
struct ft_pair *ft_pair_named(const char *key);     /* under the registry's lock */
struct ft_pair *ft_pair_add(struct ft_qp *qp, const char *device, const struct ft_qp_init_attr *init);
void ft_pair_retire(struct ft_pair *pair); /* its queue pair was destroyed */
void ft_pair_free(struct ft_pair *pair);   /* under the registry's lock, retired ones only */
void ft_registry_forget(void);             /* in a child after fork */

/* mover: both under the pair's lock; text is one line, without an end of line */
enum ft_outcome { FT_DONE, FT_DRAINING, FT_FAILED };
struct ft_result {
    enum ft_outcome outcome;
    uint64_t in_force;
    const char *how;
    char text[FT_TEXT];
};
void ft_learn_path(struct ft_pair *pair);
bool ft_device_paces(struct ft_context *context, uint32_t qp_type);
void ft_move(struct ft_pair *pair, uint16_t source_port, struct ft_result *result);
void ft_finish_drain(struct ft_pair *pair, struct ft_result *result);
void ft_kick(struct ft_pair *pair);
void ft_pace(struct ft_pair *pair, uint64_t rate_bps, struct ft_result *result);

/* agent */
bool ft_wanted(void);   /* whether any socket is named; otherwise the library does nothing */
bool ft_measures(void); /* whether delays are wanted */
void ft_agent_start(void);
void ft_agent_wake(void);
uint64_t ft_now_ns(void);

#endif
