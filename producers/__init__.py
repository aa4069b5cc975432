"""What observes the fleet and writes to the log: one file a thing observed."""
