"""RAS services of NCCL and RCCL: discovery on the host, queries, and their reports as records."""
