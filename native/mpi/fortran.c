/* The entry points of Fortran, for Open MPI, whose Fortran functions do not call the wrappers in C: mpi_send_ of
 * `mpif.h` and `use mpi`, and ompi_send_f, which the functions of `use mpi_f08` call. They pass all arguments on
 * as they are, so buffers and constants need no conversion. See trace.h. */
#include "trace.h"

#ifdef OPEN_MPI

#define FT_F_STATUS_IGNORE   (*ft_constants.status_ignore)
#define FT_F_STATUSES_IGNORE (*ft_constants.statuses_ignore)

enum {
    FEW = 256, /* requests of one call; more are not recorded */
    STATUS = sizeof(MPI_Status) / sizeof(MPI_Fint)
};

#define LIST(...)     __VA_ARGS__
#define BYTES(n, t)   ft_bytes((int)*(n), ft_mpi.Type_f2c(*(t)))
#define AT_ROOT       (at->rank == (int)*root)
#define COMM          ft_mpi.Comm_f2c(*comm)
#define F             MPI_Fint *
#define BLOCK         void *in, F sendcount, F sendtype, void *out
#define BLOCK_NAMES   in, sendcount, sendtype, out
#define RECEIVED      F recvcount, F recvtype
#define VARYING       F recvcounts, F starts, F recvtype
#define VARYING_NAMES recvcounts, starts, recvtype

static uint64_t sum(const MPI_Fint counts[], MPI_Fint type, int ranks) {
    uint64_t total = 0;

    for (int n = 0; n < ranks; n++) total += counts[n] > 0 ? (uint64_t)counts[n] : 0;
    return total * ft_bytes(1, ft_mpi.Type_f2c(type));
}

static uint64_t sum_of_types(const MPI_Fint counts[], const MPI_Fint types[], int ranks) {
    uint64_t total = 0;

    for (int n = 0; n < ranks; n++) total += ft_bytes((int)counts[n], ft_mpi.Type_f2c(types[n]));
    return total;
}

