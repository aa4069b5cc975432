"""Reports the flows of a host: TCP sockets, RDMA queue pairs and the jobs that own them."""
