/* A job of one process, which runs a barrier 20 times a second until it is killed. */
#include <mpi.h>
#include <unistd.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    for (;;) {
        MPI_Barrier(MPI_COMM_WORLD);
        usleep(50000);
    }
}
