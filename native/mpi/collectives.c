/* Collectives: each row of the table makes the blocking, the nonblocking and, from MPI 4, the persistent
 * wrapper. `bytes` is what this rank gives, or the root's message. Buffers
 * and types that MPI ignores (in place, not at the root) are not read. */
#include "trace.h"

static uint64_t sum(const int counts[], MPI_Datatype type, int ranks) {
    uint64_t total = 0;
    int size = 0;

    PMPI_Type_size(type, &size);
    for (int n = 0; n < ranks; n++) total += counts[n] > 0 ? (uint64_t)counts[n] : 0;
    return size > 0 ? total * (uint64_t)size : 0;
}

static uint64_t sum_of_types(const int counts[], const MPI_Datatype types[], int ranks) {
    uint64_t total = 0;

    for (int n = 0; n < ranks; n++) total += ft_bytes(counts[n], types[n]);
    return total;
}

#define LIST(...)    __VA_ARGS__
#define IN_PLACE     (sendbuf == MPI_IN_PLACE)
#define AT_ROOT      (at->rank == root)
#define SENT         ft_bytes(sendcount, sendtype)
#define RECEIVED     ft_bytes(recvcount, recvtype)
#define BLOCK        const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf
#define BLOCK_NAMES  sendbuf, sendcount, sendtype, recvbuf
#define REDUCE       const void *sendbuf, void *recvbuf
#define REDUCE_NAMES sendbuf, recvbuf

