/* Parts of libfabrictime-mpi.so: an LD_PRELOAD library that records the operations of unmodified MPI programs
 * through MPI's profiling interface, and writes them to the collective trace (../collectives/writer.h).
 *
 *     entries.c          MPI's own functions, and whether anything is recorded
 *     communicators.c    init, finalize, and the ids of communicators
 *     operations.c       begin, end and number of an operation; the table of open requests
 *     collectives.c      blocking, nonblocking and persistent collectives
 *     point_to_point.c   send and receive
 *     completion.c       wait, test, start, and the end of nonblocking operations
 *     fortran.c          the entry points of Fortran
 *     unrecorded.c       functions that are not recorded, and that state it
 *
 * On the path of an operation nothing locks, allocates or calls the kernel. A full table means that an event
 * is not written and counts as dropped. */
#ifndef FABRICTIME_MPI_TRACE_H
#define FABRICTIME_MPI_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include <mpi.h>
#pragma GCC visibility pop

#include "connect.h"
#include "entries.h"
#include "sockets.h"
#include "writer.h"

/* Functions that are used and not recorded. */
#ifdef OPEN_MPI
#define FT_CONVERSIONS(X) X(Comm_f2c) X(Type_f2c) X(Request_f2c) X(Status_f2c)
#else
#define FT_CONVERSIONS(X)
#endif
#define FT_USES(X)                                                                                           \
    X(Comm_group)                                                                                            \
    X(Comm_rank)                                                                                             \
    X(Comm_size)                                                                                             \
    X(Comm_test_inter)                                                                                       \
    X(Get_count)                                                                                             \
    X(Get_library_version)                                                                                   \
    X(Group_free)                                                                                            \
    X(Group_size)                                                                                            \
    X(Group_translate_ranks)                                                                                 \
    X(Type_size)                                                                                             \
    X(Topo_test)                                                                                             \
    X(Cartdim_get)                                                                                           \
    X(Graph_neighbors_count)                                                                                 \
    X(Dist_graph_neighbors_count)                                                                            \
    X(Get_elements_x)                                                                                        \
    FT_CONVERSIONS(X)

#define FT_MEMBER(name) __typeof__(PMPI_##name) *name;
extern struct ft_mpi_functions {
    FT_USES(FT_MEMBER)
} ft_mpi;

/* Open MPI's constants are addresses of its objects; MPICH's are numbers. */
extern struct ft_mpi_constants {
    void *comm_world, *comm_null, *request_null, *message_null, *message_no_proc, *byte;
    MPI_Fint **status_ignore, **statuses_ignore;
} ft_constants;

#ifdef OPEN_MPI
#define FT_COMM_WORLD   ((MPI_Comm)ft_constants.comm_world)
#define FT_COMM_NULL    ((MPI_Comm)ft_constants.comm_null)
#define FT_REQUEST_NULL ((MPI_Request)ft_constants.request_null)
#define FT_BYTE         ((MPI_Datatype)ft_constants.byte)
#else
#define FT_COMM_WORLD   MPI_COMM_WORLD
#define FT_COMM_NULL    MPI_COMM_NULL
#define FT_REQUEST_NULL MPI_REQUEST_NULL
#define FT_BYTE         MPI_BYTE
#endif

/* A communicator of the program. */
struct ft_communicator {
    _Atomic uintptr_t handle;
    uint64_t id;
    int index;                   /* in the segment */
    int rank, ranks, out;        /* out: neighbours that it sends to, of a topology */
    _Atomic uint64_t operations; /* collectives so far */
};

/* An operation that has begun. */
struct ft_operation {
    uint64_t begin_raw_ns, number, sequence, bytes;
    int32_t peer, tag;
    uint16_t communicator;
    uint8_t function;
    bool collective, persistent, open;
    bool numbered; /* it has its sequence: a message that a probe has matched */
};

/* An open or persistent request. */
struct ft_request {
    _Atomic uintptr_t handle; /* 0: free; 1: in use by one thread */
    uintptr_t key;
    struct ft_communicator *communicator;
    struct ft_operation operation;
};

/* communicators.c */
void ft_mpi_begin(void);
void ft_mpi_end(void);
struct ft_communicator *ft_communicator(MPI_Comm handle);
void ft_communicator_created(MPI_Comm handle, MPI_Comm same_group);
void ft_communicator_freed(uintptr_t handle);

/* operations.c */
uint64_t ft_hash(uint64_t seed, uint64_t value);
uint64_t ft_count(uint64_t key);
uint64_t ft_bytes(int64_t count, MPI_Datatype type);
void ft_operation_begin(struct ft_operation *operation, struct ft_communicator *communicator);
void ft_operation_end(struct ft_operation *operation, struct ft_communicator *communicator,
                      const MPI_Status *status);
void ft_request_add(MPI_Request handle, const struct ft_operation *operation,
                    struct ft_communicator *communicator);
struct ft_request *ft_request_take(MPI_Request handle);
void ft_request_return(struct ft_request *request, bool ended);
uint64_t ft_requests_open(void);

void ft_operation_number(struct ft_operation *operation, struct ft_communicator *communicator);

/* completion.c */
void ft_request_restart(MPI_Request handle);
void ft_request_freed(MPI_Request handle);

/* Set up a collective. The caller sets `bytes` and then calls ft_operation_begin. */
static inline bool ft_collective(struct ft_operation *operation, struct ft_communicator *communicator,
                                 int function, int root) {
    if (!communicator) return false;
    operation->function = (uint8_t)function;
    operation->peer = root;
    operation->tag = 0;
    operation->collective = true;
    operation->persistent = operation->numbered = false;
    return true;
}

/* Remember an operation that was started, or end it if it was refused. */
static inline void ft_request_begun(int code, const MPI_Request *request, struct ft_operation *operation,
                                    struct ft_communicator *communicator) {
    if (code == MPI_SUCCESS)
        ft_request_add(*request, operation, communicator);
    else
        ft_operation_end(operation, communicator, NULL);
}

/* Set up one direction of a point-to-point operation, with the bytes of its buffer. */
static inline struct ft_communicator *ft_point(struct ft_operation *operation, MPI_Comm handle, int function,
                                               int peer, int tag) {
    struct ft_communicator *communicator = peer == MPI_PROC_NULL ? NULL : ft_communicator(handle);

    operation->function = (uint8_t)function;
    operation->peer = peer;
    operation->tag = tag;
    operation->collective = false;
    operation->persistent = operation->numbered = false;
    return communicator;
}

#endif
