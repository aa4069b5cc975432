"""Parts of `LinkQueues` records: the totals of a second, and records in parts."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from native.core.columns import Float64s, Int64s
from schemas.topics import MAX_ELEMENTS

__all__ = ["NO_UTILISATION", "SecondTotals", "in_parts"]

Record = dict[str, Any]

NO_UTILISATION: Final[Record] = {
    "utilisation": None,
    "utilisation_bound": None,
    "from_flows": False,
    "slot": [],
    "depth_bytes": [],
}
"""Fields of a link that only one of the two series of records has."""


class SecondTotals:
    """Depths and probes of each link since the start of the second."""

    def __init__(self) -> None:
        self._sum_bytes: Float64s = np.zeros(0)
        self._max_bytes: Float64s = np.zeros(0)
        self._error_bytes: Float64s = np.zeros(0)
        self._slots = 0
        self.samples: Int64s = np.zeros(0, np.int64)

    def grow(self, links: int) -> None:
        """Grow to so many links."""
        self._sum_bytes, self._max_bytes, self._error_bytes, self.samples = (
            np.concatenate([old, np.zeros(links - len(old), old.dtype)])
            for old in (self._sum_bytes, self._max_bytes, self._error_bytes, self.samples)
        )

    def add(self, depth: Float64s, error: Float64s) -> None:
        """Add a block: [slots, links] depths and [links] errors, bytes."""
        self._sum_bytes += depth.sum(axis=0)
        self._max_bytes = np.maximum(self._max_bytes, depth.max(axis=0))
        self._error_bytes = np.maximum(self._error_bytes, error)
        self._slots += len(depth)

    def depths(self, link: int) -> Record:
        """Return the depth fields of a link."""
        return {
            "depth_mean_bytes": float(self._sum_bytes[link] / self._slots),
            "depth_max_bytes": float(self._max_bytes[link]),
            "bound_bytes": float(self._error_bytes[link]),
            "samples": int(self.samples[link]),
        }

    def reset(self) -> None:
        """Start the next second."""
        for column in (self._sum_bytes, self._max_bytes, self._error_bytes, self.samples):
            column[:] = 0
        self._slots = 0


def in_parts(head: Record, links: list[Record]) -> list[Record]:
    """Return records with at most `MAX_ELEMENTS` links each, at least one."""
    parts = max(1, -(-len(links) // MAX_ELEMENTS))
    return [
        head
        | {
            "part": part,
            "parts": parts,
            "links": links[part * MAX_ELEMENTS : (part + 1) * MAX_ELEMENTS],
        }
        for part in range(parts)
    ]
