"""Explanations of a job's speed, one file for each family of verdicts."""
