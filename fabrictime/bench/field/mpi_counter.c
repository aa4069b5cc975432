/* Counts the operations of an MPI program at their call sites: a library to preload before the profiler.
 *
 * It is written apart from the profiler, from the text of the standard alone. Each process writes a file
 * $FABRICTIME_COUNTS/RANK with a line "function operations bytes" for each function. Operations on communicators of
 * one rank and messages to nobody are left out. Bytes of receives are not known at the call: 0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FUNCTIONS = 16 };
static const char *const names[FUNCTIONS] = {
    "UNKNOWN", "ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "BROADCAST", "REDUCE",  "ALL_TO_ALL", "GATHER",
    "SCATTER", "SCAN",       "BARRIER",    "SEND",           "RECEIVE",   "GATHERV", "SCATTERV"};
enum function {
    ALL_REDUCE = 1,
    ALL_GATHER,
    REDUCE_SCATTER,
    BROADCAST,
    REDUCE,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SCAN,
    BARRIER,
    SEND,
    RECEIVE,
    GATHERV,
    SCATTERV
};
static unsigned long long operations[FUNCTIONS], bytes_of[FUNCTIONS];

static int size_of(MPI_Comm comm) {
    int size = 0, between = 0;

    PMPI_Comm_test_inter(comm, &between);
    PMPI_Comm_size(comm, &size);
    return between ? 1 : size;
}

static long long bytes(long long count, MPI_Datatype type) {
    int size = 0;

    if (count > 0) PMPI_Type_size(type, &size);
    return count * size;
}

static long long sum(const int counts[], int many) {
    long long total = 0;

    for (int n = 0; n < many; n++) total += counts[n];
    return total;
}

static int rank_in(MPI_Comm comm) {
    int rank = 0;

    PMPI_Comm_rank(comm, &rank);
    return rank;
}

static void count(enum function function, MPI_Comm comm, long long size) {
    if (size_of(comm) < 2) return;
    __atomic_fetch_add(&operations[function], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&bytes_of[function], (unsigned long long)size, __ATOMIC_RELAXED);
}

static void message(enum function function, MPI_Comm comm, int peer, long long size) {
    if (peer != MPI_PROC_NULL) count(function, comm, function == SEND ? size : 0);
}

#define PASS(name, parameters, arguments, note)                                                              \
    int MPI_##name parameters {                                                                              \
        static int(*next) parameters;                                                                        \
                                                                                                             \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, "MPI_" #name);                                         \
        note;                                                                                                \
        return next arguments;                                                                               \
    }
#define OUT  const void *buffer, int number, MPI_Datatype type, int peer, int tag, MPI_Comm comm
#define IN   void *buffer, int number, MPI_Datatype type, int peer, int tag, MPI_Comm comm
#define SENT buffer, number, type, peer, tag, comm
#define ISENDS(name)                                                                                         \
    PASS(name, (OUT, MPI_Request * request), (SENT, request), message(SEND, comm, peer, bytes(number, type)))
#define SENDS(name) PASS(name, (OUT), (SENT), message(SEND, comm, peer, bytes(number, type)))

SENDS(Send)
SENDS(Ssend)
SENDS(Rsend)
SENDS(Bsend)
ISENDS(Isend)
ISENDS(Issend)
ISENDS(Irsend)
ISENDS(Ibsend)
PASS(Recv, (IN, MPI_Status *status), (SENT, status), message(RECEIVE, comm, peer, 0))
PASS(Irecv, (IN, MPI_Request *request), (SENT, request), message(RECEIVE, comm, peer, 0))
PASS(Mprobe, (int peer, int tag, MPI_Comm comm, MPI_Message *made, MPI_Status *status),
     (peer, tag, comm, made, status), message(RECEIVE, comm, peer, 0))
PASS(Sendrecv,
     (const void *out, int number, MPI_Datatype type, int peer, int tag, void *in, int many,
      MPI_Datatype kind, int source, int from, MPI_Comm comm, MPI_Status *status),
     (out, number, type, peer, tag, in, many, kind, source, from, comm, status),
     message(SEND, comm, peer, bytes(number, type));
     message(RECEIVE, comm, source, 0))
PASS(Sendrecv_replace,
     (void *buffer, int number, MPI_Datatype type, int peer, int tag, int source, int from, MPI_Comm comm,
      MPI_Status *status),
     (buffer, number, type, peer, tag, source, from, comm, status),
     message(SEND, comm, peer, bytes(number, type));
     message(RECEIVE, comm, source, 0))
PASS(Barrier, (MPI_Comm comm), (comm), count(BARRIER, comm, 0))
PASS(Ibarrier, (MPI_Comm comm, MPI_Request *request), (comm, request), count(BARRIER, comm, 0))
PASS(Bcast, (void *buffer, int number, MPI_Datatype type, int root, MPI_Comm comm),
     (buffer, number, type, root, comm), count(BROADCAST, comm, bytes(number, type)))
PASS(Ibcast, (void *buffer, int number, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request),
     (buffer, number, type, root, comm, request), count(BROADCAST, comm, bytes(number, type)))
PASS(Reduce, (const void *in, void *out, int number, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
     (in, out, number, type, op, root, comm), count(REDUCE, comm, bytes(number, type)))
PASS(Allreduce, (const void *in, void *out, int number, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, number, type, op, comm), count(ALL_REDUCE, comm, bytes(number, type)))
PASS(Iallreduce,
     (const void *in, void *out, int number, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
      MPI_Request *request),
     (in, out, number, type, op, comm, request), count(ALL_REDUCE, comm, bytes(number, type)))
PASS(Scan, (const void *in, void *out, int number, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, number, type, op, comm), count(SCAN, comm, bytes(number, type)))
PASS(Exscan, (const void *in, void *out, int number, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, number, type, op, comm), count(SCAN, comm, bytes(number, type)))
PASS(Reduce_scatter,
     (const void *in, void *out, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, counts, type, op, comm), count(REDUCE_SCATTER, comm, bytes(sum(counts, size_of(comm)), type)))
PASS(Reduce_scatter_block,
     (const void *in, void *out, int number, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
     (in, out, number, type, op, comm), count(REDUCE_SCATTER, comm, bytes(number, type) * size_of(comm)))

#define FROM     const void *in, int number, MPI_Datatype type, void *out
#define GIVEN    in, number, type, out
#define BLOCK    (in == MPI_IN_PLACE ? bytes(many, kind) : bytes(number, type))
#define AT(root) (rank_in(comm) == (root))

PASS(Allgather, (FROM, int many, MPI_Datatype kind, MPI_Comm comm), (GIVEN, many, kind, comm),
     count(ALL_GATHER, comm, BLOCK))
PASS(Allgatherv, (FROM, const int counts[], const int starts[], MPI_Datatype kind, MPI_Comm comm),
     (GIVEN, counts, starts, kind, comm),
     count(ALL_GATHER, comm, in == MPI_IN_PLACE ? bytes(counts[rank_in(comm)], kind) : bytes(number, type)))
PASS(Alltoall, (FROM, int many, MPI_Datatype kind, MPI_Comm comm), (GIVEN, many, kind, comm),
     count(ALL_TO_ALL, comm, BLOCK *size_of(comm)))
PASS(Alltoallv,
     (const void *in, const int counts[], const int starts[], MPI_Datatype type, void *out, const int many[],
      const int others[], MPI_Datatype kind, MPI_Comm comm),
     (in, counts, starts, type, out, many, others, kind, comm),
     count(ALL_TO_ALL, comm,
           in == MPI_IN_PLACE ? bytes(sum(many, size_of(comm)), kind)
                              : bytes(sum(counts, size_of(comm)), type)))
PASS(Gather, (FROM, int many, MPI_Datatype kind, int root, MPI_Comm comm), (GIVEN, many, kind, root, comm),
     count(GATHER, comm, BLOCK))
PASS(Gatherv, (FROM, const int counts[], const int starts[], MPI_Datatype kind, int root, MPI_Comm comm),
     (GIVEN, counts, starts, kind, root, comm),
     count(GATHERV, comm, in == MPI_IN_PLACE ? bytes(counts[root], kind) : bytes(number, type)))
PASS(Scatter, (FROM, int many, MPI_Datatype kind, int root, MPI_Comm comm), (GIVEN, many, kind, root, comm),
     count(SCATTER, comm, (AT(root) ? bytes(number, type) : bytes(many, kind)) * size_of(comm)))
PASS(Scatterv,
     (const void *in, const int counts[], const int starts[], MPI_Datatype type, void *out, int many,
      MPI_Datatype kind, int root, MPI_Comm comm),
     (in, counts, starts, type, out, many, kind, root, comm),
     count(SCATTERV, comm,
           AT(root) ? bytes(sum(counts, size_of(comm)), type) : bytes(many, kind) * size_of(comm)))

static void write_counts(void) {
    char path[4096];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%d", getenv("FABRICTIME_COUNTS"), rank_in(MPI_COMM_WORLD));
    file = fopen(path, "w");
    for (int n = 0; file && n < FUNCTIONS; n++)
        if (operations[n]) fprintf(file, "%s %llu %llu\n", names[n], operations[n], bytes_of[n]);
    if (file) fclose(file);
}

PASS(Finalize, (void), (), write_counts())
