"""The simulated fleet: its topology, traffic, probes and faults.

In this package, the kernel is the native simulation of flows and queues (`native.sim.fluid`).
"""
