"""Validates decoded `PathQueueing` records before queue inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from native.core.queue_cells import check_columns
from schemas.codec import BadRecord
from schemas.records import PathQueueing
from schemas.topics import MAX_ELEMENTS
from streams.runtime.pipeline_constants import SUB_SLOTS
from streams.runtime.units import NS_PER_S

MAX_DELAY_NS: Final = 100 * NS_PER_S
MAX_AWAY_NS: Final = 60 * NS_PER_S
"""Largest difference of a record's times from the present."""
MIN_SLOT_NS: Final = 1_000
ROW_COLUMNS: Final = (
    *("peer", "path", "direction", "floor_ns", "noise_ns", "singles", "idle", "lost", "cells"),
)
CELL_COLUMNS: Final = ("count", "min_ns", "mean_ns")
CHECKED: Final = ("cells", "nic", "peer", "direction", "slot", "count", "at_ns", "ce")
"""Columns whose values are checked against each other."""


def validate_queueing(record: PathQueueing, now_ns: int) -> PathQueueing:
    """Return the record. Raises BadRecord for inconsistent columns or times far from `now_ns` (fabric)."""
    rows, cells = len(record["nic"]), len(record["slot"])
    _check_lengths(record, rows, cells)
    _check_values(record, rows, cells)
    if not MIN_SLOT_NS <= record["slot_ns"] <= NS_PER_S // SUB_SLOTS:
        raise _bad("slot_ns", record["slot_ns"], "1 us to 250 ms")
    for name in ("start_ns", "complete_ns"):
        at_ns = record[name]
        if at_ns and abs(at_ns - now_ns) > MAX_AWAY_NS:
            raise _bad(name, at_ns, f"within 60 s of {now_ns}")
    return record


def _check_lengths(record: PathQueueing, rows: int, cells: int) -> None:
    columns: Mapping[str, Any] = record
    for names, length in ((ROW_COLUMNS, rows), (CELL_COLUMNS, cells)):
        for name in names:
            if len(columns[name]) != length:
                raise _bad(name, f"{len(columns[name])} elements", length)
    for name, length in (("at_ns", cells), ("dscp", rows), ("ce", cells)):
        if len(columns[name]) not in (0, length):
            raise _bad(name, f"{len(columns[name])} elements", f"{length}, or none")
    if rows > MAX_ELEMENTS:
        raise _bad("nic", f"{rows} rows", f"at most {MAX_ELEMENTS}")


def _check_values(record: PathQueueing, rows: int, cells: int) -> None:
    columns: Mapping[str, Any] = record
    total, nic, peer, low, high, count, slot, at_ns, mean_ns, marks_fit = check_columns(
        np.ascontiguousarray(record["mean_ns"], np.float32),
        *(np.ascontiguousarray(columns[name], np.int64) for name in CHECKED),
    )
    if total != cells:
        raise _bad("cells", f"{total} together", cells)
    nics = len(record["nics"])
    for name, largest in (("nic", nic), ("peer", peer)):
        if rows and largest >= nics:
            raise _bad(name, largest, f"below {nics}")
    if low < 1 or high > 3:
        raise _bad("direction", f"{low} to {high}", "1 to 3")
    _check_cells(record, count, slot, at_ns, mean_ns, marks_fit)


def _check_cells(
    record: PathQueueing, count: int, slot: int, at_ns: int, mean_ns: float, marks_fit: bool
) -> None:
    """Raise BadRecord unless the cells' lowest count and highest slot, time and delay are plausible."""
    if count < 1:
        raise _bad("count", count, "at least 1")
    if not marks_fit:
        raise _bad("ce", "more marks than samples", "at most count")
    if mean_ns > MAX_DELAY_NS:
        raise _bad("mean_ns", mean_ns, "at most 100 s")
    if slot * record["slot_ns"] > MAX_AWAY_NS:
        raise _bad("slot", slot, "within 60 s of start_ns")
    if len(record["at_ns"]) and at_ns >= record["slot_ns"]:
        raise _bad("at_ns", at_ns, f"below slot_ns {record['slot_ns']}")


def _bad(field: str, value: object, expected: object) -> BadRecord:
    return BadRecord("OUT_OF_RANGE", f"PathQueueing.{field}: {value}, expected {expected}")
