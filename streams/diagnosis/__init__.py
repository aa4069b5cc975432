"""Explains the speed of jobs: joins operations across ranks with the network's records."""
