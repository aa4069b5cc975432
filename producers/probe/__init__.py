"""Probes other NICs over UDP or RDMA datagrams and publishes the measurements."""
