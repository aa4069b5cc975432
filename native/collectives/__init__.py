"""Shared memory between the profilers of a process and the reporter of its host.

The writer is C, linked into each profiler (segment.h, writer.h). The reporter reads with `reader.Reader`.
"""

from dataclasses import dataclass


class SegmentError(ValueError):
    """A file descriptor does not contain a valid segment."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator recorded in a segment; its texts are printable (labels.py)."""

    id: int
    """Equal at all ranks."""
    name: str
    rank: int
    ranks: int
    """0: unknown."""
    nodes: int
    """0: unknown."""
    gpu: str
    """PCI address or index; empty: unknown."""
    generation: int = 1
    """Number of communicators that have used the index, this one included."""
    ended: bool = False
    """True once the program has freed it."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of a segment; they never decrease."""

    dropped: int
    """Events that found their ring full."""
    misuse: int
    """Calls that the profiler ignored."""
    ringless: int
    """Events of threads that found no ring."""
    invalid: int
    """Events that no correct writer writes."""
    rings: int
    """Rings that are or were in use."""
    closed: bool
    """Whether the last operation has ended."""
