"""Checks of the back end: RDMA devices and ports, Ethernet links, traffic classes, source routes."""
