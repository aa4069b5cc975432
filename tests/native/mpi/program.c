/* An MPI program for tests of the profiler: program all|threads|open|fork|abort|die|matched|neighbours|large|window */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 64, THREADS = 4, MESSAGES = 500 };

static int rank, ranks;
static int in[COUNT * 16], out[COUNT * 16];

static void collectives(MPI_Comm comm) {
    int counts[16], starts[16], size;
    MPI_Request request;

    MPI_Comm_size(comm, &size);
    for (int n = 0; n < size; n++) {
        counts[n] = COUNT;
        starts[n] = n * COUNT;
    }
    MPI_Barrier(comm);
    MPI_Bcast(in, COUNT, MPI_INT, 1, comm);
    MPI_Reduce(in, out, COUNT, MPI_INT, MPI_SUM, 0, comm);
    MPI_Allreduce(MPI_IN_PLACE, out, COUNT, MPI_INT, MPI_SUM, comm);
    MPI_Allgather(in, COUNT, MPI_INT, out, COUNT, MPI_INT, comm);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, counts, starts, MPI_INT, comm);
    MPI_Alltoall(in, COUNT, MPI_INT, out, COUNT, MPI_INT, comm);
    MPI_Alltoallv(in, counts, starts, MPI_INT, out, counts, starts, MPI_INT, comm);
    MPI_Reduce_scatter(in, out, counts, MPI_INT, MPI_SUM, comm);
    MPI_Reduce_scatter_block(in, out, COUNT, MPI_INT, MPI_SUM, comm);
    MPI_Gather(in, COUNT, MPI_INT, out, rank ? 0 : COUNT, rank ? MPI_DATATYPE_NULL : MPI_INT, 0, comm);
    MPI_Scatter(in, COUNT, MPI_INT, out, COUNT, MPI_INT, 0, comm);
    MPI_Gatherv(in, COUNT, MPI_INT, out, counts, starts, MPI_INT, 0, comm);
    MPI_Scatterv(in, counts, starts, MPI_INT, out, COUNT, MPI_INT, 0, comm);
    MPI_Scan(in, out, COUNT, MPI_INT, MPI_SUM, comm);
    MPI_Iallreduce(in, out, COUNT, MPI_INT, MPI_SUM, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Ibarrier(comm, &request);
    for (int flag = 0; !flag;) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
}

