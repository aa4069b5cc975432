/* Point-to-point operations. Both ends number the messages of a pair of ranks by tag, so that a send and its
 * receive have one number. A combined send and receive is two operations. See trace.h. */
#include "trace.h"

#define SEND         const void *buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm
#define RECEIVE      void *buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm
#define BUFFER_NAMES buffer, count, type, peer, tag, comm

#define BLOCKING(name)                                                                                       \
    FT_EXPORT int MPI_##name(SEND) {                                                                         \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, comm, FT_SEND, peer, tag);                         \
                                                                                                             \
        if (at) {                                                                                            \
            operation.bytes = ft_bytes(count, type);                                                         \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        int code = PMPI_##name(BUFFER_NAMES);                                                                \
                                                                                                             \
        if (at) ft_operation_end(&operation, at, NULL);                                                      \
        return code;                                                                                         \
    }

#define NONBLOCKING(name, function, parameters)                                                              \
    FT_EXPORT int MPI_##name(parameters, MPI_Request *request) {                                             \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, comm, function, peer, tag);                        \
                                                                                                             \
        if (at) {                                                                                            \
            operation.bytes = ft_bytes(count, type);                                                         \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        int code = PMPI_##name(BUFFER_NAMES, request);                                                       \
                                                                                                             \
        if (at) ft_request_begun(code, request, &operation, at);                                             \
        return code;                                                                                         \
    }

#define PERSISTENT(name, function, parameters)                                                               \
    FT_EXPORT int MPI_##name(parameters, MPI_Request *request) {                                             \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, comm, function, peer, tag);                        \
        int code = PMPI_##name(BUFFER_NAMES, request);                                                       \
                                                                                                             \
        if (at && code == MPI_SUCCESS) {                                                                     \
            operation.bytes = ft_bytes(count, type);                                                         \
            operation.persistent = true;                                                                     \
            operation.open = false;                                                                          \
            ft_request_add(*request, &operation, at);                                                        \
        }                                                                                                    \
        return code;                                                                                         \
    }

BLOCKING(Send)
BLOCKING(Bsend)
BLOCKING(Ssend)
BLOCKING(Rsend)
NONBLOCKING(Isend, FT_SEND, SEND)
NONBLOCKING(Ibsend, FT_SEND, SEND)
NONBLOCKING(Issend, FT_SEND, SEND)
NONBLOCKING(Irsend, FT_SEND, SEND)
NONBLOCKING(Irecv, FT_RECEIVE, RECEIVE)
PERSISTENT(Send_init, FT_SEND, SEND)
PERSISTENT(Bsend_init, FT_SEND, SEND)
PERSISTENT(Ssend_init, FT_SEND, SEND)
PERSISTENT(Rsend_init, FT_SEND, SEND)
PERSISTENT(Recv_init, FT_RECEIVE, RECEIVE)

FT_EXPORT int MPI_Recv(RECEIVE, MPI_Status *status) {
    struct ft_operation operation;
    struct ft_communicator *at = ft_point(&operation, comm, FT_RECEIVE, peer, tag);
    MPI_Status own;

    if (at) {
        operation.bytes = ft_bytes(count, type);
        ft_operation_begin(&operation, at);
        if (status == MPI_STATUS_IGNORE) status = &own;
    }
    int code = PMPI_Recv(BUFFER_NAMES, status);

    if (at) ft_operation_end(&operation, at, code == MPI_SUCCESS ? status : NULL);
    return code;
}

/* The two operations of a combined send and receive. */
struct both {
    struct ft_operation send, receive;
    struct ft_communicator *to, *from; /* NULL: not recorded */
};

static void begin_both(struct both *both, uint64_t sent, uint64_t received) {
    both->send.bytes = sent;
    both->receive.bytes = received;
    if (both->to) ft_operation_begin(&both->send, both->to);
    if (both->from) ft_operation_begin(&both->receive, both->from);
}

static void end_both(struct both *both, const MPI_Status *status) {
    if (both->to) ft_operation_end(&both->send, both->to, NULL);
    if (both->from) ft_operation_end(&both->receive, both->from, status);
}

FT_EXPORT int MPI_Sendrecv(const void *sendbuf, int sendcount, MPI_Datatype sendtype, int peer, int sendtag,
                           void *recvbuf, int recvcount, MPI_Datatype recvtype, int source, int recvtag,
                           MPI_Comm comm, MPI_Status *status) {
    struct both both;
    MPI_Status own;

    if (status == MPI_STATUS_IGNORE) status = &own;
    both.to = ft_point(&both.send, comm, FT_SEND, peer, sendtag);
    both.from = ft_point(&both.receive, comm, FT_RECEIVE, source, recvtag);
    begin_both(&both, both.to ? ft_bytes(sendcount, sendtype) : 0,
               both.from ? ft_bytes(recvcount, recvtype) : 0);
    int code = PMPI_Sendrecv(sendbuf, sendcount, sendtype, peer, sendtag, recvbuf, recvcount, recvtype,
                             source, recvtag, comm, status);

    end_both(&both, code == MPI_SUCCESS ? status : NULL);
    return code;
}

FT_EXPORT int MPI_Sendrecv_replace(void *buffer, int count, MPI_Datatype type, int peer, int sendtag,
                                   int source, int recvtag, MPI_Comm comm, MPI_Status *status) {
    struct both both;
    MPI_Status own;
    uint64_t bytes;

    if (status == MPI_STATUS_IGNORE) status = &own;
    both.to = ft_point(&both.send, comm, FT_SEND, peer, sendtag);
    both.from = ft_point(&both.receive, comm, FT_RECEIVE, source, recvtag);
    bytes = both.to || both.from ? ft_bytes(count, type) : 0;
    begin_both(&both, bytes, bytes);
    int code = PMPI_Sendrecv_replace(buffer, count, type, peer, sendtag, source, recvtag, comm, status);

    end_both(&both, code == MPI_SUCCESS ? status : NULL);
    return code;
}