/* name, function, root or -1, bytes, parameters, arguments. In place, a call gives the receive buffer only. */
#define COLLECTIVES(X)                                                                                       \
    X(barrier, FT_BARRIER, -1, 0, LIST(F comm), LIST(comm))                                                  \
    X(bcast, FT_BROADCAST, *root, BYTES(count, type), LIST(void *out, F count, F type, F root, F comm),      \
      LIST(out, count, type, root, comm))                                                                    \
    X(gather, FT_GATHER, *root, AT_ROOT ? BYTES(recvcount, recvtype) : BYTES(sendcount, sendtype),           \
      LIST(BLOCK, RECEIVED, F root, F comm), LIST(BLOCK_NAMES, recvcount, recvtype, root, comm))             \
    X(gatherv, FT_GATHERV, *root,                                                                            \
      AT_ROOT ? BYTES(recvcounts + at->rank, recvtype) : BYTES(sendcount, sendtype),                         \
      LIST(BLOCK, VARYING, F root, F comm), LIST(BLOCK_NAMES, VARYING_NAMES, root, comm))                    \
    X(scatter, FT_SCATTER, *root,                                                                            \
      (AT_ROOT ? BYTES(sendcount, sendtype) : BYTES(recvcount, recvtype)) * (uint64_t)at->ranks,             \
      LIST(BLOCK, RECEIVED, F root, F comm), LIST(BLOCK_NAMES, recvcount, recvtype, root, comm))             \
    X(scatterv, FT_SCATTERV, *root,                                                                          \
      AT_ROOT ? sum(sendcounts, *sendtype, at->ranks) : BYTES(recvcount, recvtype) * (uint64_t)at->ranks,    \
      LIST(void *in, F sendcounts, F starts, F sendtype, void *out, RECEIVED, F root, F comm),               \
      LIST(in, sendcounts, starts, sendtype, out, recvcount, recvtype, root, comm))                          \
    X(allgather, FT_ALL_GATHER, -1, BYTES(recvcount, recvtype), LIST(BLOCK, RECEIVED, F comm),               \
      LIST(BLOCK_NAMES, recvcount, recvtype, comm))                                                          \
    X(allgatherv, FT_ALL_GATHER, -1, BYTES(recvcounts + at->rank, recvtype), LIST(BLOCK, VARYING, F comm),   \
      LIST(BLOCK_NAMES, VARYING_NAMES, comm))                                                                \
    X(alltoall, FT_ALL_TO_ALL, -1, BYTES(recvcount, recvtype) * (uint64_t)at->ranks,                         \
      LIST(BLOCK, RECEIVED, F comm), LIST(BLOCK_NAMES, recvcount, recvtype, comm))                           \
    X(alltoallv, FT_ALL_TO_ALL, -1, sum(recvcounts, *recvtype, at->ranks),                                   \
      LIST(void *in, F sendcounts, F sendstarts, F sendtype, void *out, VARYING, F comm),                    \
      LIST(in, sendcounts, sendstarts, sendtype, out, VARYING_NAMES, comm))                                  \
    X(alltoallw, FT_ALL_TO_ALL, -1, sum_of_types(recvcounts, recvtypes, at->ranks),                          \
      LIST(void *in, F sendcounts, F sendstarts, F sendtypes, void *out, F recvcounts, F recvstarts,         \
           F recvtypes, F comm),                                                                             \
      LIST(in, sendcounts, sendstarts, sendtypes, out, recvcounts, recvstarts, recvtypes, comm))             \
    X(neighbor_allgather, FT_ALL_GATHER, -1, BYTES(sendcount, sendtype), LIST(BLOCK, RECEIVED, F comm),      \
      LIST(BLOCK_NAMES, recvcount, recvtype, comm))                                                          \
    X(neighbor_allgatherv, FT_ALL_GATHER, -1, BYTES(sendcount, sendtype), LIST(BLOCK, VARYING, F comm),      \
      LIST(BLOCK_NAMES, VARYING_NAMES, comm))                                                                \
    X(neighbor_alltoall, FT_ALL_TO_ALL, -1, BYTES(sendcount, sendtype) * (uint64_t)at->out,                  \
      LIST(BLOCK, RECEIVED, F comm), LIST(BLOCK_NAMES, recvcount, recvtype, comm))                           \
    X(neighbor_alltoallv, FT_ALL_TO_ALL, -1, sum(sendcounts, *sendtype, at->out),                            \
      LIST(void *in, F sendcounts, F sendstarts, F sendtype, void *out, VARYING, F comm),                    \
      LIST(in, sendcounts, sendstarts, sendtype, out, VARYING_NAMES, comm))                                  \
    X(neighbor_alltoallw, FT_ALL_TO_ALL, -1, sum_of_types(sendcounts, sendtypes, at->out),                   \
      LIST(void *in, F sendcounts, MPI_Aint *sendstarts, F sendtypes, void *out, F recvcounts,               \
           MPI_Aint *recvstarts, F recvtypes, F comm),                                                       \
      LIST(in, sendcounts, sendstarts, sendtypes, out, recvcounts, recvstarts, recvtypes, comm))             \
    X(reduce, FT_REDUCE, *root, BYTES(count, type),                                                          \
      LIST(void *in, void *out, F count, F type, F op, F root, F comm),                                      \
      LIST(in, out, count, type, op, root, comm))                                                            \
    X(allreduce, FT_ALL_REDUCE, -1, BYTES(count, type),                                                      \
      LIST(void *in, void *out, F count, F type, F op, F comm), LIST(in, out, count, type, op, comm))        \
    X(reduce_scatter, FT_REDUCE_SCATTER, -1, sum(counts, *type, at->ranks),                                  \
      LIST(void *in, void *out, F counts, F type, F op, F comm), LIST(in, out, counts, type, op, comm))      \
    X(reduce_scatter_block, FT_REDUCE_SCATTER, -1, BYTES(count, type) * (uint64_t)at->ranks,                 \
      LIST(void *in, void *out, F count, F type, F op, F comm), LIST(in, out, count, type, op, comm))        \
    X(scan, FT_SCAN, -1, BYTES(count, type), LIST(void *in, void *out, F count, F type, F op, F comm),       \
      LIST(in, out, count, type, op, comm))                                                                  \
    X(exscan, FT_SCAN, -1, BYTES(count, type), LIST(void *in, void *out, F count, F type, F op, F comm),     \
      LIST(in, out, count, type, op, comm))

