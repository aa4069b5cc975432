"""A packet-forwarding leaf-spine testbed in rootless network namespaces, its traffic, faults and truth."""
