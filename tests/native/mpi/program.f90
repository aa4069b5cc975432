! The same as a part of program.c, through Fortran's entry points.
program messages
   implicit none
   include 'mpif.h'
   integer :: error, rank, ranks, next, before, half, requests(2), status(MPI_STATUS_SIZE)
   integer :: in(64), out(64)

   call MPI_Init(error)
   call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
   call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
   next = mod(rank + 1, ranks)
   before = mod(rank + ranks - 1, ranks)
   in = rank
   call MPI_Barrier(MPI_COMM_WORLD, error)
   call MPI_Allreduce(MPI_IN_PLACE, in, 64, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
   call MPI_Alltoall(in, 16, MPI_INTEGER, out, 16, MPI_INTEGER, MPI_COMM_WORLD, error)
   call MPI_Iallreduce(in, out, 64, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1), error)
   call MPI_Wait(requests(1), MPI_STATUS_IGNORE, error)
   call MPI_Isend(in, 64, MPI_INTEGER, next, 5, MPI_COMM_WORLD, requests(1), error)
   call MPI_Irecv(out, 64, MPI_INTEGER, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, requests(2), error)
   call MPI_Wait(requests(2), status, error)
   call MPI_Waitall(1, requests, MPI_STATUSES_IGNORE, error)
   call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, error)
   call MPI_Barrier(half, error)
   call MPI_Comm_free(half, error)
   call MPI_Finalize(error)
end program
