"""Announces the NICs of a host, and follows the announcements of the fleet."""
