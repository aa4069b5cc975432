"""Infers depth and utilisation of every link."""
