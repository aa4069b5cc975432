"""Announces the NICs of a host and follows those of the fleet."""
