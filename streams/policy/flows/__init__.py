"""The flows of a shard: their paths, demands, loads and moves."""
