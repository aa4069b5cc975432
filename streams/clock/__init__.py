"""Estimates offset and rate of every NIC clock of a shard, one time window after the other."""
