"""Detects queues that persist, and names their causes."""
