"""The memory page that a program of programs.c shares with the bench: its iterations, and its faults."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Final

SLOT_FIELDS, SLOTS = 8, 2
_ITERATIONS: Final = SLOT_FIELDS * SLOTS
_PIDS: Final = _ITERATIONS + 64
_FIELDS: Final = _PIDS + 64
_FROM, _TO, _BEGIN_NS, _END_NS = 3, 4, 6, 7
_FOREVER: Final = 1 << 62
_AHEAD: Final = 12
"""Iterations from now on with which a fault begins: more than any rank is ahead of another."""
_STEP_S: Final = 0.02

KINDS: Final = {
    name: number
    for number, name in enumerate(
        (
            *("COMPUTE", "SLEEP", "WRITE", "BYTES", "COUNT", "SKIP"),
            *("STUCK", "SPIN", "FIFO", "CIRCLE", "EXIT", "PAUSE"),
        ),
        1,
    )
}
"""Faults of programs.c."""
ALL: Final = -1


class Page:
    """The shared page of a program; 64-bit numbers, of which each rank writes only its own."""

    def __init__(self, path: Path, ranks: int) -> None:
        self.path, self._ranks = path, ranks
        path.write_bytes(bytes(8 * _FIELDS))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8 * _FIELDS)

    def close(self) -> None:
        """Unmap the page."""
        self._memory.close()

    def _read(self, place: int) -> int:
        return int(struct.unpack_from("q", self._memory, 8 * place)[0])

    def _write(self, place: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * place, value)

    def iterations(self) -> list[int]:
        """Return the present iteration of each rank; 0 if the rank has not begun."""
        return [self._read(_ITERATIONS + rank) for rank in range(self._ranks)]

    def pids(self) -> list[int]:
        """Return the process id of each rank; 0 if the rank has not begun."""
        return [self._read(_PIDS + rank) for rank in range(self._ranks)]

    def begin(
        self, kind: str, rank: int, value: int, *, every: int = 0, slot: int = 0, once: bool = False
    ) -> None:
        """Request that a fault begins in a coming iteration; with `once`, only in that iteration."""
        first = max(self.iterations()) + _AHEAD
        last = first + 1 if once else _FOREVER
        for place, content in enumerate((KINDS[kind], rank, value, 0, last, every, 0, 0)):
            self._write(slot * SLOT_FIELDS + place, content)
        self._write(slot * SLOT_FIELDS + _FROM, first)

    def end(self, slot: int = 0) -> None:
        """Request that a fault ends in a coming iteration."""
        self._write(slot * SLOT_FIELDS + _TO, max(self.iterations()) + _AHEAD)

    def begun_ns(self, limit_s: float, slot: int = 0) -> int:
        """Wait until a rank has begun the fault; return the time, ns since the epoch.

        After `limit_s` without a begin, return the present time.
        """
        return self._wait(slot * SLOT_FIELDS + _BEGIN_NS, limit_s)

    def ended_ns(self, limit_s: float, slot: int = 0) -> int:
        """Return when the first rank ended the fault, ns since the epoch, or now after `limit_s`."""
        return self._wait(slot * SLOT_FIELDS + _END_NS, limit_s)

    def _wait(self, place: int, limit_s: float) -> int:
        deadline_s = time.monotonic() + limit_s
        while not self._read(place) and time.monotonic() < deadline_s:
            time.sleep(_STEP_S)
        return self._read(place) or time.time_ns()
