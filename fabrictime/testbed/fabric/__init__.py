"""The fabric of real packets: its plan, namespaces, queue disciplines, faults and recorded truth."""
