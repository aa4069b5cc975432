/* Compiled, not run: our declarations lie where the real header's do. */
#include <infiniband/verbs.h>

#include "verbs_abi.h"

#define SAME(ours, our_field, theirs, their_field)                                                           \
    _Static_assert(offsetof(struct ours, our_field) == offsetof(struct theirs, their_field),                 \
                   #theirs "." #their_field)
#define BEFORE(ours, our_field, theirs, their_field)                                                         \
    _Static_assert(offsetof(struct ours, context) - offsetof(struct ours, our_field) ==                      \
                       offsetof(struct theirs, context) - offsetof(struct theirs, their_field),              \
                   #theirs "." #their_field)

SAME(ft_context, device, ibv_context, device);
SAME(ft_context, poll_cq, ibv_context, ops.poll_cq);
SAME(ft_context, modify_qp, ibv_context, ops._compat_modify_qp);
SAME(ft_context, post_send, ibv_context, ops.post_send);
SAME(ft_context, cmd_fd, ibv_context, cmd_fd);
SAME(ft_context, abi_compat, ibv_context, abi_compat);
BEFORE(ft_extended, create_qp_ex, verbs_context, create_qp_ex);
BEFORE(ft_extended, query_device_ex, verbs_context, query_device_ex);
BEFORE(ft_extended, size, verbs_context, sz);
SAME(ft_qp, context, ibv_qp, context);
SAME(ft_qp, qp_num, ibv_qp, qp_num);
SAME(ft_qp, state, ibv_qp, state);
SAME(ft_qp, qp_type, ibv_qp, qp_type);
SAME(ft_ah_attr, flow_label, ibv_ah_attr, grh.flow_label);
SAME(ft_ah_attr, sgid_index, ibv_ah_attr, grh.sgid_index);
SAME(ft_ah_attr, is_global, ibv_ah_attr, is_global);
SAME(ft_ah_attr, port_num, ibv_ah_attr, port_num);
SAME(ft_qp_attr, path_mtu, ibv_qp_attr, path_mtu);
SAME(ft_qp_attr, dest_qp_num, ibv_qp_attr, dest_qp_num);
SAME(ft_qp_attr, ah_attr, ibv_qp_attr, ah_attr);
SAME(ft_qp_attr, alt_ah_attr, ibv_qp_attr, alt_ah_attr);
SAME(ft_qp_attr, port_num, ibv_qp_attr, port_num);
SAME(ft_qp_attr, rate_limit, ibv_qp_attr, rate_limit);
SAME(ft_sge, length, ibv_sge, length);
SAME(ft_send_wr, next, ibv_send_wr, next);
SAME(ft_send_wr, sg_list, ibv_send_wr, sg_list);
SAME(ft_send_wr, num_sge, ibv_send_wr, num_sge);
SAME(ft_send_wr, opcode, ibv_send_wr, opcode);
SAME(ft_send_wr, send_flags, ibv_send_wr, send_flags);
SAME(ft_cq, context, ibv_cq, context);
SAME(ft_qp_init_attr, max_send_wr, ibv_qp_init_attr, cap.max_send_wr);
SAME(ft_qp_init_attr, sq_sig_all, ibv_qp_init_attr, sq_sig_all);
SAME(ft_qp_init_attr, max_send_wr, ibv_qp_init_attr_ex, cap.max_send_wr);
SAME(ft_qp_init_attr, sq_sig_all, ibv_qp_init_attr_ex, sq_sig_all);
SAME(ft_wc, wr_id, ibv_wc, wr_id);
SAME(ft_wc, status, ibv_wc, status);
SAME(ft_wc, opcode, ibv_wc, opcode);
SAME(ft_wc, qp_num, ibv_wc, qp_num);
SAME(ft_device_attr_ex, rate_limit_max_kbps, ibv_device_attr_ex, packet_pacing_caps.qp_rate_limit_max);
SAME(ft_device_attr_ex, rate_limit_qp_types, ibv_device_attr_ex, packet_pacing_caps.supported_qpts);
_Static_assert(sizeof(struct ft_context) == sizeof(struct ibv_context), "ibv_context");
_Static_assert(sizeof(struct ft_qp_attr) == sizeof(struct ibv_qp_attr), "ibv_qp_attr");
_Static_assert(sizeof(struct ft_ah_attr) == sizeof(struct ibv_ah_attr), "ibv_ah_attr");
_Static_assert(sizeof(struct ft_send_wr) <= sizeof(struct ibv_send_wr), "ibv_send_wr");
_Static_assert(sizeof(struct ft_wc) == sizeof(struct ibv_wc), "ibv_wc");
_Static_assert((int)FT_SEND_SIGNALED == (int)IBV_SEND_SIGNALED && (int)FT_WC_RECV == (int)IBV_WC_RECV &&
                   (int)IBV_WC_SUCCESS == 0,
               "flags");
_Static_assert((int)FT_QP_AV == (int)IBV_QP_AV && (int)FT_QP_PATH_MTU == (int)IBV_QP_PATH_MTU &&
                   (int)FT_QP_DEST_QPN == (int)IBV_QP_DEST_QPN &&
                   (int)FT_QP_RATE_LIMIT == (int)IBV_QP_RATE_LIMIT,
               "attribute masks");
_Static_assert((int)FT_QPT_RC == (int)IBV_QPT_RC && (int)FT_QPS_RTS == (int)IBV_QPS_RTS &&
                   (int)FT_QPS_SQD == (int)IBV_QPS_SQD && (int)FT_WR_RDMA_READ == (int)IBV_WR_RDMA_READ &&
                   (int)FT_WR_LAST_ATOMIC == (int)IBV_WR_ATOMIC_FETCH_AND_ADD,
               "numbers");
