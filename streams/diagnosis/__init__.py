"""Explains the speed of jobs by combining their operations across ranks with records about the network."""
