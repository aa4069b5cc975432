"""Probe schedules: the times at which each NIC probes each of its paths."""
