"""Checks whether a host is fit for a long run: software, node, PCIe, RDMA ports, kernel log."""
