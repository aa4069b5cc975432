"""The byte streams of the testbed's jobs, moved by C."""
