/* The parts of libibverbs' public binary interface that this library uses.
 *
 * Own declarations let the library build without rdma-core, and one build serves every machine. Unused
 * fields are padding. A test compares every offset with <infiniband/verbs.h> if it is installed. */
#ifndef FABRICTIME_VERBS_ABI_H
#define FABRICTIME_VERBS_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum { FT_QPT_RC = 2, FT_QPT_UC = 3, FT_QPT_XRC_SEND = 9 };
enum { FT_QPS_RESET, FT_QPS_INIT, FT_QPS_RTR, FT_QPS_RTS, FT_QPS_SQD, FT_QPS_SQE, FT_QPS_ERR };
enum {
    FT_QP_STATE = 1 << 0,
    FT_QP_AV = 1 << 7,
    FT_QP_PATH_MTU = 1 << 8,
    FT_QP_DEST_QPN = 1 << 20,
    FT_QP_RATE_LIMIT = 1 << 25,
};
enum { FT_SEND_SIGNALED = 1 << 1, FT_WC_RECV = 1 << 7 };
enum { FT_WR_RDMA_WRITE = 0, FT_WR_RDMA_WRITE_WITH_IMM = 1, FT_WR_RDMA_READ = 4, FT_WR_LAST_ATOMIC = 6 };

struct ft_context;
struct ft_qp;
struct ft_send_wr;
struct ft_cq;
struct ft_wc;
struct ft_qp_attr;

typedef int ft_modify_qp(struct ft_qp *qp, struct ft_qp_attr *attr, int mask);
typedef int ft_post_send(struct ft_qp *qp, struct ft_send_wr *wr, struct ft_send_wr **bad_wr);
typedef int ft_poll_cq(struct ft_cq *cq, int count, struct ft_wc *wc);

struct ft_context {
    void *device;
    void *ops_before[11];
    ft_poll_cq *poll_cq;
    void *ops_between[11];
    ft_modify_qp *modify_qp; /* the driver's own, which ibv_modify_qp calls */
    void *ops_before_post;
    ft_post_send *post_send;
    void *ops_after[6];
    int cmd_fd;
    int async_fd;
    int num_comp_vectors;
    pthread_mutex_t mutex;
    void *abi_compat;
};

/* The structure before an extended context. It grows at its beginning, so offsets count from its end. */
struct ft_extended {
    int (*query_device_ex)(struct ft_context *context, const void *input, void *attr, size_t attr_size);
    void *flows[4];
    void *open_qp;
    struct ft_qp *(*create_qp_ex)(struct ft_context *context, void *init_attr);
    void *others[4];
    uint64_t placeholder;
    size_t size;
    struct ft_context context;
};

struct ft_qp {
    struct ft_context *context;
    void *qp_context;
    void *pd;
    void *send_cq;
    void *recv_cq;
    void *srq;
    uint32_t handle;
    uint32_t qp_num;
    uint32_t state;
    uint32_t qp_type;
};

/* The beginnings of a completion queue, and of the attributes of a new queue pair. */
struct ft_cq {
    struct ft_context *context;
};

struct ft_qp_init_attr {
    void *before[4];
    uint32_t max_send_wr;
    uint32_t cap_rest[4];
    uint32_t qp_type;
    int sq_sig_all;
};

struct ft_wc {
    uint64_t wr_id;
    uint32_t status; /* 0: success, otherwise the opcode is not set */
    uint32_t opcode;
    uint32_t vendor_err;
    uint32_t byte_len;
    uint32_t imm_data;
    uint32_t qp_num;
    uint8_t rest[16];
};

struct ft_ah_attr {
    uint8_t dgid[16] __attribute__((aligned(8)));
    uint32_t flow_label;
    uint8_t sgid_index;
    uint8_t hop_limit;
    uint8_t traffic_class;
    uint16_t dlid __attribute__((aligned(8)));
    uint8_t sl;
    uint8_t src_path_bits;
    uint8_t static_rate;
    uint8_t is_global;
    uint8_t port_num;
};

struct ft_qp_attr {
    uint32_t qp_state;
    uint32_t cur_qp_state;
    uint32_t path_mtu;
    uint32_t path_mig_state;
    uint32_t qkey;
    uint32_t rq_psn;
    uint32_t sq_psn;
    uint32_t dest_qp_num;
    uint32_t qp_access_flags;
    uint32_t cap[5];
    struct ft_ah_attr ah_attr;
    struct ft_ah_attr alt_ah_attr;
    uint16_t pkey_index;
    uint16_t alt_pkey_index;
    uint8_t en_sqd_async_notify;
    uint8_t sq_draining;
    uint8_t max_rd_atomic;
    uint8_t max_dest_rd_atomic;
    uint8_t min_rnr_timer;
    uint8_t port_num;
    uint8_t timeout;
    uint8_t retry_cnt;
    uint8_t rnr_retry;
    uint8_t alt_port_num;
    uint8_t alt_timeout;
    uint32_t rate_limit;
};

struct ft_sge {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
};

/* The beginning of a work request; the rest is not used. */
struct ft_send_wr {
    uint64_t wr_id;
    struct ft_send_wr *next;
    struct ft_sge *sg_list;
    int num_sge;
    uint32_t opcode;
    uint32_t send_flags;
    uint32_t imm_data;
    uint8_t rest[88];
};

/* The extended device attributes, up to the pacing capabilities. */
struct ft_device_attr_ex {
    uint8_t before[332];
    uint32_t rate_limit_min_kbps;
    uint32_t rate_limit_max_kbps;
    uint32_t rate_limit_qp_types;
    uint8_t after[56];
};

_Static_assert(sizeof(struct ft_ah_attr) == 32, "address handle attributes");
_Static_assert(sizeof(struct ft_qp_attr) == 144, "queue pair attributes");

#endif
