"""Byte streams of the testbed's jobs, in C."""
