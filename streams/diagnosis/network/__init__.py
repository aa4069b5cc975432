"""The network under a job: its records, its traffic, and what its probes and flows show."""
