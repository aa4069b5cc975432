"""Runs jobs and traffic on the testbed, and computes the best possible goodput of jobs."""
