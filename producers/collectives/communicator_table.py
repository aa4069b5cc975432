"""Numbers the communicators of one process; a number stays valid when the segment's row is reused.

A segment has a limited number of rows for communicators. The profiler reuses a row after its communicator
has ended, while sums of that communicator may be unpublished. So each communicator gets its own number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from native.collectives import Communicator
from native.collectives.reader import NO_COMMUNICATOR, QUEUE_PAIR, Reader


class CommunicatorTable:
    """The communicators that run, and ended communicators with unpublished events."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._changed = -1
        self._number_by_row: npt.NDArray[np.uint16] = np.full(NO_COMMUNICATOR + 1, NO_COMMUNICATOR, np.uint16)
        self._row_by_number: dict[int, int] = {}
        self._generation_by_row: dict[int, int] = {}
        self._ended: set[int] = set()
        self._next = 0
        self.known: dict[int, Communicator] = {}
        """Communicators by number."""
        self.ids = np.zeros(0, np.uint64)
        """Ids of communicators, by number."""
        self.first_id: int | None = None
        """Id of the process's first communicator."""
        self.new: list[int] = []
        """Numbers that were added since the last `take_new`."""

    def refresh(self, used_rows: frozenset[int] = frozenset()) -> None:
        """Read the segment's rows that changed, and those of `used_rows` that have no communicator number."""
        changed = self._reader.communicators_changed
        if changed == self._changed and not used_rows:
            return
        self._changed = changed
        for row, communicator in self._reader.communicators().items():
            number = int(self._number_by_row[row])
            is_seen = self._generation_by_row.get(row) == communicator.generation
            if number != NO_COMMUNICATOR and is_seen:
                self.known[number] = communicator
            elif not is_seen or row in used_rows:
                self._add(row, communicator)

    def _add(self, row: int, communicator: Communicator) -> None:
        while self._next in self.known or self._next == NO_COMMUNICATOR:
            self._next = (self._next + 1) % (NO_COMMUNICATOR + 1)
        number, self._next = self._next, self._next + 1
        self._number_by_row[row], self._row_by_number[number] = number, row
        self._generation_by_row[row] = communicator.generation
        self.known[number] = communicator
        self.new.append(number)
        if number >= len(self.ids):
            self.ids = np.concatenate([self.ids, np.zeros(number + 1 - len(self.ids), np.uint64)])
        self.ids[number] = communicator.id
        if self.first_id is None:
            self.first_id = communicator.id

    def number(self, events: npt.NDArray[Any]) -> None:
        """Replace, in each event, the communicator's row in the segment by the communicator's number."""
        self.refresh()
        is_operation = events["kind"] != QUEUE_PAIR
        rows = events["communicator"]
        is_unknown = is_operation & (self._number_by_row[rows] == NO_COMMUNICATOR) & (rows != NO_COMMUNICATOR)
        if is_unknown.any():
            self.refresh(frozenset(np.unique(rows[is_unknown]).tolist()))
        events["communicator"] = self._number_by_row[rows]

    def take_new(self) -> list[int]:
        """Return the numbers added since the last call; forget communicators that ended before that call.

        Call it after all events read so far are published. An ended communicator is kept until the next call,
        because its last events may not have been read yet.
        """
        new, self.new = [number for number in self.new if number in self.known], []
        for number in self._ended:
            row = self._row_by_number.pop(number)
            if self._number_by_row[row] == number:
                self._number_by_row[row] = NO_COMMUNICATOR
            del self.known[number]
        self._ended = {
            number
            for number, communicator in self.known.items()
            if communicator.ended or self._number_by_row[self._row_by_number[number]] != number
        }
        return new
