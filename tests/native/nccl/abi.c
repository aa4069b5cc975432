/* Compares our declarations with figures that were read from NCCL 2.30 and 2.31, and with NCCL's own headers
 * where NCCL_HEADERS is set to the newest version among them. */
#include "profiler_abi.h"

#define AT(member, offset) _Static_assert(offsetof(struct ft_nccl_descriptor, member) == (offset), #member)

AT(type, 0);
AT(parent, 8);
AT(rank, 16);
AT(coll_v1.count, 72);
AT(coll_v1.algorithm, 106);
AT(coll_v2.algorithm, 112);
AT(coll_v3.algorithm, 104);
AT(coll.channels, 80);
AT(coll.algorithm, 88);
AT(coll.group, 104);
AT(coll.tag, 128);
AT(p2p_v1.count, 64);
AT(p2p_v2.count, 64);
AT(p2p_v2.peer, 72);
AT(p2p.peer, 56);
AT(p2p.channels, 60);
AT(p2p.group, 64);
AT(p2p.tag, 72);
AT(coll_api.captured, 64);
AT(p2p_api.captured, 56);
AT(proxy_op.sends, 44);
AT(step, 24);
AT(kernel_channel.timer, 32);
AT(net_plugin.data, 32);
_Static_assert(sizeof(struct ft_nccl_descriptor) == 136, "descriptor");
_Static_assert(sizeof(union ft_nccl_arguments) == 16, "arguments");
_Static_assert(sizeof(struct ft_nccl_profiler) == 48, "table");
_Static_assert(sizeof(struct ft_nccl_net_ib) == 40, "queue pair");
_Static_assert(offsetof(struct ft_nccl_net_ib, queue_pair.number) == 28, "queue pair's number");

#ifdef NCCL_HEADERS
typedef int ncclPid_t;
typedef int ncclResult_t;
typedef int ncclProfilerEventState_v1_t, ncclProfilerEventState_v2_t, ncclProfilerEventState_v3_t,
    ncclProfilerEventState_v4_t, ncclProfilerEventState_v5_t, ncclProfilerEventState_v6_t,
    ncclProfilerEventState_v7_t;
typedef void (*ncclDebugLogger_t)(int level, unsigned long flags, const char *file, int line,
                                  const char *format, ...);
#include "profiler_v1.h"
#include "profiler_v2.h"
#include "profiler_v3.h"
#include "profiler_v4.h"
#include "profiler_v5.h"
#include "profiler_v6.h"
#include "net_ib_v1.h"

#define SAME(version, theirs, ours)                                                                          \
    _Static_assert(offsetof(ncclProfilerEventDescr_v##version##_t, theirs) ==                                \
                       offsetof(struct ft_nccl_descriptor, ours),                                            \
                   "version " #version ": " #theirs)
#define ALL(version)                                                                                         \
    SAME(version, parentObj, parent);                                                                        \
    SAME(version, rank, rank);                                                                               \
    SAME(version, proxyOp.pid, proxy_op.pid);                                                                \
    SAME(version, proxyOp.channelId, proxy_op.channel);                                                      \
    SAME(version, proxyOp.peer, proxy_op.peer);                                                              \
    SAME(version, proxyOp.nSteps, proxy_op.steps);                                                           \
    SAME(version, proxyOp.chunkSize, proxy_op.chunk);                                                        \
    SAME(version, proxyOp.isSend, proxy_op.sends);                                                           \
    SAME(version, proxyStep.step, step);                                                                     \
    _Static_assert(sizeof(ncclProfiler_v##version##_t) == sizeof(struct ft_nccl_profiler), "table")
#define COLL(version, ours, maximum)                                                                         \
    SAME(version, coll.seqNumber, ours.sequence);                                                            \
    SAME(version, coll.func, ours.function);                                                                 \
    SAME(version, coll.count, ours.count);                                                                   \
    SAME(version, coll.root, ours.root);                                                                     \
    SAME(version, coll.datatype, ours.datatype);                                                             \
    SAME(version, coll.maximum, ours.channels);                                                              \
    SAME(version, coll.algo, ours.algorithm);                                                                \
    SAME(version, coll.proto, ours.protocol)
#define P2P(version, ours)                                                                                   \
    SAME(version, p2p.func, ours.function);                                                                  \
    SAME(version, p2p.count, ours.count);                                                                    \
    SAME(version, p2p.datatype, ours.datatype);                                                              \
    SAME(version, p2p.peer, ours.peer)

ALL(1);
ALL(2);
ALL(3);
ALL(4);
ALL(5);
ALL(6);
COLL(1, coll_v1, nMaxChannels);
COLL(2, coll_v2, nMaxChannels);
COLL(3, coll_v3, nMaxChannels);
COLL(4, coll, nChannels);
COLL(5, coll, nChannels);
COLL(6, coll, nChannels);
P2P(1, p2p_v1);
P2P(2, p2p_v2);
P2P(3, p2p_v2);
P2P(4, p2p);
P2P(5, p2p);
P2P(6, p2p);
SAME(1, coll.commHash, coll_v1.hash);
SAME(2, coll.commHash, coll_v2.hash);
SAME(3, coll.commHash, coll_v3.hash);
SAME(3, p2p.commHash, p2p_v2.hash);
SAME(4, p2p.nChannels, p2p.channels);
SAME(5, coll.parentGroup, coll.group);
SAME(6, p2p.parentGroup, p2p.group);
SAME(5, collApi.graphCaptured, coll_api.captured);
SAME(5, p2pApi.graphCaptured, p2p_api.captured);
SAME(6, collApi.graphCaptured, coll_api.captured);
SAME(4, kernelCh.pTimer, kernel_channel.timer);
SAME(3, kernelCh.channelId, kernel_channel.channel);
SAME(6, netPlugin.data, net_plugin.data);
_Static_assert(offsetof(ncclProfilerNetIbDescr_v1_t, qp.qpNum) ==
                   offsetof(struct ft_nccl_net_ib, queue_pair.number),
               "number");
_Static_assert(sizeof(ncclProfilerNetIbDescr_v1_t) == sizeof(struct ft_nccl_net_ib), "queue pair");

int main(void) {
    const size_t sizes[] = {0,
                            sizeof(ncclProfilerEventDescr_v1_t),
                            sizeof(ncclProfilerEventDescr_v2_t),
                            sizeof(ncclProfilerEventDescr_v3_t),
                            sizeof(ncclProfilerEventDescr_v4_t),
                            sizeof(ncclProfilerEventDescr_v5_t),
                            sizeof(ncclProfilerEventDescr_v6_t)};

    for (unsigned n = 1; n < sizeof(sizes) / sizeof(sizes[0]); n++)
        if (sizes[n] != ft_nccl_descriptor_bytes[n]) return (int)n;
    return 0;
}
#else
int main(void) {
    return ft_nccl_descriptor_bytes[FT_NCCL_LAST] != sizeof(struct ft_nccl_descriptor);
}
#endif
