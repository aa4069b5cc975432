"""Runs stages: the Faust worker, replay and simulation runners, stage base classes and global tables."""
