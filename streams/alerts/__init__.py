"""Raises, updates and clears the alerts of a shard."""
