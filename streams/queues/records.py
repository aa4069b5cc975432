"""Parts of `LinkQueues` records: the totals of a second, and records in parts."""

from __future__ import annotations

from typing import Final, TypedDict

import numpy as np

from native.core.columns import Float64s, Int64s
from schemas.records import LinkQueues
from schemas.topics import MAX_ELEMENTS

__all__ = ["NO_UTILISATION", "SecondTotals", "Utilisation", "in_parts"]


class Depths(TypedDict):
    """The depth fields of a `LinkQueue`."""

    depth_mean_bytes: float
    depth_max_bytes: float
    bound_bytes: float
    samples: int


class Utilisation(TypedDict):
    """The utilisation fields of a `LinkQueue`."""

    utilisation: float | None
    utilisation_bound: float | None
    from_flows: bool


NO_UTILISATION: Final[Utilisation] = {"utilisation": None, "utilisation_bound": None, "from_flows": False}
"""Utilisation in blocks: only the records of whole seconds have it."""


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

    def depths(self, link: int) -> Depths:
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


def in_parts(whole: LinkQueues) -> list[LinkQueues]:
    """Cut a record into parts of at most MAX_ELEMENTS links; without links there is one."""
    links = whole["links"]
    parts = max(1, -(-len(links) // MAX_ELEMENTS))
    return [
        {
            **whole,
            "part": part,
            "parts": parts,
            "links": links[part * MAX_ELEMENTS : (part + 1) * MAX_ELEMENTS],
        }
        for part in range(parts)
    ]
