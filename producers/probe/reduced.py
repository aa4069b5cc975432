"""Reduces a prober's samples to clock fits and delays per window (`probes.publish = reduced`).

The result is the same `ClockFits` and `PathDelays` as from the delay stage, with the NIC as its own source.
The inputs are the prober's batches with their log time and the newest `ClockOffsets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from native.core import ClockLine, NicWindow, PairFits, PathDelayColumns, ProbeColumns
from schemas import records
from schemas.log_time import WindowOrder
from schemas.records import ClockFits, ClockOffsets, ClockSync, PathDelay, PathDelays
from schemas.topics import MAX_ELEMENTS
from schemas.validation import MAX_NS, validate_offsets

HOLDOVER_NS: Final = 60_000_000_000
FRESH_NS: Final = 10_000_000_000
JUMP_FLOOR_NS: Final = 100_000
JUMP_RATE: Final = 1e-3
"""A clock has jumped if its offset from the system clock changes too much between two flushes: by more than
`JUMP_FLOOR_NS` plus this share of the time between them."""


@dataclass(frozen=True, slots=True)
class _ClockState:
    model: ClockLine
    state: ClockSync
    window: int
    end_log_ns: int


@dataclass(slots=True)
class ClockView:
    """The newest model of every clock, from `ClockOffsets` records, which may arrive in any order."""

    log_offset_ns: int = 0
    """Fabric time minus log append time."""
    window_ns: int = 1_000_000_000
    _newest_window: int = -1
    _clocks: dict[str, _ClockState] = field(default_factory=dict)
    _order: WindowOrder = field(default_factory=WindowOrder)

    def update(self, record: ClockOffsets, append_ns: int = MAX_NS) -> None:
        """Apply a `ClockOffsets` record appended at `append_ns`. Raises BadRecord for an implausible one."""
        record, _ = validate_offsets(record, append_ns, self.window_ns)
        if self._order.steps_back(record):
            self._forget_later(record)
        if record["window"] >= self._newest_window:
            self._newest_window = record["window"]
            self.log_offset_ns = record["log_offset_ns"]
        end_log_ns = record["window_end_ns"] - record["log_offset_ns"]
        for clock in record["clocks"]:
            clock_line = self._clocks.get(clock["clock"])
            if clock_line is None or clock_line.window <= record["window"]:
                model = ClockLine(
                    clock["at_ns"],
                    clock["offset_ns"],
                    clock["drift_ppb"],
                    clock["bound_ns"],
                    clock["offset_fraction_ns"],
                )
                self._clocks[clock["clock"]] = _ClockState(
                    model, clock["state"], record["window"], end_log_ns
                )

    def _forget_later(self, record: ClockOffsets) -> None:
        """Mark models of later windows as older than this record, because log time stepped back."""
        window, end_log_ns = record["window"], record["window_end_ns"] - record["log_offset_ns"]
        self._newest_window = min(self._newest_window, window)
        for name, clock_line in self._clocks.items():
            if clock_line.window > window:
                self._clocks[name] = replace(clock_line, window=window - 1, end_log_ns=end_log_ns)

    def state(self, clock: str, log_ns: int) -> ClockSync:
        """Return SYNCED, HOLDOVER or UNSYNCED for a clock at this log time."""
        clock_line = self._clocks.get(clock)
        if (
            clock_line is None
            or clock_line.state == ClockSync.UNSYNCED
            or log_ns - clock_line.end_log_ns > HOLDOVER_NS
        ):
            return ClockSync.UNSYNCED
        is_fresh = log_ns - clock_line.end_log_ns < FRESH_NS
        return ClockSync.SYNCED if is_fresh and clock_line.state == ClockSync.SYNCED else ClockSync.HOLDOVER

    def models(self, clock_of: Mapping[str, str], log_ns: int) -> dict[str, ClockLine]:
        """Return, by NIC, the model of each usable clock. `clock_of` maps each NIC to its clock."""
        return {
            nic: self._clocks[clock].model
            for nic, clock in clock_of.items()
            if self.state(clock, log_ns) != ClockSync.UNSYNCED
        }


class Reducer:
    """Collects one prober's samples in a window; `add` returns the records of a window that it closes."""

    def __init__(self, nic: str, shard: str, clock: str, window_ns: int, view: ClockView) -> None:
        self._nic, self._shard, self._clock = nic, shard, clock
        self._window_ns = window_ns
        self._view = view
        self._window = -1
        self._samples = NicWindow(nic)
        self._batches = self._lost = 0
        self._last = (0, 0)
        self._step_ns = 0
        self._run = self._last_batch = self._append_ns = 0

    def add(
        self, batch: ProbeColumns, log_ns: int, clock_of: Mapping[str, str]
    ) -> tuple[list[ClockFits], list[PathDelays]]:
        """Add a batch published at `log_ns`; return the records of the window that it closed.

        The lists are empty if the batch closed no window. `clock_of` maps each peer to its clock. Windows
        never go back.
        """
        window = max(log_ns // self._window_ns, self._window)
        closed: tuple[list[ClockFits], list[PathDelays]] = ([], [])
        if self._window not in (-1, window):
            closed = self.close(clock_of)
        self._window = window
        self._samples.add(batch)
        self._batches += 1
        self._lost += int(batch.lost.sum())
        if self._last != (0, 0):
            elapsed = batch.system_ns - self._last[1]
            step = batch.clock_ns - self._last[0] - elapsed
            if abs(step) > JUMP_FLOOR_NS + JUMP_RATE * abs(elapsed) and abs(step) > abs(self._step_ns):
                self._step_ns = step
        self._last = (batch.clock_ns, batch.system_ns)
        self._run, self._last_batch, self._append_ns = batch.run, batch.batch, log_ns
        return closed

    def close(self, clock_of: Mapping[str, str]) -> tuple[list[ClockFits], list[PathDelays]]:
        """Return the open window's records, empty lists if it had no batch, and open a new window."""
        if not self._batches:
            return [], []
        start_ns = self._window * self._window_ns
        log_ns = start_ns + self._window_ns
        models = self._view.models({**clock_of, self._nic: self._clock}, log_ns)
        fits = self._clock_fits(self._samples.fit())
        delays = self._path_delays(self._samples.delays(models.get(self._nic), models), start_ns)
        self._samples = NicWindow(self._nic)
        self._batches = self._lost = self._step_ns = 0
        return fits, delays

    def _clock_fits(self, fits: PairFits) -> list[ClockFits]:
        start_ns = self._window * self._window_ns
        nic: records.NicWindow = {
            "nic": self._nic,
            "clock": self._clock,
            "batches": self._batches,
            "samples": self._samples.samples,
            "lost": self._lost,
            "lost_batches": 0,
            "restarts": 0,
            "clock_jump_ns": self._step_ns,
            "clock_ns": self._last[0],
            "system_ns": self._last[1],
            "run": self._run,
            "last_batch": self._last_batch,
            "append_ns": self._append_ns,
        }
        pairs = cast("list[records.PairFit]", fits.records(self._nic))
        parts = max(1, -(-len(pairs) // MAX_ELEMENTS))
        return [
            {
                "shard": self._shard,
                "source": self._nic,
                "window": self._window,
                "window_start_ns": start_ns,
                "window_end_ns": start_ns + self._window_ns,
                "part": part,
                "parts": parts,
                "first_offset": -1,
                "next_offset": -1,
                "lag_messages": -1,
                "messages": 0,
                "bytes": 0,
                "samples": 0 if part else self._samples.samples,
                "late": 0,
                "rejected": 0,
                "nics": [] if part else [nic],
                "pairs": pairs[part * MAX_ELEMENTS : (part + 1) * MAX_ELEMENTS],
            }
            for part in range(parts)
        ]

    def _path_delays(self, columns: PathDelayColumns, start_ns: int) -> list[PathDelays]:
        offset_ns = self._view.log_offset_ns
        state = self._view.state(self._clock, start_ns + self._window_ns)
        rows = _rows(columns)
        parts = -(-len(rows) // MAX_ELEMENTS)
        return [
            {
                "nic": self._nic,
                "shard": self._shard,
                "window": self._window,
                "part": part,
                "parts": parts,
                "window_start_ns": start_ns + offset_ns,
                "window_end_ns": start_ns + self._window_ns + offset_ns,
                "state": state,
                "paths": rows[part * MAX_ELEMENTS : (part + 1) * MAX_ELEMENTS],
            }
            for part in range(parts)
        ]


_COUNTS: Final = ("path", "count", "lost", "no_t3", "dscp", "ecn", "forward_ce", "reverse_ce")
_FIGURES: Final = (
    "forward_min_ns",
    "forward_p50_ns",
    "forward_p99_ns",
    "reverse_min_ns",
    "reverse_p50_ns",
    "reverse_p99_ns",
    "rtt_min_ns",
    "rtt_p50_ns",
    "rtt_p99_ns",
    "bound_ns",
)
_BUCKETS: Final = (
    ("forward_bucket_start", "forward_bucket"),
    ("forward_bucket_start", "forward_bucket_count"),
    ("reverse_bucket_start", "reverse_bucket"),
    ("reverse_bucket_start", "reverse_bucket_count"),
)


def _rows(columns: PathDelayColumns) -> list[PathDelay]:
    values: dict[str, list[Any]] = {"peer": columns.peers}
    values |= {name: getattr(columns, name).tolist() for name in _COUNTS}
    values |= {name: _with_null(getattr(columns, name)) for name in _FIGURES}
    values |= {name: _ragged(getattr(columns, start), getattr(columns, name)) for start, name in _BUCKETS}
    return [
        cast("PathDelay", dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)
    ]


def _with_null(values: NDArray[np.float64]) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _ragged(start: NDArray[np.int64], values: NDArray[np.int32]) -> list[list[int]]:
    flat, edges = values.tolist(), start.tolist()
    return [flat[begin:end] for begin, end in pairwise(edges)]
