"""Reduces one source's samples to `PathQueueing`: delays above each path's floor in short slots.

If a worker is killed, its successor publishes the unpublished samples again under other offset ranges.
Readers skip a record whose range begins before the offsets that they have taken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from native.core import ClockLine, PairFits, ProbeBatches, ProbeColumns, batches_of
from native.core.columns import QueueingColumns
from native.core.queueing import SlotReducer
from schemas.kafka.message import Message
from schemas.log_time import STEP_NS
from schemas.records import PathQueueing
from schemas.topics import MAX_ELEMENTS, PROBES
from schemas.unexpected import DATA_ERRORS, refusal
from streams.runtime.columnar import as_column
from streams.runtime.pipeline_constants import SUB_SLOTS
from streams.runtime.tables import Member

log = logging.getLogger(__name__)

SETTLE_NS, FAST_SETTLE_NS, FAST_SLOT_NS = 30_000_000, 20_000_000, 1_000_000
"""Age that a sample must have for a flush to contain it for certain, with its timestamps: the first value.
The second applies if slots are no longer than the third: fast links add little queueing delay."""
LATE_NS, LATEST_NS = 10_000_000, 120_000_000
"""Wait for delayed probes beyond the longest round trip within `RECENT_NS`, and the limit of the whole wait.
Without this wait the deepest queues would be underestimated."""
RECENT_NS: Final = 1_000_000_000
GONE_NS: Final = 500_000_000
"""Time without a batch after which a prober is no longer awaited."""
MAX_AWAY_NS: Final = 60_000_000_000
"""Largest time between a sample and its flush, and between a prober's flushes. Slots count from the first
sample of all NICs, so one wrong time would make the record useless for all of them."""
MAX_CELLS: Final = 32_768
FORGET_NS: Final = 600_000_000_000


@dataclass(slots=True)
class _Prober:
    """Flush and append time of one prober's newest batch, and its longest recent round trip, in ns."""

    flushed_ns: int = 0
    """Fabric time of the newest batch's flush."""
    seen_ns: int = 0
    """Append time of that batch."""
    longest_rtt_ns: int = 0
    """The longest recent round trip of a probe."""
    longest_at_ns: int = 0
    """Append time of the batch with that probe."""
    unconfirmed_ns: int = 0
    """Fabric time of the last batch's flush, if it was far from the previous one."""

    def confirms(self, flush_ns: int) -> bool:
        """Return whether a flush is near the last flush; two distant flushes in sequence prove a step."""
        away_ns = min(abs(flush_ns - known_ns) for known_ns in (self.flushed_ns, self.unconfirmed_ns))
        self.unconfirmed_ns = flush_ns if away_ns > MAX_AWAY_NS else 0
        return away_ns <= MAX_AWAY_NS


