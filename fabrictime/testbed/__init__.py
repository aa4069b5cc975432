"""A leaf-spine fabric of real packets in rootless network namespaces, its traffic, faults and truth."""
