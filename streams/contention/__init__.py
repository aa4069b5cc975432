"""Detects queues that persist on links, and classifies their causes."""
