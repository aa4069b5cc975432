"""Shared memory between the profilers of a process and the reporter of its host.

The writer is C, linked into each profiler: see segment.h and writer.h.
"""
