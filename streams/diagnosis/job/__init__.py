"""Holds the work of a job: its processes, ranks and operations, and their times."""
