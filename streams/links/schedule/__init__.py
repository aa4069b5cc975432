"""Probe schedules: which NIC probes which path when."""