/* name, nonblocking name, function, root or -1, bytes, parameters, arguments; all end with the communicator `comm` */
#define COLLECTIVES(X)                                                                                       \
    X(Barrier, Ibarrier, FT_BARRIER, -1, 0, LIST(MPI_Comm comm), LIST(comm))                                 \
    X(Bcast, Ibcast, FT_BROADCAST, root, ft_bytes(count, type),                                              \
      LIST(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm),                             \
      LIST(buffer, count, type, root, comm))                                                                 \
    X(Gather, Igather, FT_GATHER, root, AT_ROOT &&IN_PLACE ? RECEIVED : SENT,                                \
      LIST(BLOCK, int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm),                            \
      LIST(BLOCK_NAMES, recvcount, recvtype, root, comm))                                                    \
    X(Gatherv, Igatherv, FT_GATHER, root, AT_ROOT &&IN_PLACE ? ft_bytes(recvcounts[root], recvtype) : SENT,  \
      LIST(BLOCK, const int recvcounts[], const int starts[], MPI_Datatype recvtype, int root,               \
           MPI_Comm comm),                                                                                   \
      LIST(BLOCK_NAMES, recvcounts, starts, recvtype, root, comm))                                           \
    X(Scatter, Iscatter, FT_SCATTER, root, (AT_ROOT ? SENT : RECEIVED) * (uint64_t)at->ranks,                \
      LIST(BLOCK, int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm),                            \
      LIST(BLOCK_NAMES, recvcount, recvtype, root, comm))                                                    \
    X(Scatterv, Iscatterv, FT_SCATTER, root,                                                                 \
      AT_ROOT ? sum(sendcounts, sendtype, at->ranks) : RECEIVED * (uint64_t)at->ranks,                       \
      LIST(const void *sendbuf, const int sendcounts[], const int starts[], MPI_Datatype sendtype,           \
           void *recvbuf, int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm),                    \
      LIST(sendbuf, sendcounts, starts, sendtype, recvbuf, recvcount, recvtype, root, comm))                 \
    X(Allgather, Iallgather, FT_ALL_GATHER, -1, IN_PLACE ? RECEIVED : SENT,                                  \
      LIST(BLOCK, int recvcount, MPI_Datatype recvtype, MPI_Comm comm),                                      \
      LIST(BLOCK_NAMES, recvcount, recvtype, comm))                                                          \
    X(Allgatherv, Iallgatherv, FT_ALL_GATHER, -1,                                                            \
      IN_PLACE ? ft_bytes(recvcounts[at->rank], recvtype) : SENT,                                            \
      LIST(BLOCK, const int recvcounts[], const int starts[], MPI_Datatype recvtype, MPI_Comm comm),         \
      LIST(BLOCK_NAMES, recvcounts, starts, recvtype, comm))                                                 \
    X(Alltoall, Ialltoall, FT_ALL_TO_ALL, -1, (IN_PLACE ? RECEIVED : SENT) * (uint64_t)at->ranks,            \
      LIST(BLOCK, int recvcount, MPI_Datatype recvtype, MPI_Comm comm),                                      \
      LIST(BLOCK_NAMES, recvcount, recvtype, comm))                                                          \
    X(Alltoallv, Ialltoallv, FT_ALL_TO_ALL, -1,                                                              \
      IN_PLACE ? sum(recvcounts, recvtype, at->ranks) : sum(sendcounts, sendtype, at->ranks),                \
      LIST(const void *sendbuf, const int sendcounts[], const int sendstarts[], MPI_Datatype sendtype,       \
           void *recvbuf, const int recvcounts[], const int recvstarts[], MPI_Datatype recvtype,             \
           MPI_Comm comm),                                                                                   \
      LIST(sendbuf, sendcounts, sendstarts, sendtype, recvbuf, recvcounts, recvstarts, recvtype, comm))      \
    X(Alltoallw, Ialltoallw, FT_ALL_TO_ALL, -1,                                                              \
      IN_PLACE ? sum_of_types(recvcounts, recvtypes, at->ranks)                                              \
               : sum_of_types(sendcounts, sendtypes, at->ranks),                                             \
      LIST(const void *sendbuf, const int sendcounts[], const int sendstarts[],                              \
           const MPI_Datatype sendtypes[], void *recvbuf, const int recvcounts[], const int recvstarts[],    \
           const MPI_Datatype recvtypes[], MPI_Comm comm),                                                   \
      LIST(sendbuf, sendcounts, sendstarts, sendtypes, recvbuf, recvcounts, recvstarts, recvtypes, comm))    \
    X(Reduce, Ireduce, FT_REDUCE, root, ft_bytes(count, type),                                               \
      LIST(REDUCE, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),                        \
      LIST(REDUCE_NAMES, count, type, op, root, comm))                                                       \
    X(Allreduce, Iallreduce, FT_ALL_REDUCE, -1, ft_bytes(count, type),                                       \
      LIST(REDUCE, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                                  \
      LIST(REDUCE_NAMES, count, type, op, comm))                                                             \
    X(Reduce_scatter, Ireduce_scatter, FT_REDUCE_SCATTER, -1, sum(recvcounts, type, at->ranks),              \
      LIST(REDUCE, const int recvcounts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm),                     \
      LIST(REDUCE_NAMES, recvcounts, type, op, comm))                                                        \
    X(Reduce_scatter_block, Ireduce_scatter_block, FT_REDUCE_SCATTER, -1,                                    \
      ft_bytes(recvcount, type) * (uint64_t)at->ranks,                                                       \
      LIST(REDUCE, int recvcount, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                              \
      LIST(REDUCE_NAMES, recvcount, type, op, comm))                                                         \
    X(Scan, Iscan, FT_SCAN, -1, ft_bytes(count, type),                                                       \
      LIST(REDUCE, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                                  \
      LIST(REDUCE_NAMES, count, type, op, comm))                                                             \
    X(Exscan, Iexscan, FT_SCAN, -1, ft_bytes(count, type),                                                   \
      LIST(REDUCE, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                                  \
      LIST(REDUCE_NAMES, count, type, op, comm))

#define BLOCKING(name, started, function, root, size, parameters, arguments)                                 \
    FT_EXPORT int MPI_##name(parameters) {                                                                   \
        struct ft_communicator *at = ft_communicator(comm);                                                  \
        struct ft_operation operation;                                                                       \
        bool recorded = ft_collective(&operation, at, function, root);                                       \
                                                                                                             \
        if (recorded) {                                                                                      \
            operation.bytes = size;                                                                          \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        int code = PMPI_##name(arguments);                                                                   \
                                                                                                             \
        if (recorded) ft_operation_end(&operation, at, NULL);                                                \
        return code;                                                                                         \
    }

#define NONBLOCKING(name, started, function, root, size, parameters, arguments)                              \
    FT_EXPORT int MPI_##started(parameters, MPI_Request *request) {                                          \
        struct ft_communicator *at = ft_communicator(comm);                                                  \
        struct ft_operation operation;                                                                       \
        bool recorded = ft_collective(&operation, at, function, root);                                       \
                                                                                                             \
        if (recorded) {                                                                                      \
            operation.bytes = size;                                                                          \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        int code = PMPI_##started(arguments, request);                                                       \
                                                                                                             \
        if (recorded) ft_request_begun(code, request, &operation, at);                                       \
        return code;                                                                                         \
    }

#define PERSISTENT(name, started, function, root, size, parameters, arguments)                               \
    FT_EXPORT int MPI_##name##_init(parameters, MPI_Info info, MPI_Request *request) {                       \
        struct ft_communicator *at = ft_communicator(comm);                                                  \
        struct ft_operation operation;                                                                       \
        int code = PMPI_##name##_init(arguments, info, request);                                             \
                                                                                                             \
        if (code == MPI_SUCCESS && ft_collective(&operation, at, function, root)) {                          \
            operation.bytes = size;                                                                          \
            operation.persistent = true;                                                                     \
            operation.open = false;                                                                          \
            ft_request_add(*request, &operation, at);                                                        \
        }                                                                                                    \
        return code;                                                                                         \
    }

COLLECTIVES(BLOCKING)
COLLECTIVES(NONBLOCKING)
#if MPI_VERSION >= 4
COLLECTIVES(PERSISTENT)
#endif
