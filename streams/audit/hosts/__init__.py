"""Comparison of hosts: with each other, with a baseline, with their machine type."""
