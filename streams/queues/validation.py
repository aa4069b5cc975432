"""Validates decoded `PathQueueing` records before queue inference."""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

import numpy as np

from schemas.codec import BadRecord
from schemas.records import PathQueueing
from schemas.topics import MAX_ELEMENTS
from streams.delays.queueing import SUB_SLOTS
from streams.runtime.units import NS_PER_S

__all__ = ["validate_queueing"]

MAX_DELAY_NS: Final = 100 * NS_PER_S
MAX_AWAY_NS: Final = 60 * NS_PER_S
"""Largest difference of a record's times from the present."""
MIN_SLOT_NS: Final = 1_000


def validate_queueing(record: PathQueueing, now_ns: int) -> PathQueueing:
    """Return a record with consistent columns and times near `now_ns` (fabric time).

    Raises BadRecord for any other.
    """
    rows, cells = len(record["nic"]), len(record["slot"])
    _check_lengths(record, rows, cells)
    if rows:
        _check_rows(record)
    if cells:
        _check_cells(record)
    if not MIN_SLOT_NS <= record["slot_ns"] <= NS_PER_S // SUB_SLOTS:
        raise _bad("slot_ns", record["slot_ns"], "1 us to 250 ms")
    for name, at_ns in (("start_ns", record["start_ns"]), ("complete_ns", record["complete_ns"])):
        if at_ns and abs(at_ns - now_ns) > MAX_AWAY_NS:
            raise _bad(name, at_ns, f"within 60 s of {now_ns}")
    return record


def _check_lengths(record: PathQueueing, rows: int, cells: int) -> None:
    row_columns: dict[str, Sized] = {
        "peer": record["peer"],
        "path": record["path"],
        "direction": record["direction"],
        "floor_ns": record["floor_ns"],
        "noise_ns": record["noise_ns"],
        "singles": record["singles"],
        "idle": record["idle"],
        "lost": record["lost"],
        "cells": record["cells"],
    }
    cell_columns: dict[str, Sized] = {
        "count": record["count"],
        "min_ns": record["min_ns"],
        "mean_ns": record["mean_ns"],
    }
    for columns, length in ((row_columns, rows), (cell_columns, cells)):
        for name, column in columns.items():
            if len(column) != length:
                raise _bad(name, f"{len(column)} elements", length)
    optional: dict[str, tuple[Sized, int]] = {
        "at_ns": (record["at_ns"], cells),
        "dscp": (record["dscp"], rows),
        "ce": (record["ce"], cells),
    }
    for name, (column, length) in optional.items():
        if len(column) not in (0, length):
            raise _bad(name, f"{len(column)} elements", f"{length}, or none")
    if rows > MAX_ELEMENTS:
        raise _bad("nic", f"{rows} rows", f"at most {MAX_ELEMENTS}")
    total = int(np.sum(record["cells"]))
    if total != cells:
        raise _bad("cells", f"{total} together", cells)


def _check_rows(record: PathQueueing) -> None:
    for name, column in (("nic", record["nic"]), ("peer", record["peer"])):
        if np.max(column) >= len(record["nics"]):
            raise _bad(name, np.max(column), f"below {len(record['nics'])}")
    low, high = np.min(record["direction"]), np.max(record["direction"])
    if not (low >= 1 and high <= 3):
        raise _bad("direction", f"{low} to {high}", "1 to 3")


def _check_cells(record: PathQueueing) -> None:
    if np.min(record["count"]) < 1:
        raise _bad("count", np.min(record["count"]), "at least 1")
    if len(record["ce"]) and np.any(np.asarray(record["ce"]) > np.asarray(record["count"])):
        raise _bad("ce", "more marks than samples", "at most count")
    largest = np.max(np.abs(record["mean_ns"]))
    if largest > MAX_DELAY_NS:
        raise _bad("mean_ns", largest, "at most 100 s")
    if int(np.max(record["slot"])) * record["slot_ns"] > MAX_AWAY_NS:
        raise _bad("slot", np.max(record["slot"]), "within 60 s of start_ns")
    if len(record["at_ns"]) and np.max(record["at_ns"]) >= record["slot_ns"]:
        raise _bad("at_ns", np.max(record["at_ns"]), f"below slot_ns {record['slot_ns']}")


def _bad(field: str, found: object, expected: object) -> BadRecord:
    return BadRecord("OUT_OF_RANGE", f"PathQueueing.{field}: {found}, expected {expected}")
