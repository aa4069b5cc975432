/* An MPI job for tests: iterations of computing and of one collective. Rank 0 prints the time of each iteration.
 *
 *     mpi_job allreduce|alltoall|exchange BYTES COMPUTE_MS ITERATIONS|SECONDSs [SLOW_RANK SLOW_MS]
 *
 * BYTES: the message of a rank. SLOW_RANK computes SLOW_MS longer. `exchange`: each rank sends to the rank half
 * way around, and receives from it. With SECONDSs, rank 0 ends the job after so many seconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A GPU computes: the process waits for it, and the processor is free. */
static void compute(double ms) {
    struct timespec pause = {.tv_sec = (time_t)(ms / 1e3)};

    pause.tv_nsec = (long)((ms / 1e3 - (double)pause.tv_sec) * 1e9);
    nanosleep(&pause, NULL);
}

int main(int argc, char **argv) {
    int rank, ranks, more = 1;
    double begin_s;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 5) {
        fprintf(
            stderr,
            "usage: mpi_job allreduce|alltoall|exchange BYTES COMPUTE_MS ITERATIONS|SECONDSs [RANK MS]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int bytes = atoi(argv[2]), timed = strchr(argv[4], 's') != NULL;
    double limit = atof(argv[4]), ms = atof(argv[3]);
    char *in = calloc(1, (size_t)bytes), *out = calloc(1, (size_t)bytes);

    if (argc > 6 && atoi(argv[5]) == rank) ms += atof(argv[6]);
    MPI_Barrier(MPI_COMM_WORLD);
    begin_s = now_s();
    for (int n = 0; more; n++) {
        double iteration_s = now_s();

        compute(ms);
        if (!strcmp(argv[1], "allreduce")) {
            MPI_Allreduce(in, out, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        } else if (!strcmp(argv[1], "alltoall")) {
            MPI_Alltoall(in, bytes / ranks, MPI_BYTE, out, bytes / ranks, MPI_BYTE, MPI_COMM_WORLD);
        } else {
            int other = (rank + ranks / 2) % ranks;

            MPI_Sendrecv(in, bytes, MPI_BYTE, other, 1, out, bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
        }
        more = timed ? now_s() - begin_s < limit : n + 1 < (int)limit;
        if (timed) MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%d %.6f\n", n, now_s() - iteration_s);
            fflush(stdout);
        }
    }
    free(in);
    free(out);
    MPI_Finalize();
    return 0;
}
