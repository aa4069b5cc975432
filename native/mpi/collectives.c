/* Collectives: each row of the table makes the blocking, the nonblocking and, from MPI 4, the persistent
 * wrapper. `bytes` is what this rank gives, or the root's message. Buffers
 * and types that MPI ignores (in place, not at the root) are not read. */
#include "trace.h"

/* Bytes of arrays of counts, which are int, or MPI_Count in the functions with large counts. */
#define SUM(counts, type, ranks)                                                                             \
    __extension__({                                                                                          \
        uint64_t total_ = 0;                                                                                 \
                                                                                                             \
        for (int n_ = 0; n_ < (ranks); n_++) total_ += (counts)[n_] > 0 ? (uint64_t)(counts)[n_] : 0;        \
        total_ *ft_bytes(1, type);                                                                           \
    })
#define SUM_OF_TYPES(counts, types, ranks)                                                                   \
    __extension__({                                                                                          \
        uint64_t total_ = 0;                                                                                 \
                                                                                                             \
        for (int n_ = 0; n_ < (ranks); n_++) total_ += ft_bytes((counts)[n_], (types)[n_]);                  \
        total_;                                                                                              \
    })

#define LIST(...)    __VA_ARGS__
#define IN_PLACE     (sendbuf == MPI_IN_PLACE)
#define AT_ROOT      (at->rank == root)
#define SENT         ft_bytes(sendcount, sendtype)
#define RECEIVED     ft_bytes(recvcount, recvtype)
#define BLOCK(C)     const void *sendbuf, C sendcount, MPI_Datatype sendtype, void *recvbuf
#define BLOCK_NAMES  sendbuf, sendcount, sendtype, recvbuf
#define REDUCE       const void *sendbuf, void *recvbuf
#define REDUCE_NAMES sendbuf, recvbuf

/* name, nonblocking name, function, root or -1, bytes, parameters, arguments; all end with the communicator `comm`.
 * C: type of a count, S: type of a start, SW: type of a start in bytes. */
#define BARRIER(X, suffix) X(Barrier, Ibarrier, suffix, FT_BARRIER, -1, 0, LIST(MPI_Comm comm), LIST(comm))

