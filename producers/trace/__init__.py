"""Traces the routes that probes and flows take."""
