"""Traces the routes of probes and flows by packets with a limited TTL."""
