"""Probes NICs over RDMA datagrams (UD queue pairs)."""