#define COLLECTIVES(X, suffix, C, S)                                                                         \
    X(Bcast, Ibcast, suffix, FT_BROADCAST, root, ft_bytes(count, type),                                      \
      LIST(void *buffer, C count, MPI_Datatype type, int root, MPI_Comm comm),                               \
      LIST(buffer, count, type, root, comm))                                                                 \
    X(Gather, Igather, suffix, FT_GATHER, root, AT_ROOT &&IN_PLACE ? RECEIVED : SENT,                        \
      LIST(BLOCK(C), C recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm),                           \
      LIST(BLOCK_NAMES, recvcount, recvtype, root, comm))                                                    \
    X(Gatherv, Igatherv, suffix, FT_GATHERV, root,                                                           \
      AT_ROOT &&IN_PLACE ? ft_bytes(recvcounts[root], recvtype) : SENT,                                      \
      LIST(BLOCK(C), const C recvcounts[], const S starts[], MPI_Datatype recvtype, int root,                \
           MPI_Comm comm),                                                                                   \
      LIST(BLOCK_NAMES, recvcounts, starts, recvtype, root, comm))                                           \
    X(Scatter, Iscatter, suffix, FT_SCATTER, root, (AT_ROOT ? SENT : RECEIVED) * (uint64_t)at->ranks,        \
      LIST(BLOCK(C), C recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm),                           \
      LIST(BLOCK_NAMES, recvcount, recvtype, root, comm))                                                    \
    X(Scatterv, Iscatterv, suffix, FT_SCATTERV, root,                                                        \
      AT_ROOT ? SUM(sendcounts, sendtype, at->ranks) : RECEIVED * (uint64_t)at->ranks,                       \
      LIST(const void *sendbuf, const C sendcounts[], const S starts[], MPI_Datatype sendtype,               \
           void *recvbuf, C recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm),                      \
      LIST(sendbuf, sendcounts, starts, sendtype, recvbuf, recvcount, recvtype, root, comm))                 \
    X(Allgather, Iallgather, suffix, FT_ALL_GATHER, -1, IN_PLACE ? RECEIVED : SENT,                          \
      LIST(BLOCK(C), C recvcount, MPI_Datatype recvtype, MPI_Comm comm),                                     \
      LIST(BLOCK_NAMES, recvcount, recvtype, comm))                                                          \
    X(Allgatherv, Iallgatherv, suffix, FT_ALL_GATHER, -1,                                                    \
      IN_PLACE ? ft_bytes(recvcounts[at->rank], recvtype) : SENT,                                            \
      LIST(BLOCK(C), const C recvcounts[], const S starts[], MPI_Datatype recvtype, MPI_Comm comm),          \
      LIST(BLOCK_NAMES, recvcounts, starts, recvtype, comm))                                                 \
    X(Alltoall, Ialltoall, suffix, FT_ALL_TO_ALL, -1, (IN_PLACE ? RECEIVED : SENT) * (uint64_t)at->ranks,    \
      LIST(BLOCK(C), C recvcount, MPI_Datatype recvtype, MPI_Comm comm),                                     \
      LIST(BLOCK_NAMES, recvcount, recvtype, comm))                                                          \
    X(Alltoallv, Ialltoallv, suffix, FT_ALL_TO_ALL, -1,                                                      \
      IN_PLACE ? SUM(recvcounts, recvtype, at->ranks) : SUM(sendcounts, sendtype, at->ranks),                \
      LIST(const void *sendbuf, const C sendcounts[], const S sendstarts[], MPI_Datatype sendtype,           \
           void *recvbuf, const C recvcounts[], const S recvstarts[], MPI_Datatype recvtype, MPI_Comm comm), \
      LIST(sendbuf, sendcounts, sendstarts, sendtype, recvbuf, recvcounts, recvstarts, recvtype, comm))      \
    X(Alltoallw, Ialltoallw, suffix, FT_ALL_TO_ALL, -1,                                                      \
      IN_PLACE ? SUM_OF_TYPES(recvcounts, recvtypes, at->ranks)                                              \
               : SUM_OF_TYPES(sendcounts, sendtypes, at->ranks),                                             \
      LIST(const void *sendbuf, const C sendcounts[], const S sendstarts[], const MPI_Datatype sendtypes[],  \
           void *recvbuf, const C recvcounts[], const S recvstarts[], const MPI_Datatype recvtypes[],        \
           MPI_Comm comm),                                                                                   \
      LIST(sendbuf, sendcounts, sendstarts, sendtypes, recvbuf, recvcounts, recvstarts, recvtypes, comm))    \
    X(Reduce, Ireduce, suffix, FT_REDUCE, root, ft_bytes(count, type),                                       \
      LIST(REDUCE, C count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),                          \
      LIST(REDUCE_NAMES, count, type, op, root, comm))                                                       \
    X(Allreduce, Iallreduce, suffix, FT_ALL_REDUCE, -1, ft_bytes(count, type),                               \
      LIST(REDUCE, C count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                                    \
      LIST(REDUCE_NAMES, count, type, op, comm))                                                             \
    X(Reduce_scatter, Ireduce_scatter, suffix, FT_REDUCE_SCATTER, -1, SUM(recvcounts, type, at->ranks),      \
      LIST(REDUCE, const C recvcounts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm),                       \
      LIST(REDUCE_NAMES, recvcounts, type, op, comm))                                                        \
    X(Reduce_scatter_block, Ireduce_scatter_block, suffix, FT_REDUCE_SCATTER, -1,                            \
      ft_bytes(recvcount, type) * (uint64_t)at->ranks,                                                       \
      LIST(REDUCE, C recvcount, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                                \
      LIST(REDUCE_NAMES, recvcount, type, op, comm))                                                         \
    X(Scan, Iscan, suffix, FT_SCAN, -1, ft_bytes(count, type),                                               \
      LIST(REDUCE, C count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                                    \
      LIST(REDUCE_NAMES, count, type, op, comm))                                                             \
    X(Exscan, Iexscan, suffix, FT_SCAN, -1, ft_bytes(count, type),                                           \
      LIST(REDUCE, C count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                                    \
      LIST(REDUCE_NAMES, count, type, op, comm))                                                             \
    X(Neighbor_allgather, Ineighbor_allgather, suffix, FT_ALL_GATHER, -1, SENT,                              \
      LIST(BLOCK(C), C recvcount, MPI_Datatype recvtype, MPI_Comm comm),                                     \
      LIST(BLOCK_NAMES, recvcount, recvtype, comm))                                                          \
    X(Neighbor_allgatherv, Ineighbor_allgatherv, suffix, FT_ALL_GATHER, -1, SENT,                            \
      LIST(BLOCK(C), const C recvcounts[], const S starts[], MPI_Datatype recvtype, MPI_Comm comm),          \
      LIST(BLOCK_NAMES, recvcounts, starts, recvtype, comm))                                                 \
    X(Neighbor_alltoall, Ineighbor_alltoall, suffix, FT_ALL_TO_ALL, -1, SENT *(uint64_t)at->out,             \
      LIST(BLOCK(C), C recvcount, MPI_Datatype recvtype, MPI_Comm comm),                                     \
      LIST(BLOCK_NAMES, recvcount, recvtype, comm))                                                          \
    X(Neighbor_alltoallv, Ineighbor_alltoallv, suffix, FT_ALL_TO_ALL, -1,                                    \
      SUM(sendcounts, sendtype, at->out),                                                                    \
      LIST(const void *sendbuf, const C sendcounts[], const S sendstarts[], MPI_Datatype sendtype,           \
           void *recvbuf, const C recvcounts[], const S recvstarts[], MPI_Datatype recvtype, MPI_Comm comm), \
      LIST(sendbuf, sendcounts, sendstarts, sendtype, recvbuf, recvcounts, recvstarts, recvtype, comm))      \
    X(Neighbor_alltoallw, Ineighbor_alltoallw, suffix, FT_ALL_TO_ALL, -1,                                    \
      SUM_OF_TYPES(sendcounts, sendtypes, at->out),                                                          \
      LIST(const void *sendbuf, const C sendcounts[], const MPI_Aint sendstarts[],                           \
           const MPI_Datatype sendtypes[], void *recvbuf, const C recvcounts[], const MPI_Aint recvstarts[], \
           const MPI_Datatype recvtypes[], MPI_Comm comm),                                                   \
      LIST(sendbuf, sendcounts, sendstarts, sendtypes, recvbuf, recvcounts, recvstarts, recvtypes, comm))

#define BLOCKING(name, started, suffix, function, root, size, parameters, arguments)                         \
    FT_WRAPPER(name##suffix, (parameters)) {                                                                 \
        struct ft_communicator *at = ft_communicator(comm);                                                  \
        struct ft_operation operation;                                                                       \
        bool recorded = ft_collective(&operation, at, function, root);                                       \
                                                                                                             \
        if (recorded) {                                                                                      \
            operation.bytes = size;                                                                          \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        int code = own_##name##suffix(arguments);                                                            \
                                                                                                             \
        if (recorded) ft_operation_end(&operation, at, NULL);                                                \
        return code;                                                                                         \
    }

#define NONBLOCKING(name, started, suffix, function, root, size, parameters, arguments)                      \
    FT_WRAPPER(started##suffix, (parameters, MPI_Request * request)) {                                       \
        struct ft_communicator *at = ft_communicator(comm);                                                  \
        struct ft_operation operation;                                                                       \
        bool recorded = ft_collective(&operation, at, function, root);                                       \
                                                                                                             \
        if (recorded) {                                                                                      \
            operation.bytes = size;                                                                          \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        int code = own_##started##suffix(arguments, request);                                                \
                                                                                                             \
        if (recorded) ft_request_begun(code, request, &operation, at);                                       \
        return code;                                                                                         \
    }

#define PERSISTENT(name, started, suffix, function, root, size, parameters, arguments)                       \
    FT_WRAPPER(name##_init##suffix, (parameters, MPI_Info info, MPI_Request * request)) {                    \
        struct ft_communicator *at = ft_communicator(comm);                                                  \
        struct ft_operation operation;                                                                       \
        int code = own_##name##_init##suffix(arguments, info, request);                                      \
                                                                                                             \
        if (code == MPI_SUCCESS && ft_collective(&operation, at, function, root)) {                          \
            operation.bytes = size;                                                                          \
            operation.persistent = true;                                                                     \
            operation.open = false;                                                                          \
            ft_request_add(*request, &operation, at);                                                        \
        }                                                                                                    \
        return code;                                                                                         \
    }

BARRIER(BLOCKING, )
BARRIER(NONBLOCKING, )
COLLECTIVES(BLOCKING, , int, int)
COLLECTIVES(NONBLOCKING, , int, int)
#if MPI_VERSION >= 4
BARRIER(PERSISTENT, )
COLLECTIVES(PERSISTENT, , int, int)
COLLECTIVES(BLOCKING, _c, MPI_Count, MPI_Aint)
COLLECTIVES(NONBLOCKING, _c, MPI_Count, MPI_Aint)
COLLECTIVES(PERSISTENT, _c, MPI_Count, MPI_Aint)
#endif
