"""Compares hosts with each other, with a baseline, and with their machine type."""
