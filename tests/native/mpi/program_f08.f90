! As program.f90, through the module mpi_f08, without the optional argument of errors.
program messages
   use mpi_f08
   implicit none
   integer :: error, rank, ranks, next, before
   type(MPI_Comm) :: half
   type(MPI_Request) :: requests(2)
   type(MPI_Status) :: status
   integer :: in(64), out(64)

   call MPI_Init()
   call MPI_Comm_rank(MPI_COMM_WORLD, rank)
   call MPI_Comm_size(MPI_COMM_WORLD, ranks)
   next = mod(rank + 1, ranks)
   before = mod(rank + ranks - 1, ranks)
   in = rank
   call MPI_Barrier(MPI_COMM_WORLD)
   call MPI_Allreduce(MPI_IN_PLACE, in, 64, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
   call MPI_Alltoall(in, 16, MPI_INTEGER, out, 16, MPI_INTEGER, MPI_COMM_WORLD)
   call MPI_Iallreduce(in, out, 64, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1))
   call MPI_Wait(requests(1), MPI_STATUS_IGNORE)
   call MPI_Isend(in, 64, MPI_INTEGER, next, 5, MPI_COMM_WORLD, requests(1))
   call MPI_Irecv(out, 64, MPI_INTEGER, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, requests(2))
   call MPI_Wait(requests(2), status)
   call MPI_Waitall(1, requests, MPI_STATUSES_IGNORE)
   call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half)
   call MPI_Barrier(half)
   call MPI_Comm_free(half)
   call MPI_Finalize()
end program