#define ENTRY(name, parameters)                                                                              \
    static void (*pmpi_##name##_)(parameters);                                                               \
    static void record_##name(parameters);                                                                   \
    FT_ENTRY(mpi_##name##_, pmpi_##name##_, record_##name, pmpi_##name##_);                                  \
    FT_ALIAS(ompi_##name##_f, mpi_##name##_);                                                                \
    static void record_##name(parameters)

#define BLOCKING(name, function, root, size, parameters, arguments)                                          \
    ENTRY(name, LIST(parameters, F error)) {                                                                 \
        struct ft_communicator *at = ft_communicator(COMM);                                                  \
        struct ft_operation operation;                                                                       \
        bool recorded = ft_collective(&operation, at, function, (int)(root));                                \
                                                                                                             \
        if (recorded) {                                                                                      \
            operation.bytes = size;                                                                          \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        pmpi_##name##_(arguments, error);                                                                    \
        if (recorded) ft_operation_end(&operation, at, NULL);                                                \
    }

#define NONBLOCKING(name, function, root, size, parameters, arguments)                                       \
    ENTRY(i##name, LIST(parameters, F request, F error)) {                                                   \
        struct ft_communicator *at = ft_communicator(COMM);                                                  \
        struct ft_operation operation;                                                                       \
        bool recorded = ft_collective(&operation, at, function, (int)(root));                                \
                                                                                                             \
        if (recorded) {                                                                                      \
            operation.bytes = size;                                                                          \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        pmpi_i##name##_(arguments, request, error);                                                          \
        if (recorded) {                                                                                      \
            MPI_Request handle = ft_mpi.Request_f2c(*request);                                               \
                                                                                                             \
            ft_request_begun((int)*error, &handle, &operation, at);                                          \
        }                                                                                                    \
    }

COLLECTIVES(BLOCKING)
COLLECTIVES(NONBLOCKING)

#define MESSAGE       void *buffer, F count, F type, F peer, F tag, F comm
#define MESSAGE_NAMES buffer, count, type, peer, tag, comm

#define SENDS(name)                                                                                          \
    ENTRY(name, LIST(MESSAGE, F error)) {                                                                    \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, COMM, FT_SEND, (int)*peer, (int)*tag);             \
                                                                                                             \
        if (at) {                                                                                            \
            operation.bytes = BYTES(count, type);                                                            \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        pmpi_##name##_(MESSAGE_NAMES, error);                                                                \
        if (at) ft_operation_end(&operation, at, NULL);                                                      \
    }

#define STARTS(name, function)                                                                               \
    ENTRY(name, LIST(MESSAGE, F request, F error)) {                                                         \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, COMM, function, (int)*peer, (int)*tag);            \
                                                                                                             \
        if (at) {                                                                                            \
            operation.bytes = BYTES(count, type);                                                            \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        pmpi_##name##_(MESSAGE_NAMES, request, error);                                                       \
        if (at) {                                                                                            \
            MPI_Request handle = ft_mpi.Request_f2c(*request);                                               \
                                                                                                             \
            ft_request_begun((int)*error, &handle, &operation, at);                                          \
        }                                                                                                    \
    }

#define PERSISTENT(name, function)                                                                           \
    ENTRY(name, LIST(MESSAGE, F request, F error)) {                                                         \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, COMM, function, (int)*peer, (int)*tag);            \
                                                                                                             \
        pmpi_##name##_(MESSAGE_NAMES, request, error);                                                       \
        if (at && !*error) {                                                                                 \
            operation.bytes = BYTES(count, type);                                                            \
            operation.persistent = true;                                                                     \
            operation.open = false;                                                                          \
            ft_request_add(ft_mpi.Request_f2c(*request), &operation, at);                                    \
        }                                                                                                    \
    }

PERSISTENT(send_init, FT_SEND)
PERSISTENT(bsend_init, FT_SEND)
PERSISTENT(ssend_init, FT_SEND)
PERSISTENT(rsend_init, FT_SEND)
PERSISTENT(recv_init, FT_RECEIVE)

SENDS(send)
SENDS(bsend)
SENDS(ssend)
SENDS(rsend)
STARTS(isend, FT_SEND)
STARTS(ibsend, FT_SEND)
STARTS(issend, FT_SEND)
STARTS(irsend, FT_SEND)
STARTS(irecv, FT_RECEIVE)

/* Return a Fortran status as one of C, or NULL if the program ignores it. */
static const MPI_Status *status_of(const MPI_Fint *status, MPI_Status *converted) {
    if (status == FT_F_STATUS_IGNORE || status == FT_F_STATUSES_IGNORE) return NULL;
    return ft_mpi.Status_f2c(status, converted) == MPI_SUCCESS ? converted : NULL;
}

ENTRY(recv, LIST(MESSAGE, F status, F error)) {
    struct ft_operation operation;
    struct ft_communicator *at = ft_point(&operation, COMM, FT_RECEIVE, (int)*peer, (int)*tag);
    MPI_Status converted;

    if (at) {
        operation.bytes = BYTES(count, type);
        ft_operation_begin(&operation, at);
    }
    pmpi_recv_(MESSAGE_NAMES, status, error);
    if (at) ft_operation_end(&operation, at, *error ? NULL : status_of(status, &converted));
}

ENTRY(sendrecv, LIST(void *in, F sendcount, F sendtype, F peer, F sendtag, void *out, F recvcount, F recvtype,
                     F source, F recvtag, F comm, F status, F error)) {
    struct ft_operation send, receive;
    struct ft_communicator *to = ft_point(&send, COMM, FT_SEND, (int)*peer, (int)*sendtag);
    struct ft_communicator *from = ft_point(&receive, COMM, FT_RECEIVE, (int)*source, (int)*recvtag);
    MPI_Status converted;

    if (to) {
        send.bytes = BYTES(sendcount, sendtype);
        ft_operation_begin(&send, to);
    }
    if (from) {
        receive.bytes = BYTES(recvcount, recvtype);
        ft_operation_begin(&receive, from);
    }
    pmpi_sendrecv_(in, sendcount, sendtype, peer, sendtag, out, recvcount, recvtype, source, recvtag, comm,
                   status, error);
    if (to) ft_operation_end(&send, to, NULL);
    if (from) ft_operation_end(&receive, from, *error ? NULL : status_of(status, &converted));
}

ENTRY(sendrecv_replace, LIST(void *buffer, F count, F type, F peer, F sendtag, F source, F recvtag, F comm,
                             F status, F error)) {
    struct ft_operation send, receive;
    struct ft_communicator *to = ft_point(&send, COMM, FT_SEND, (int)*peer, (int)*sendtag);
    struct ft_communicator *from = ft_point(&receive, COMM, FT_RECEIVE, (int)*source, (int)*recvtag);
    MPI_Status converted;

    send.bytes = receive.bytes = to || from ? BYTES(count, type) : 0;
    if (to) ft_operation_begin(&send, to);
    if (from) ft_operation_begin(&receive, from);
    pmpi_sendrecv_replace_(buffer, count, type, peer, sendtag, source, recvtag, comm, status, error);
    if (to) ft_operation_end(&send, to, NULL);
    if (from) ft_operation_end(&receive, from, *error ? NULL : status_of(status, &converted));
}

/* The entries of the requests of one call. */
struct taken {
    struct ft_request *requests[FEW];
    int count;
};

static void take(struct taken *taken, MPI_Fint count, const MPI_Fint requests[]) {
    taken->count = count > 0 && count <= FEW ? (int)count : 0;
    if (count > FEW) ft_trace_dropped();
    for (int n = 0; n < taken->count; n++)
        taken->requests[n] = ft_request_take(ft_mpi.Request_f2c(requests[n]));
}

static void end(struct taken *taken, int n, const MPI_Fint *status) {
    struct ft_request *request = n >= 0 && n < taken->count ? taken->requests[n] : NULL;
    MPI_Status converted;

    if (!request) return;
    taken->requests[n] = NULL;
    if (request->operation.open)
        ft_operation_end(&request->operation, request->communicator, status_of(status, &converted));
    ft_request_return(request, !request->operation.persistent);
}

static void return_all(struct taken *taken) {
    for (int n = 0; n < taken->count; n++)
        if (taken->requests[n]) ft_request_return(taken->requests[n], false);
}

static MPI_Fint *status_at(MPI_Fint *statuses, int n) {
    return statuses == FT_F_STATUSES_IGNORE ? statuses : statuses + n * STATUS;
}

ENTRY(wait, LIST(F request, F status, F error)) {
    struct taken taken;

    take(&taken, 1, request);
    pmpi_wait_(request, status, error);
    end(&taken, 0, status);
}

ENTRY(test, LIST(F request, F flag, F status, F error)) {
    struct taken taken;

    take(&taken, 1, request);
    pmpi_test_(request, flag, status, error);
    if (*flag) end(&taken, 0, status);
    return_all(&taken);
}

ENTRY(waitall, LIST(F count, F requests, F statuses, F error)) {
    struct taken taken;

    take(&taken, *count, requests);
    pmpi_waitall_(count, requests, statuses, error);
    for (int n = 0; n < taken.count; n++) end(&taken, n, status_at(statuses, n));
}

ENTRY(testall, LIST(F count, F requests, F flag, F statuses, F error)) {
    struct taken taken;

    take(&taken, *count, requests);
    pmpi_testall_(count, requests, flag, statuses, error);
    for (int n = 0; *flag && n < taken.count; n++) end(&taken, n, status_at(statuses, n));
    return_all(&taken);
}

ENTRY(waitany, LIST(F count, F requests, F index, F status, F error)) {
    struct taken taken;

    take(&taken, *count, requests);
    pmpi_waitany_(count, requests, index, status, error);
    end(&taken, (int)*index - 1, status);
    return_all(&taken);
}

ENTRY(testany, LIST(F count, F requests, F index, F flag, F status, F error)) {
    struct taken taken;

    take(&taken, *count, requests);
    pmpi_testany_(count, requests, index, flag, status, error);
    if (*flag) end(&taken, (int)*index - 1, status);
    return_all(&taken);
}

#define SOME(name)                                                                                           \
    ENTRY(name, LIST(F count, F requests, F done, F indices, F statuses, F error)) {                         \
        struct taken taken;                                                                                  \
                                                                                                             \
        take(&taken, *count, requests);                                                                      \
        pmpi_##name##_(count, requests, done, indices, statuses, error);                                     \
        for (int n = 0; n < (int)*done; n++) end(&taken, (int)indices[n] - 1, status_at(statuses, n));       \
        return_all(&taken);                                                                                  \
    }

SOME(waitsome)
SOME(testsome)

ENTRY(start, LIST(F request, F error)) {
    ft_request_restart(ft_mpi.Request_f2c(*request));
    pmpi_start_(request, error);
}

ENTRY(startall, LIST(F count, F requests, F error)) {
    for (int n = 0; n < (int)*count; n++) ft_request_restart(ft_mpi.Request_f2c(requests[n]));
    pmpi_startall_(count, requests, error);
}

ENTRY(request_free, LIST(F request, F error)) {
    ft_request_freed(ft_mpi.Request_f2c(*request));
    pmpi_request_free_(request, error);
}

/* -- init, finalize, communicators ---------------------------------------------------------------------- */

ENTRY(init, F error) {
    ft_entries_open();
    pmpi_init_(error);
    if (!*error) ft_mpi_begin();
}

ENTRY(init_thread, LIST(F required, F provided, F error)) {
    ft_entries_open();
    pmpi_init_thread_(required, provided, error);
    if (!*error) ft_mpi_begin();
}

ENTRY(finalize, F error) {
    pmpi_finalize_(error);
    ft_mpi_end();
}

static void created(const MPI_Fint *made, const MPI_Fint *error) {
    MPI_Comm handle = ft_mpi.Comm_f2c(*made);

    if (!*error) ft_communicator_created(handle, handle);
}

#define CREATES(name, parameters, arguments)                                                                 \
    ENTRY(name, LIST(parameters, F made, F error)) {                                                         \
        pmpi_##name##_(arguments, made, error);                                                              \
        created(made, error);                                                                                \
    }

CREATES(comm_dup, F comm, comm)
CREATES(comm_create, LIST(F comm, F group), LIST(comm, group))
CREATES(comm_split, LIST(F comm, F color, F key), LIST(comm, color, key))
CREATES(comm_split_type, LIST(F comm, F type, F key, F info), LIST(comm, type, key, info))
CREATES(cart_create, LIST(F comm, F dimensions, F sizes, F periods, F reorder),
        LIST(comm, dimensions, sizes, periods, reorder))
CREATES(cart_sub, LIST(F comm, F remain), LIST(comm, remain))
CREATES(comm_create_group, LIST(F comm, F group, F tag), LIST(comm, group, tag))
CREATES(comm_dup_with_info, LIST(F comm, F info), LIST(comm, info))
CREATES(intercomm_merge, LIST(F comm, F high), LIST(comm, high))
CREATES(graph_create, LIST(F comm, F nodes, F index, F edges, F reorder),
        LIST(comm, nodes, index, edges, reorder))
CREATES(dist_graph_create,
        LIST(F comm, F count, F sources, F degrees, F destinations, F weights, F info, F reorder),
        LIST(comm, count, sources, degrees, destinations, weights, info, reorder))
CREATES(dist_graph_create_adjacent,
        LIST(F comm, F in, F sources, F in_weights, F out, F destinations, F out_weights, F info, F reorder),
        LIST(comm, in, sources, in_weights, out, destinations, out_weights, info, reorder))

ENTRY(comm_free, LIST(F comm, F error)) {
    ft_communicator_freed((uintptr_t)COMM);
    pmpi_comm_free_(comm, error);
}

ENTRY(comm_disconnect, LIST(F comm, F error)) {
    ft_communicator_freed((uintptr_t)COMM);
    pmpi_comm_disconnect_(comm, error);
}

#endif
