"""Describes the network under a job: its records, its traffic, and results of probes and flows."""
