"""The evidence of probes: the elements of a shard, its paths, losses and answers."""
