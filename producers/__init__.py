"""Observers of the fleet, which write to the log: one folder per observed subject."""
