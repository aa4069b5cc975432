/* Reads the descriptors of all versions into one description. */
#include <string.h>

#include "plugin.h"

struct name {
    const char *text;
    uint8_t value;
};

static const struct name functions[] = {
    {"AllReduce", FT_ALL_REDUCE},
    {"AllGather", FT_ALL_GATHER},
    {"ReduceScatter", FT_REDUCE_SCATTER},
    {"Broadcast", FT_BROADCAST},
    {"Reduce", FT_REDUCE},
    {"Send", FT_SEND},
    {"Recv", FT_RECEIVE},
    {"SendRecv", FT_SEND_RECEIVE},
    {"AlltoAll", FT_ALL_TO_ALL},
    {"AllToAll", FT_ALL_TO_ALL},
    {"AllToAllPivot", FT_ALL_TO_ALL},
    {"AlltoAllv", FT_ALL_TO_ALL},
    {"AllToAllv", FT_ALL_TO_ALL},
    {"Gather", FT_GATHER},
    {"Scatter", FT_SCATTER},
    {"AllGatherV", FT_ALL_GATHER},
    {NULL, FT_UNKNOWN_FUNCTION},
};
static const struct name algorithms[] = {
    {"RING", FT_RING}, {"TREE", FT_TREE},           {"COLLNET_DIRECT", FT_COLLNET_DIRECT},
    {"NVLS", FT_NVLS}, {"NVLS_TREE", FT_NVLS_TREE}, {"COLLNET_CHAIN", FT_COLLNET_CHAIN},
    {"PAT", FT_PAT},   {NULL, FT_NO_ALGORITHM},
};
static const struct name protocols[] = {
    {"SIMPLE", FT_SIMPLE}, {"LL", FT_LL}, {"LL128", FT_LL128}, {NULL, FT_NO_PROTOCOL}};
static const struct name datatypes[] = {
    {"ncclInt8", 1},       {"ncclUint8", 1},      {"ncclChar", 1},    {"ncclInt32", 4},   {"ncclInt", 4},
    {"ncclUint32", 4},     {"ncclInt64", 8},      {"ncclUint64", 8},  {"ncclFloat16", 2}, {"ncclHalf", 2},
    {"ncclFloat32", 4},    {"ncclFloat", 4},      {"ncclFloat64", 8}, {"ncclDouble", 8},  {"ncclBfloat16", 2},
    {"ncclFloat8e4m3", 1}, {"ncclFloat8e5m2", 1}, {"ncclFp8E4M3", 1}, {"ncclFp8E5M2", 1}, {NULL, 0},
};

/* Numbers of version 1, in NCCL's order. */
static const uint8_t function_numbers[] = {FT_BROADCAST,  FT_REDUCE,       FT_ALL_GATHER, FT_REDUCE_SCATTER,
                                           FT_ALL_REDUCE, FT_SEND_RECEIVE, FT_SEND,       FT_RECEIVE};
static const uint8_t algorithm_numbers[] = {
    FT_TREE, FT_RING, FT_COLLNET_DIRECT, FT_COLLNET_CHAIN, FT_NVLS, FT_NVLS_TREE, FT_PAT};
static const uint8_t protocol_numbers[] = {FT_LL, FT_LL128, FT_SIMPLE};
static const uint8_t datatype_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

#define OF_NUMBER(table, number) ((number) < sizeof(table) ? (table)[number] : 0)

static uint8_t of_name(const struct name *table, const char *text) {
    if (text)
        for (; table->text; table++)
            if (table->text[0] == text[0] && !strcmp(table->text, text)) return table->value;
    return 0;
}

/* The root of a collective that has one. */
static int32_t root_of(uint8_t function, int root) {
    bool rooted =
        function == FT_BROADCAST || function == FT_REDUCE || function == FT_GATHER || function == FT_SCATTER;

    return rooted ? ft_rank(root) : -1;
}

static uint64_t bytes_of(size_t count, uint8_t each) {
    uint64_t bytes;

    return __builtin_mul_overflow((uint64_t)count, (uint64_t)each, &bytes) ? 0 : bytes;
}

