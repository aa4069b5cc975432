/* MPI programs of one kind of call each: mpi_calls NAME. Without a name, it prints all names.
 *
 * The operations are counted by mpi_counter.c at their call sites. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { N = 48, RANKS = 16 };
static int in[N * RANKS], out[N * RANKS], counts[RANKS], starts[RANKS], rank, ranks, next, before;
static MPI_Comm world;

#define WORLD world
#define INT   MPI_INT
#define TIMES for (int n = 0; n < 5; n++)

static void wait_all(int many, MPI_Request requests[]) {
    MPI_Waitall(many, requests, MPI_STATUSES_IGNORE);
}

static void barrier(void) {
    TIMES MPI_Barrier(WORLD);
}
static void bcast(void) {
    TIMES MPI_Bcast(in, N, INT, n % ranks, WORLD);
}
static void reduce(void) {
    TIMES MPI_Reduce(in, out, N, INT, MPI_SUM, n % ranks, WORLD);
}
static void allreduce(void) {
    TIMES MPI_Allreduce(in, out, N - n, INT, MPI_SUM, WORLD);
}
static void allgather(void) {
    TIMES MPI_Allgather(in, N, INT, out, N, INT, WORLD);
}
static void allgatherv(void) {
    TIMES MPI_Allgatherv(in, counts[rank], INT, out, counts, starts, INT, WORLD);
}
static void alltoall(void) {
    TIMES MPI_Alltoall(in, N, INT, out, N, INT, WORLD);
}
static void alltoallv(void) {
    int same[RANKS];

    for (int n = 0; n < ranks; n++) same[n] = 7;
    TIMES MPI_Alltoallv(in, same, starts, INT, out, same, starts, INT, WORLD);
}
static void gather(void) {
    TIMES MPI_Gather(in, N, INT, out, N, INT, n % ranks, WORLD);
}
static void gatherv(void) {
    TIMES MPI_Gatherv(in, counts[rank], INT, out, counts, starts, INT, 1, WORLD);
}
static void scatter(void) {
    TIMES MPI_Scatter(in, N, INT, out, N, INT, n % ranks, WORLD);
}
static void scatterv(void) {
    int same[RANKS];

    for (int n = 0; n < ranks; n++) same[n] = 9;
    TIMES MPI_Scatterv(in, same, starts, INT, out, 9, INT, 0, WORLD);
}
static void scan(void) {
    TIMES MPI_Scan(in, out, N, INT, MPI_SUM, WORLD);
}
static void exscan(void) {
    TIMES MPI_Exscan(in, out, N, INT, MPI_SUM, WORLD);
}
static void reduce_scatter(void) {
    TIMES MPI_Reduce_scatter(in, out, counts, INT, MPI_SUM, WORLD);
}
static void reduce_scatter_block(void) {
    TIMES MPI_Reduce_scatter_block(in, out, N, INT, MPI_SUM, WORLD);
}
static void in_place(void) {
    TIMES MPI_Allreduce(MPI_IN_PLACE, out, N, INT, MPI_SUM, WORLD);
    TIMES MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, N, INT, WORLD);
    TIMES MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, N, INT, WORLD);
}
static void nonblocking_collectives(void) {
    MPI_Request requests[3];

    TIMES {
        MPI_Ibcast(in, N, INT, 0, WORLD, &requests[0]);
        MPI_Iallreduce(in, out, N, INT, MPI_SUM, WORLD, &requests[1]);
        MPI_Ibarrier(WORLD, &requests[2]);
        wait_all(3, requests);
    }
}
static void messages(int (*send)(const void *, int, MPI_Datatype, int, int, MPI_Comm)) {
    MPI_Request request;

    TIMES {
        MPI_Irecv(out, N, INT, before, n, WORLD, &request);
        MPI_Barrier(WORLD);
        send(in, N - n, INT, next, n, WORLD);
        wait_all(1, &request);
    }
}
static void send(void) {
    messages(MPI_Send);
}
static void ssend(void) {
    messages(MPI_Ssend);
}
static void rsend(void) {
    messages(MPI_Rsend);
}
static void bsend(void) {
    static char buffer[100000];
    int bytes;
    void *detached;

    MPI_Buffer_attach(buffer, sizeof(buffer));
    messages(MPI_Bsend);
    MPI_Buffer_detach(&detached, &bytes);
}
static void blocking_receive(void) {
    TIMES {
        if (rank % 2 == 0 && rank + 1 < ranks) MPI_Send(in, N, INT, rank + 1, 0, WORLD);
        if (rank % 2) MPI_Recv(out, N, INT, rank - 1, 0, WORLD, MPI_STATUS_IGNORE);
    }
}
static void isend(void) {
    MPI_Request requests[4];

    TIMES {
        MPI_Irecv(out, N, INT, before, 1, WORLD, &requests[0]);
        MPI_Irecv(out + N, N, INT, before, 2, WORLD, &requests[1]);
        MPI_Isend(in, N, INT, next, 1, WORLD, &requests[2]);
        MPI_Issend(in, N, INT, next, 2, WORLD, &requests[3]);
        wait_all(4, requests);
    }
}
static void any_source(void) {
    MPI_Request requests[2];

    TIMES {
        MPI_Irecv(out, N, INT, MPI_ANY_SOURCE, MPI_ANY_TAG, WORLD, &requests[0]);
        MPI_Isend(in, n + 1, INT, next, 3, WORLD, &requests[1]);
        wait_all(2, requests);
        MPI_Barrier(WORLD);
    }
}
static void waits(void) {
    MPI_Request requests[2];
    int index, flag, done, indices[2];

    TIMES {
        MPI_Irecv(out, N, INT, before, 4, WORLD, &requests[0]);
        MPI_Isend(in, N, INT, next, 4, WORLD, &requests[1]);
        if (n == 0) {
            MPI_Waitany(2, requests, &index, MPI_STATUS_IGNORE);
            MPI_Waitany(2, requests, &index, MPI_STATUS_IGNORE);
        } else if (n == 1) {
            for (done = 0; done < 2; done += index)
                MPI_Waitsome(2, requests, &index, indices, MPI_STATUSES_IGNORE);
        } else if (n == 2) {
            for (flag = 0; !flag;) MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
        } else if (n == 3) {
            for (done = 0; done < 2; done += flag) MPI_Testany(2, requests, &index, &flag, MPI_STATUS_IGNORE);
        } else {
            for (int k = 0; k < 2; k++)
                for (flag = 0; !flag;) MPI_Test(&requests[k], &flag, MPI_STATUS_IGNORE);
        }
    }
}
static void sendrecv(void) {
    TIMES MPI_Sendrecv(in, N, INT, next, 5, out, N, INT, before, 5, WORLD, MPI_STATUS_IGNORE);
}
static void sendrecv_replace(void) {
    TIMES MPI_Sendrecv_replace(in, N, INT, next, 6, before, 6, WORLD, MPI_STATUS_IGNORE);
}
static void nobody(void) {
    TIMES MPI_Sendrecv(in, N, INT, rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL, 7, out, N, INT,
                       rank ? rank - 1 : MPI_PROC_NULL, 7, WORLD, MPI_STATUS_IGNORE);
}
static void matched(void) {
    MPI_Request request;
    MPI_Message message;

    TIMES {
        MPI_Isend(in, N, INT, next, 8, WORLD, &request);
        MPI_Mprobe(MPI_ANY_SOURCE, 8, WORLD, &message, MPI_STATUS_IGNORE);
        MPI_Mrecv(out, N, INT, &message, MPI_STATUS_IGNORE);
        wait_all(1, &request);
    }
}
static void many_requests(void) {
    MPI_Request requests[600];

    for (int n = 0; n < 300; n++) {
        MPI_Irecv(out, 1, INT, before, n, WORLD, &requests[2 * n]);
        MPI_Isend(in, 1, INT, next, n, WORLD, &requests[2 * n + 1]);
    }
    wait_all(600, requests);
}
static void derived_types(void) {
    MPI_Datatype column;

    MPI_Type_vector(8, 1, 4, INT, &column);
    MPI_Type_commit(&column);
    TIMES MPI_Sendrecv(in, 2, column, next, 9, out, 2, column, before, 9, WORLD, MPI_STATUS_IGNORE);
    TIMES MPI_Bcast(in, 1, column, 0, WORLD);
    MPI_Type_free(&column);
}
static void communicators(void) {
    MPI_Comm half, copy;

    MPI_Comm_split(WORLD, rank % 2, rank, &half);
    MPI_Comm_dup(WORLD, &copy);
    TIMES MPI_Allreduce(in, out, N, INT, MPI_SUM, half);
    TIMES MPI_Bcast(in, N, INT, 0, copy);
    MPI_Comm_free(&half);
    MPI_Comm_free(&copy);
}
static void many_communicators(void) {
    for (int n = 0; n < 600; n++) {
        MPI_Comm copy;

        MPI_Comm_dup(WORLD, &copy);
        MPI_Allreduce(in, out, 1, INT, MPI_SUM, copy);
        MPI_Comm_free(&copy);
    }
}
static void single_rank(void) {
    TIMES MPI_Allreduce(in, out, N, INT, MPI_SUM, MPI_COMM_SELF);
    TIMES MPI_Barrier(WORLD);
}
static void nothing(void) {
    TIMES MPI_Bcast(in, 0, INT, 0, WORLD);
}

static const struct {
    const char *name;
    void (*run)(void);
} calls[] = {
#define CALL(name) {#name, name}
    CALL(barrier),
    CALL(bcast),
    CALL(reduce),
    CALL(allreduce),
    CALL(allgather),
    CALL(allgatherv),
    CALL(alltoall),
    CALL(alltoallv),
    CALL(gather),
    CALL(gatherv),
    CALL(scatter),
    CALL(scatterv),
    CALL(scan),
    CALL(exscan),
    CALL(reduce_scatter),
    CALL(reduce_scatter_block),
    CALL(in_place),
    CALL(nonblocking_collectives),
    CALL(send),
    CALL(ssend),
    CALL(rsend),
    CALL(bsend),
    CALL(blocking_receive),
    CALL(isend),
    CALL(any_source),
    CALL(waits),
    CALL(sendrecv),
    CALL(sendrecv_replace),
    CALL(nobody),
    CALL(matched),
    CALL(many_requests),
    CALL(derived_types),
    CALL(communicators),
    CALL(many_communicators),
    CALL(single_rank),
    CALL(nothing)};

int main(int argc, char **argv) {
    if (argc < 2) {
        for (size_t n = 0; n < sizeof(calls) / sizeof(*calls); n++) puts(calls[n].name);
        return 0;
    }
    MPI_Init(&argc, &argv);
    world = MPI_COMM_WORLD;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    next = (rank + 1) % ranks;
    before = (rank + ranks - 1) % ranks;
    for (int n = 0; n < ranks; n++) {
        counts[n] = n + 1;
        starts[n] = n * N;
    }
    for (size_t n = 0; n < sizeof(calls) / sizeof(*calls); n++)
        if (!strcmp(calls[n].name, argv[1])) calls[n].run();
    MPI_Finalize();
    return 0;
}
