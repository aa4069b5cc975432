"""Reports the collective operations of jobs on a host, as the profilers of NCCL, RCCL and MPI record them."""
