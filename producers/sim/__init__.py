"""The simulated fleet: its topology, traffic, probes and faults."""
