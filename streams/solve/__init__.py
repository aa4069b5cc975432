"""Solve stages: keyed by shard, one writer each, pure functions of decoded records."""
