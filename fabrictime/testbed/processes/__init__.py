"""Manages processes in the testbed's namespaces: fork server, workers, priorities and user namespaces."""
