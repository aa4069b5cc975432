"""Processes in the fabric's namespaces: fork server, workers, priorities and user namespaces."""
