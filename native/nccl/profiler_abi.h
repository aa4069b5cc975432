/* The parts of NCCL's public profiler interface, versions 1 to 7, that this library uses.
 *
 * Own declarations let the library build without NCCL. A member that the library does not read is padding.
 * All versions share the head of a descriptor and most members of its union; a member that grew kept its
 * beginning, so the version that introduced it names the layout. RCCL has the same interface. A test compares
 * every size and offset with NCCL's headers if they are present. */
#ifndef FABRICTIME_PROFILER_ABI_H
#define FABRICTIME_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FT_NCCL_FIRST = 1, FT_NCCL_LAST = 7 };

enum ft_nccl_type {
    FT_NCCL_GROUP = 1 << 0,
    FT_NCCL_COLLECTIVE = 1 << 1,
    FT_NCCL_P2P = 1 << 2,
    FT_NCCL_PROXY_OP = 1 << 3,
    FT_NCCL_PROXY_STEP = 1 << 4,
    FT_NCCL_PROXY_CTRL = 1 << 5,
    FT_NCCL_KERNEL_CHANNEL = 1 << 6, /* from version 3, as the next */
    FT_NCCL_NET_PLUGIN = 1 << 7,
    FT_NCCL_GROUP_API = 1 << 8, /* from version 5, as the next three */
    FT_NCCL_COLLECTIVE_API = 1 << 9,
    FT_NCCL_P2P_API = 1 << 10,
    FT_NCCL_KERNEL_LAUNCH = 1 << 11,
    FT_NCCL_CE_COLLECTIVE = 1 << 12, /* from version 6, as the next two */
    FT_NCCL_CE_SYNC = 1 << 13,
    FT_NCCL_CE_BATCH = 1 << 14,
    FT_NCCL_KERNEL_PHASE = 1 << 15, /* from version 7 */
};

enum ft_nccl_state {
    FT_NCCL_OP_SEND_POSTED = 0, /* states of an operation of the proxy, before version 4 */
    FT_NCCL_OP_RECV_DONE = 7,
    FT_NCCL_STEP_SEND_GPU_WAIT = 8,
    FT_NCCL_STEP_SEND_WAIT = 9,
    FT_NCCL_STEP_RECV_WAIT = 10,
    FT_NCCL_STEP_RECV_FLUSH_WAIT = 11,
    FT_NCCL_STEP_RECV_GPU_WAIT = 12,
    FT_NCCL_OP_IN_PROGRESS = 19,
    FT_NCCL_STEP_SEND_PEER_WAIT = 20, /* from version 4 */
    FT_NCCL_NET_UPDATE = 21,
    FT_NCCL_KERNEL_CHANNEL_STOP = 22,
};

enum { FT_NCCL_LOG_WARN = 2, FT_NCCL_LOG_INFO = 3 };
enum { FT_NCCL_SUBSYSTEM_INIT = 0x1, FT_NCCL_SUBSYSTEM_PROFILE = 0x4000 };
enum { FT_NCCL_NET_IB_V1 = (1 << 16) | 1, FT_NCCL_NET_QUEUE_PAIR = 1 };

