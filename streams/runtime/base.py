"""The interface of detectors that the log's clock drives.

A detector is pure: it takes records in log order, and the log's clock is its only clock. So a replay of the
same records gives the same output. A stage passes records to it, calls `evaluate` once `due_ns` has passed,
and publishes the output.

A detector also has `ingest`, which takes one record, and `recover`, which restores its state from the records
that it published before. Their arguments depend on the records. A detector that only evaluates records as
they come has just these two, as `ContentionDetector`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["Detector"]

Output_co = TypeVar("Output_co", covariant=True)


class Detector(Protocol[Output_co]):
    """A detector. All times are nanoseconds of log append time."""

    @property
    @abstractmethod
    def due_ns(self) -> int:
        """Time at which `evaluate` next has something to do."""

    @abstractmethod
    def evaluate(self, now_ns: int) -> Sequence[Output_co]:
        """Advance the log's clock to `now_ns`; return the output that became due."""
