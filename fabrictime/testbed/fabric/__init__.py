"""The packet-forwarding fabric: its plan, namespaces, queue disciplines, faults and recorded truth."""