class SourceQueueing:
    """The samples of one source partition since the last `take`, and the delay floors of its paths."""

    def __init__(self, source: str, slot_ns: int) -> None:
        self.source = source
        self._reducer = SlotReducer(slot_ns)
        self._probers: dict[str, _Prober] = {}
        self._first: int | None = None
        self._next = 0
        self._newest_ns = 0
        self._forgot_ns = 0

    @property
    def waiting(self) -> bool:
        """Return whether there are samples for the next `take`."""
        return self._first is not None

    @property
    def first_offset(self) -> int | None:
        """Offset of the first message whose samples wait for `take`; None if none waits."""
        return self._first

    def set_slot_ns(self, slot_ns: int) -> None:
        """Set another slot length, used from the next `take` on, for example for faster NICs."""
        self._reducer.slot_ns = slot_ns

    def recover(self, records: Iterable[PathQueueing]) -> None:
        """Load the paths' delay floors from the previous owner's newest records; skip unfit records."""
        for record in records:
            if record["source"] != self.source:
                continue
            try:
                self._recover(record)
            except DATA_ERRORS as error:
                log.warning("%s: floors of a record are left out: %s", self.source, refusal(error))

    def _recover(self, record: PathQueueing) -> None:
        nics = record["nics"]
        dscps = record["dscp"] if len(record["dscp"]) else [0] * len(record["nic"])
        for nic, peer, path, direction, floor_ns, noise_ns, cells, dscp in zip(
            record["nic"],
            record["peer"],
            record["path"],
            record["direction"],
            record["floor_ns"],
            record["noise_ns"],
            record["cells"],
            dscps,
            strict=True,
        ):
            if cells:
                self._reducer.set_noise(nics[nic], nics[peer], noise_ns)
                self._reducer.set_floor(
                    nics[nic], nics[peer], path, direction, floor_ns, record["start_ns"], dscp
                )

    def learn(self, fits: Mapping[str, PairFits]) -> None:
        """Set the timestamp noise of each pair from one window's fits; `fits` maps probers to their fits."""
        for nic, pair_fits in fits.items():
            for peer, noise_ns in zip(pair_fits.peers, pair_fits.noise_ns.tolist(), strict=True):
                self._reducer.set_noise(nic, peer, noise_ns)

    def add(self, batch: ProbeColumns, append_ns: int, offset: int, models: Mapping[str, ClockLine]) -> None:
        """Add the samples of one probe batch, which the log appended at `append_ns` under `offset`."""
        message = Message(append_ns, PROBES.name, 0, offset, None, b"")
        self.add_messages([message], batches_of([batch]), models)

    def add_messages(
        self, messages: Sequence[Message], batches: ProbeBatches, models: Mapping[str, ClockLine]
    ) -> None:
        """Add the samples of the next messages, in order of their offsets; skip rejected messages."""
        plausible = [
            number
            for number, message in enumerate(messages)
            if self._observe(message, batches, number, models)
        ]
        self._reducer.add(batches, plausible, models)

    def _observe(
        self, message: Message, batches: ProbeBatches, number: int, models: Mapping[str, ClockLine]
    ) -> bool:
        """Update the prober of message `number`; return whether the message's samples can be used."""
        head = batches.head(number)
        if head is None:
            return False
        nic, _, _, clock_ns, system_ns, _, _ = head
        if self._first is None:
            self._first = message.offset
        self._next = message.offset + 1
        model, append_ns = models.get(nic), message.append_ns
        flush_ns = system_ns if model is None else clock_ns + model.correction_ns(clock_ns)
        if append_ns < self._newest_ns - STEP_NS:
            self._step_back(append_ns)
        away_ns, longest_rtt_ns = self._reducer.extremes(batches, number)
        if away_ns > MAX_AWAY_NS:
            return False  # the slots of all NICs of a record count from its first sample
        prober = self._probers.get(nic)
        if prober is None:
            prober = self._probers[nic] = _Prober()
        elif not prober.confirms(flush_ns):
            return False
        prober.flushed_ns, prober.seen_ns = flush_ns, append_ns
        if longest_rtt_ns >= prober.longest_rtt_ns or append_ns - prober.longest_at_ns > RECENT_NS:
            prober.longest_rtt_ns, prober.longest_at_ns = longest_rtt_ns, append_ns
        self._newest_ns = max(self._newest_ns, append_ns)
        return True

    def _step_back(self, append_ns: int) -> None:
        """Limit the times at which probers were last seen to `append_ns`, because log time stepped back."""
        self._newest_ns = append_ns
        self._forgot_ns = min(self._forgot_ns, append_ns)
        for prober in self._probers.values():
            prober.seen_ns = min(prober.seen_ns, append_ns)
            prober.longest_at_ns = min(prober.longest_at_ns, append_ns)

    def take(self, members: Mapping[str, Member]) -> list[PathQueueing]:
        """Return records of all samples since the last call.

        Each shard gets at least one record, but without batches no records are returned. `members` contains
        every prober of the source.
        """
        if self._first is None:
            return []
        columns = self._reducer.take()
        rows_of_shard = self._rows_of_shard(columns, members)
        records: list[PathQueueing] = []
        for shard, rows in rows_of_shard.items():
            complete_ns = self._complete_ns(members, shard)
            parts = _cut(rows, columns.cells.tolist())
            for number, part in enumerate(parts):
                selected = columns if len(part) == len(columns.cells) else columns.of_rows(np.array(part))
                records.append(self._record(selected, shard, number, len(parts), complete_ns))
        self._first = None
        if self._newest_ns - self._forgot_ns > FORGET_NS:
            self._reducer.forget(columns.start_ns - FORGET_NS)
            self._forgot_ns = self._newest_ns
        return records

    def _rows_of_shard(
        self, columns: QueueingColumns, members: Mapping[str, Member]
    ) -> dict[str, Sequence[int]]:
        """Return, by shard name, the indices of the rows whose prober belongs to that shard."""
        probers = columns.prober.tolist()
        shard_of = {number: members[self._reducer.nics[number]].shard for number in set(probers)}
        if len(set(shard_of.values())) == 1:
            return dict.fromkeys(shard_of.values(), range(len(probers)))
        rows: dict[str, list[int]] = {shard: [] for shard in sorted(set(shard_of.values()))}
        for row, number in enumerate(probers):
            rows[shard_of[number]].append(row)
        return dict(rows)

    def _record(
        self, columns: QueueingColumns, shard: str, part: int, parts: int, complete_ns: int
    ) -> PathQueueing:
        """Return part `part` of `parts` of a shard's record, with the given columns as arrays."""
        nic, peer, nics = self._reducer.table(columns.prober, columns.peer)
        return {
            "shard": shard,
            "source": self.source,
            "first_offset": self._first or 0,
            "next_offset": self._next,
            "part": part,
            "parts": parts,
            "start_ns": columns.start_ns,
            "slot_ns": self._reducer.slot_ns,
            "complete_ns": complete_ns,
            "synced": 3 not in columns.direction.tolist(),
            "nic": as_column(nic),
            "peer": as_column(peer),
            "path": as_column(columns.path),
            "direction": as_column(columns.direction),
            "floor_ns": as_column(columns.floor_ns),
            "noise_ns": as_column(columns.noise_ns),
            "singles": as_column(columns.singles),
            "idle": as_column(columns.idle),
            "lost": as_column(columns.lost),
            "cells": as_column(columns.cells),
            "slot": as_column(columns.slot),
            "count": as_column(columns.count),
            "min_ns": as_column(columns.min_ns),
            "mean_ns": as_column(columns.mean_ns),
            "at_ns": as_column(columns.at_ns),
            "dscp": as_column(columns.dscp),
            "ce": as_column(columns.ce),
            "nics": nics,
        }

    def _complete_ns(self, members: Mapping[str, Member], shard: str) -> int:
        for nic, prober in list(self._probers.items()):
            if self._newest_ns - prober.seen_ns > GONE_NS:
                del self._probers[nic]
        here = [
            prober for nic, prober in self._probers.items() if nic in members and members[nic].shard == shard
        ]
        settle_ns = FAST_SETTLE_NS if SUB_SLOTS * self._reducer.slot_ns <= FAST_SLOT_NS else SETTLE_NS
        late_ns = max((prober.longest_rtt_ns for prober in here), default=0) + LATE_NS
        flushed_ns = min((prober.flushed_ns for prober in here), default=0)
        return max(0, flushed_ns - max(settle_ns, min(late_ns, LATEST_NS)))


def _cut(rows: Sequence[int], cells: Sequence[int]) -> list[Sequence[int]]:
    """Split row numbers into parts of at most MAX_ELEMENTS rows and about MAX_CELLS cells.

    `cells`: number of cells of each row, for the rows of all shards.
    """
    if len(rows) <= MAX_ELEMENTS and sum(cells) <= MAX_CELLS:
        return [rows]
    parts: list[list[int]] = [[]]
    filled = 0
    for row in rows:
        if parts[-1] and (len(parts[-1]) == MAX_ELEMENTS or filled + cells[row] > MAX_CELLS):
            parts.append([])
            filled = 0
        parts[-1].append(row)
        filled += cells[row]
    return list(parts)