typedef void ft_nccl_log(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct ft_nccl_coll_v1 {
    const char *name;
    uint64_t hash;
    uint64_t sequence;
    uint8_t function;
    const void *send;
    void *receive;
    size_t count;
    int root;
    uint8_t datatype;
    uint32_t reduction;
    size_t traffic;
    uint8_t channels;
    uint8_t warps;
    uint8_t algorithm;
    uint8_t protocol;
    int collnet;
    int nvls;
};

struct ft_nccl_coll_v2 {
    const char *name;
    uint64_t hash;
    uint64_t sequence;
    const char *function;
    const void *send;
    void *receive;
    size_t count;
    int root;
    const char *datatype;
    size_t traffic;
    uint8_t channels;
    uint8_t warps;
    const char *algorithm;
    const char *protocol;
};

struct ft_nccl_coll_v3 {
    const char *name;
    uint64_t hash;
    uint64_t sequence;
    const char *function;
    const void *send;
    void *receive;
    size_t count;
    int root;
    const char *datatype;
    uint8_t channels;
    uint8_t warps;
    const char *algorithm;
    const char *protocol;
};

struct ft_nccl_coll_v4 { /* to version 7, which each read only the members that they have */
    uint64_t sequence;
    const char *function;
    const void *send;
    void *receive;
    size_t count;
    int root;
    const char *datatype;
    uint8_t channels;
    uint8_t warps;
    const char *algorithm;
    const char *protocol;
    void *group;         /* from version 5 */
    const char *variant; /* from version 7, as the next two */
    uint8_t symmetric;
    uint64_t tag;
};

struct ft_nccl_p2p_v1 {
    const char *name;
    uint64_t hash;
    uint8_t function;
    void *buffer;
    uint8_t datatype;
    size_t count;
    int peer;
};

struct ft_nccl_p2p_v2 { /* and 3 */
    const char *name;
    uint64_t hash;
    const char *function;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
};

struct ft_nccl_p2p_v4 {
    const char *function;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t channels;
    void *group;  /* from version 5 */
    uint64_t tag; /* from version 7 */
};

struct ft_nccl_coll_api { /* from version 5, as the next */
    const char *function;
    size_t count;
    const char *datatype;
    int root;
    void *stream;
    uint8_t captured; /* into a graph; a bool of NCCL, which may hold any byte */
};

struct ft_nccl_p2p_api {
    const char *function;
    size_t count;
    const char *datatype;
    void *stream;
    uint8_t captured;
};

struct ft_nccl_proxy_op {
    int pid;
    uint8_t channel;
    int peer;
    int steps;
    int chunk;
    int sends;
};

struct ft_nccl_kernel_channel {
    uint8_t channel;
    uint64_t timer; /* from version 4 */
};

struct ft_nccl_net_plugin {
    int64_t id;
    void *data;
};

struct ft_nccl_net_ib {
    uint8_t type;
    struct {
        int device;
        uint64_t request;
        int opcode;
        int number;
        size_t length;
    } queue_pair;
};

struct ft_nccl_descriptor {
    union {
        uint8_t narrow; /* the type, before version 5 */
        uint64_t wide;
    } type;
    void *parent;
    int rank;
    union {
        struct ft_nccl_coll_v1 coll_v1;
        struct ft_nccl_coll_v2 coll_v2;
        struct ft_nccl_coll_v3 coll_v3;
        struct ft_nccl_coll_v4 coll;
        struct ft_nccl_p2p_v1 p2p_v1;
        struct ft_nccl_p2p_v2 p2p_v2;
        struct ft_nccl_p2p_v4 p2p;
        struct ft_nccl_coll_api coll_api;
        struct ft_nccl_p2p_api p2p_api;
        struct ft_nccl_proxy_op proxy_op;
        int step;
        struct ft_nccl_kernel_channel kernel_channel;
        struct ft_nccl_net_plugin net_plugin;
    };
};

union ft_nccl_arguments {
    struct {
        size_t bytes;
        int steps;
    } proxy_op; /* before version 4 */
    size_t step_bytes;
    int appended;
    void *data;
    uint64_t timer;
};

typedef int ft_nccl_init_v1(void **context, int *mask);
typedef int ft_nccl_init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks,
                            int rank, ft_nccl_log *log);
typedef int ft_nccl_init_v5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                            int rank, ft_nccl_log *log);

/* The table that a plugin exports as ncclProfiler_v1 to ncclProfiler_v7. */
struct ft_nccl_profiler {
    const char *name;
    union {
        ft_nccl_init_v1 *init_v1; /* to version 3 */
        ft_nccl_init_v4 *init_v4;
        ft_nccl_init_v5 *init; /* from version 5 */
    };
    int (*start)(void *context, void **event, struct ft_nccl_descriptor *descriptor);
    int (*stop)(void *event);
    int (*record)(void *event, int state, union ft_nccl_arguments *arguments);
    int (*finalize)(void *context);
};

/* Bytes of a descriptor of each version: a copy must not read more. */
static const uint8_t ft_nccl_descriptor_bytes[FT_NCCL_LAST + 1] = {0, 120, 128, 120, 104, 112, 112, 136};

#endif
