"""Explains the speed of jobs: combines operations across ranks with records about the network."""
