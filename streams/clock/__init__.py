"""Solves the clocks of a shard, window by window."""
