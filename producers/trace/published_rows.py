"""Decides whether the record of a pair of NICs must be published again. This module is pure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from schemas.records import FlowRoute, PathMap

Row = TypeVar("Row", FlowRoute, PathMap)

REPUBLISH_S: Final = 900.0
SILENT_REPUBLISH_S: Final = 30.0
"""Time between two records of a pair with a path that loses every probe: the dead link is localised with its
routes, and a wrong record in the log, say a forged one, must not stand in their place for long."""
MIN_RECORD_GAP_S: Final = 0.5
"""Minimum time between two records of a pair, unless one of its routes moved."""


@dataclass(slots=True)
class PublishedRows(Generic[Row]):
    """The rows of the last published record of a pair of NICs, and whether they are outdated."""

    rows: list[Row] | None = None
    """Rows of the last record; None before the first one."""
    at_s: float = 0.0
    jitter_s: float = 0.0
    """Additional time until the unchanged record is published again, so that records of many pairs spread."""
    next_s: float = 0.0
    """Earliest time at which the next record may be published."""
    dirty: bool = False
    moved: bool = False
    """True if the published record is wrong, not only incomplete."""

    def is_old(self, now_s: float, silent: bool = False) -> bool:
        """Return whether the record must be published again although nothing changed.

        `silent` means that a path of the pair loses every probe.
        """
        pause_s = SILENT_REPUBLISH_S if silent else REPUBLISH_S + self.jitter_s
        return self.rows is not None and now_s - self.at_s > pause_s

    def replace(self, rows: list[Row], now_s: float, rng: random.Random) -> bool:
        """Store the present rows; return whether they differ from the published rows and must be sent."""
        self.dirty = self.moved = False
        if not rows or (self.rows is not None and _without_since(rows) == _without_since(self.rows)):
            return False
        self.rows, self.next_s = rows, now_s + MIN_RECORD_GAP_S
        self.at_s, self.jitter_s = now_s, rng.uniform(0, REPUBLISH_S / 4)
        return True


def _without_since(rows: Iterable[FlowRoute] | Iterable[PathMap]) -> list[dict[str, object]]:
    """Return copies of the rows without the time of their last change, for comparison."""
    return [{key: value for key, value in row.items() if key != "since_ns"} for row in rows]