unsigned ft_type_of(int version, const struct ft_nccl_descriptor *from) {
    return version < 5 ? from->type.narrow : (unsigned)from->type.wide;
}

void ft_describe_collective(int version, const struct ft_nccl_descriptor *from, struct ft_description *to) {
    const char *function, *algorithm, *protocol, *datatype;
    size_t count;
    int root;

    memset(to, 0, sizeof(*to));
    to->group = (uint64_t)(uintptr_t)from->parent;
    if (version == 1) {
        const struct ft_nccl_coll_v1 *coll = &from->coll_v1;

        to->id = coll->hash;
        to->name = coll->name;
        to->function = OF_NUMBER(function_numbers, coll->function);
        to->algorithm = OF_NUMBER(algorithm_numbers, coll->algorithm);
        to->protocol = OF_NUMBER(protocol_numbers, coll->protocol);
        to->bytes = bytes_of(coll->count, OF_NUMBER(datatype_bytes, coll->datatype));
        to->peer = root_of(to->function, coll->root);
        return;
    }
    if (version < 4) { /* versions 2 and 3 differ behind `datatype` */
        const struct ft_nccl_coll_v2 *coll = &from->coll_v2;

        to->id = coll->hash;
        to->name = coll->name;
        root = coll->root;
        function = coll->function;
        datatype = coll->datatype;
        count = coll->count;
        algorithm = version == 2 ? coll->algorithm : from->coll_v3.algorithm;
        protocol = version == 2 ? coll->protocol : from->coll_v3.protocol;
    } else {
        const struct ft_nccl_coll_v4 *coll = &from->coll;

        function = coll->function;
        datatype = coll->datatype;
        count = coll->count;
        algorithm = coll->algorithm;
        protocol = coll->protocol;
        root = coll->root;
        to->channels = coll->channels; /* 8 bits: 0 may mean 256, so it counts as unknown */
        to->call = version >= 5 ? (uint64_t)(uintptr_t)from->parent : 0;
        if (version >= 5) to->group = (uint64_t)(uintptr_t)coll->group;
        if (version >= 7) to->tag = coll->tag & INT64_MAX;
    }
    to->function = of_name(functions, function);
    to->peer = root_of(to->function, root);
    to->algorithm = of_name(algorithms, algorithm);
    to->protocol = of_name(protocols, protocol);
    to->bytes = bytes_of(count, of_name(datatypes, datatype));
}

void ft_describe_p2p(int version, const struct ft_nccl_descriptor *from, struct ft_description *to) {
    memset(to, 0, sizeof(*to));
    to->group = (uint64_t)(uintptr_t)from->parent;
    if (version == 1) {
        to->id = from->p2p_v1.hash;
        to->name = from->p2p_v1.name;
        to->function = OF_NUMBER(function_numbers, from->p2p_v1.function);
        to->bytes = bytes_of(from->p2p_v1.count, OF_NUMBER(datatype_bytes, from->p2p_v1.datatype));
        to->peer = ft_rank(from->p2p_v1.peer);
        return;
    }
    if (version < 4) {
        to->id = from->p2p_v2.hash;
        to->name = from->p2p_v2.name;
        to->function = of_name(functions, from->p2p_v2.function);
        to->bytes = bytes_of(from->p2p_v2.count, of_name(datatypes, from->p2p_v2.datatype));
        to->peer = ft_rank(from->p2p_v2.peer);
        return;
    }
    to->function = of_name(functions, from->p2p.function);
    to->bytes = bytes_of(from->p2p.count, of_name(datatypes, from->p2p.datatype));
    to->peer = ft_rank(from->p2p.peer);
    to->channels = from->p2p.channels;
    to->call = version >= 5 ? (uint64_t)(uintptr_t)from->parent : 0;
    if (version >= 5) to->group = (uint64_t)(uintptr_t)from->p2p.group;
    if (version >= 7) to->tag = from->p2p.tag & INT64_MAX;
}
