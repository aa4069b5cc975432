"""Reports the flows of a host: sockets, queue pairs and the jobs that own them."""
