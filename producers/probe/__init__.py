"""Probes other NICs and publishes the samples."""
