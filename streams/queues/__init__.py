"""Infers the queue depth and utilisation of every link."""
