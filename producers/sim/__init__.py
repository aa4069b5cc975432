"""The simulated fleet: its topology, and the modes that play traffic, probes and faults on it."""
