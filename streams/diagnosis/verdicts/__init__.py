"""Explains a job's speed, with one file for each family of verdicts."""
