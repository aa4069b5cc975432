"""Checks of the kernel log: its lines, the rules that name their faults, the events of NICs."""