static void messages(void) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, done, indices[4], flag;
    MPI_Request requests[4];

    MPI_Sendrecv(in, COUNT, MPI_INT, next, 1, out, COUNT, MPI_INT, before, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    /* two tags, received in the other order */
    MPI_Isend(in, 1, MPI_INT, next, 3, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(in, 2, MPI_INT, next, 4, MPI_COMM_WORLD, &requests[1]);
    MPI_Irecv(out, COUNT, MPI_INT, before, 4, MPI_COMM_WORLD, &requests[2]);
    MPI_Irecv(out + COUNT, COUNT, MPI_INT, before, 3, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    /* any source, any tag */
    MPI_Isend(in, 3, MPI_INT, next, 5, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(out, COUNT, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[1]);
    for (int ended = 0; ended < 2; ended += done)
        MPI_Waitsome(2, requests, &done, indices, MPI_STATUSES_IGNORE);
    /* persistent, three times */
    MPI_Send_init(in, COUNT, MPI_INT, next, 6, MPI_COMM_WORLD, &requests[0]);
    MPI_Recv_init(out, COUNT, MPI_INT, before, 6, MPI_COMM_WORLD, &requests[1]);
    for (int n = 0; n < 3; n++) {
        MPI_Startall(2, requests);
        for (flag = 0; !flag;) MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    MPI_Send(in, 1, MPI_INT, MPI_PROC_NULL, 7, MPI_COMM_WORLD);
}

static void communicators(void) {
    MPI_Comm half, copy, later, single;
    MPI_Request request;

    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Comm_dup(half, &copy);
    MPI_Comm_idup(half, &later, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &single);
    MPI_Barrier(half);
    MPI_Barrier(copy);
    MPI_Barrier(later);
    MPI_Barrier(single);
    MPI_Comm_free(&half);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&later);
    MPI_Comm_free(&single);
}

static void *exchange(void *number) {
    int tag = (int)(long)number, next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, got;
    MPI_Request requests[2];

    for (int n = 0; n < MESSAGES; n++) {
        MPI_Isend(&n, 1, MPI_INT, next, tag, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(&got, 1, MPI_INT, before, tag, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];

    for (long n = 0; n < THREADS; n++) pthread_create(&thread[n], NULL, exchange, (void *)n);
    for (int n = 0; n < THREADS; n++) pthread_join(thread[n], NULL);
}

static void open_request(void) {
    static MPI_Request request;

    MPI_Irecv(out, 1, MPI_INT, (rank + 1) % ranks, 9, MPI_COMM_WORLD, &request);
}

static void fork_child(void) {
    pid_t child = fork();

    if (!child) _exit(0);
    waitpid(child, NULL, 0);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Receive as mpi4py does: by a probe that matches a message of any sender. */
static void matched(void) {
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, flag = 0;
    MPI_Request request, other;
    MPI_Message message;
    MPI_Status status;

    for (int n = 0; n < 3; n++) {
        MPI_Isend(in, n + 1, MPI_INT, next, 7, MPI_COMM_WORLD, &request);
        if (n < 2) {
            MPI_Mprobe(n ? before : MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
            MPI_Mrecv(out, COUNT, MPI_INT, &message, MPI_STATUS_IGNORE);
        } else {
            while (!flag) MPI_Improbe(before, 7, MPI_COMM_WORLD, &flag, &message, MPI_STATUS_IGNORE);
            MPI_Imrecv(out, COUNT, MPI_INT, &message, &other);
            MPI_Wait(&other, MPI_STATUS_IGNORE);
        }
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

static void neighbours(void) {
    int sizes[1], periods[1] = {1}, counts[2] = {1, 2}, starts[2] = {0, 4};
    MPI_Request request;
    MPI_Comm ring;

    sizes[0] = ranks;
    MPI_Cart_create(MPI_COMM_WORLD, 1, sizes, periods, 0, &ring);
    MPI_Neighbor_allgather(in, COUNT, MPI_INT, out, COUNT, MPI_INT, ring);
    MPI_Neighbor_alltoall(in, COUNT, MPI_INT, out, COUNT, MPI_INT, ring);
    MPI_Ineighbor_alltoallv(in, counts, starts, MPI_INT, out, (int[]){2, 1}, starts, MPI_INT, ring, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&ring);
}

static void large(void) {
#if MPI_VERSION >= 4
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    MPI_Request request;

    MPI_Allreduce_c(in, out, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Iallreduce_c(in, out, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Isend_c(in, COUNT, MPI_INT, next, 9, MPI_COMM_WORLD, &request);
    MPI_Recv_c(out, COUNT, MPI_INT, before, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
#endif
}

static void window(void) {
    MPI_Win made;

    for (int n = 0; n < 2; n++) {
        MPI_Win_create(in, sizeof(in), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &made);
        MPI_Win_free(&made);
    }
}

int main(int argc, char **argv) {
    const char *wanted = argc > 1 ? argv[1] : "all";
    int provided;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (!strcmp(wanted, "all")) {
        collectives(MPI_COMM_WORLD);
        messages();
        communicators();
    } else if (!strcmp(wanted, "matched")) {
        matched();
    } else if (!strcmp(wanted, "neighbours")) {
        neighbours();
    } else if (!strcmp(wanted, "window")) {
        window();
    } else if (!strcmp(wanted, "large")) {
        large();
    } else if (!strcmp(wanted, "threads")) {
        threads();
    } else if (!strcmp(wanted, "open")) {
        open_request();
    } else if (!strcmp(wanted, "fork")) {
        fork_child();
    } else if (!strcmp(wanted, "abort") || !strcmp(wanted, "die")) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1) usleep(500000); /* all segments have been passed on by then */
        if (rank == 1 && wanted[0] == 'a') MPI_Abort(MPI_COMM_WORLD, 3);
        if (rank == 1) raise(SIGKILL);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
