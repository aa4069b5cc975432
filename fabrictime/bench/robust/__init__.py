"""Measures robustness: hostile records against the running pipeline."""
