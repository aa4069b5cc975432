/* Point-to-point operations. Both ends number the messages of a pair of ranks by tag, so that a send and its
 * receive have one number. A combined send and receive is two operations. See trace.h. */
#include "trace.h"

#define SEND(C)      const void *buffer, C count, MPI_Datatype type, int peer, int tag, MPI_Comm comm
#define RECEIVE(C)   void *buffer, C count, MPI_Datatype type, int peer, int tag, MPI_Comm comm
#define BUFFER_NAMES buffer, count, type, peer, tag, comm

#define BLOCKING(name, suffix, C)                                                                            \
    FT_WRAPPER(name##suffix, (SEND(C))) {                                                                    \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, comm, FT_SEND, peer, tag);                         \
                                                                                                             \
        if (at) {                                                                                            \
            operation.bytes = ft_bytes(count, type);                                                         \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        int code = own_##name##suffix(BUFFER_NAMES);                                                         \
                                                                                                             \
        if (at) ft_operation_end(&operation, at, NULL);                                                      \
        return code;                                                                                         \
    }

#define NONBLOCKING(name, suffix, function, parameters)                                                      \
    FT_WRAPPER(name##suffix, (parameters, MPI_Request * request)) {                                          \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, comm, function, peer, tag);                        \
                                                                                                             \
        if (at) {                                                                                            \
            operation.bytes = ft_bytes(count, type);                                                         \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        int code = own_##name##suffix(BUFFER_NAMES, request);                                                \
                                                                                                             \
        if (at) ft_request_begun(code, request, &operation, at);                                             \
        return code;                                                                                         \
    }

#define PERSISTENT(name, suffix, function, parameters)                                                       \
    FT_WRAPPER(name##suffix, (parameters, MPI_Request * request)) {                                          \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, comm, function, peer, tag);                        \
        int code = own_##name##suffix(BUFFER_NAMES, request);                                                \
                                                                                                             \
        if (at && code == MPI_SUCCESS) {                                                                     \
            operation.bytes = ft_bytes(count, type);                                                         \
            operation.persistent = true;                                                                     \
            operation.open = false;                                                                          \
            ft_request_add(*request, &operation, at);                                                        \
        }                                                                                                    \
        return code;                                                                                         \
    }

#define RECEIVING(suffix, C)                                                                                 \
    FT_WRAPPER(Recv##suffix, (RECEIVE(C), MPI_Status * status)) {                                            \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = ft_point(&operation, comm, FT_RECEIVE, peer, tag);                      \
        MPI_Status own;                                                                                      \
                                                                                                             \
        if (at) {                                                                                            \
            operation.bytes = ft_bytes(count, type);                                                         \
            ft_operation_begin(&operation, at);                                                              \
            if (status == MPI_STATUS_IGNORE) status = &own;                                                  \
        }                                                                                                    \
        int code = own_Recv##suffix(BUFFER_NAMES, status);                                                   \
                                                                                                             \
        if (at) ft_operation_end(&operation, at, code == MPI_SUCCESS ? status : NULL);                       \
        return code;                                                                                         \
    }

/* Receives of messages that a probe has matched, and that have their numbers since. */
#define MATCHED(suffix, C)                                                                                   \
    FT_WRAPPER(Mrecv##suffix,                                                                                \
               (void *buffer, C count, MPI_Datatype type, MPI_Message *message, MPI_Status *status)) {       \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = take_message(*message, &operation);                                     \
        MPI_Status own;                                                                                      \
                                                                                                             \
        if (at) {                                                                                            \
            operation.bytes = ft_bytes(count, type);                                                         \
            ft_operation_begin(&operation, at);                                                              \
            if (status == MPI_STATUS_IGNORE) status = &own;                                                  \
        }                                                                                                    \
        int code = own_Mrecv##suffix(buffer, count, type, message, status);                                  \
                                                                                                             \
        if (at) ft_operation_end(&operation, at, code == MPI_SUCCESS ? status : NULL);                       \
        return code;                                                                                         \
    }                                                                                                        \
    FT_WRAPPER(Imrecv##suffix,                                                                               \
               (void *buffer, C count, MPI_Datatype type, MPI_Message *message, MPI_Request *request)) {     \
        struct ft_operation operation;                                                                       \
        struct ft_communicator *at = take_message(*message, &operation);                                     \
                                                                                                             \
        if (at) {                                                                                            \
            operation.bytes = ft_bytes(count, type);                                                         \
            ft_operation_begin(&operation, at);                                                              \
        }                                                                                                    \
        int code = own_Imrecv##suffix(buffer, count, type, message, request);                                \
                                                                                                             \
        if (at) ft_request_begun(code, request, &operation, at);                                             \
        return code;                                                                                         \
    }

#define MESSAGES(suffix, C)                                                                                  \
    BLOCKING(Send, suffix, C)                                                                                \
    BLOCKING(Bsend, suffix, C)                                                                               \
    BLOCKING(Ssend, suffix, C)                                                                               \
    BLOCKING(Rsend, suffix, C)                                                                               \
    NONBLOCKING(Isend, suffix, FT_SEND, SEND(C))                                                             \
    NONBLOCKING(Ibsend, suffix, FT_SEND, SEND(C))                                                            \
    NONBLOCKING(Issend, suffix, FT_SEND, SEND(C))                                                            \
    NONBLOCKING(Irsend, suffix, FT_SEND, SEND(C))                                                            \
    NONBLOCKING(Irecv, suffix, FT_RECEIVE, RECEIVE(C))                                                       \
    PERSISTENT(Send_init, suffix, FT_SEND, SEND(C))                                                          \
    PERSISTENT(Bsend_init, suffix, FT_SEND, SEND(C))                                                         \
    PERSISTENT(Ssend_init, suffix, FT_SEND, SEND(C))                                                         \
    PERSISTENT(Rsend_init, suffix, FT_SEND, SEND(C))                                                         \
    PERSISTENT(Recv_init, suffix, FT_RECEIVE, RECEIVE(C))                                                    \
    RECEIVING(suffix, C)                                                                                     \
    MATCHED(suffix, C)                                                                                       \
    COMBINED(suffix, C)

/* Messages are kept in the table of requests: a handle of a message is no handle of a request. */
static void add_message(MPI_Message message, MPI_Comm comm, const MPI_Status *status) {
    struct ft_operation operation;
    struct ft_communicator *at = ft_point(&operation, comm, FT_RECEIVE, status->MPI_SOURCE, status->MPI_TAG);

    if (!at) return;
    ft_operation_number(&operation, at);
    operation.numbered = true;
    operation.open = false;
    ft_request_add((MPI_Request)message, &operation, at);
}

static struct ft_communicator *take_message(MPI_Message message, struct ft_operation *operation) {
    struct ft_request *taken = ft_request_take((MPI_Request)message);
    struct ft_communicator *at;

    if (!taken) return NULL;
    *operation = taken->operation;
    at = taken->communicator;
    ft_request_return(taken, true);
    return at;
}

FT_WRAPPER(Mprobe, (int peer, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status)) {
    MPI_Status own;

    if (status == MPI_STATUS_IGNORE) status = &own;
    int code = own_Mprobe(peer, tag, comm, message, status);

    if (code == MPI_SUCCESS) add_message(*message, comm, status);
    return code;
}

FT_WRAPPER(Improbe, (int peer, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status)) {
    MPI_Status own;

    if (status == MPI_STATUS_IGNORE) status = &own;
    int code = own_Improbe(peer, tag, comm, flag, message, status);

    if (code == MPI_SUCCESS && *flag) add_message(*message, comm, status);
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

#define COMBINED(suffix, C)                                                                                  \
    FT_WRAPPER(Sendrecv##suffix, (const void *sendbuf, C sendcount, MPI_Datatype sendtype, int peer,         \
                                  int sendtag, void *recvbuf, C recvcount, MPI_Datatype recvtype,            \
                                  int source, int recvtag, MPI_Comm comm, MPI_Status *status)) {             \
        struct both both;                                                                                    \
        MPI_Status own;                                                                                      \
                                                                                                             \
        if (status == MPI_STATUS_IGNORE) status = &own;                                                      \
        both.to = ft_point(&both.send, comm, FT_SEND, peer, sendtag);                                        \
        both.from = ft_point(&both.receive, comm, FT_RECEIVE, source, recvtag);                              \
        begin_both(&both, both.to ? ft_bytes(sendcount, sendtype) : 0,                                       \
                   both.from ? ft_bytes(recvcount, recvtype) : 0);                                           \
        int code = own_Sendrecv##suffix(sendbuf, sendcount, sendtype, peer, sendtag, recvbuf, recvcount,     \
                                        recvtype, source, recvtag, comm, status);                            \
                                                                                                             \
        end_both(&both, code == MPI_SUCCESS ? status : NULL);                                                \
        return code;                                                                                         \
    }                                                                                                        \
                                                                                                             \
    FT_WRAPPER(Sendrecv_replace##suffix, (void *buffer, C count, MPI_Datatype type, int peer, int sendtag,   \
                                          int source, int recvtag, MPI_Comm comm, MPI_Status *status)) {     \
        struct both both;                                                                                    \
        MPI_Status own;                                                                                      \
        uint64_t bytes;                                                                                      \
                                                                                                             \
        if (status == MPI_STATUS_IGNORE) status = &own;                                                      \
        both.to = ft_point(&both.send, comm, FT_SEND, peer, sendtag);                                        \
        both.from = ft_point(&both.receive, comm, FT_RECEIVE, source, recvtag);                              \
        bytes = both.to || both.from ? ft_bytes(count, type) : 0;                                            \
        begin_both(&both, bytes, bytes);                                                                     \
        int code =                                                                                           \
            own_Sendrecv_replace##suffix(buffer, count, type, peer, sendtag, source, recvtag, comm, status); \
                                                                                                             \
        end_both(&both, code == MPI_SUCCESS ? status : NULL);                                                \
        return code;                                                                                         \
    }

MESSAGES(, int)
#if MPI_VERSION >= 4
MESSAGES(_c, MPI_Count)
#endif
