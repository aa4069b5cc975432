"""Holds the delay stage: it fits probe samples and reduces them to path delays, by source partition.

For each partition of `fabric.probes` and window the stage publishes `ClockFits`, then `PathDelays` for each
NIC, and path queueing many times a second. A new owner reads the messages of unpublished windows again and
cuts windows by the published offset ranges.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.start import tail
from schemas.log_time import STEP_NS
from schemas.records import ClockFits
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, DELAYS, INVENTORY, PATH_QUEUEING, PROBES
from schemas.unexpected import DATA_ERRORS
from streams.delays.counters import JumpLimit, NicState
from streams.delays.messages import decode_messages
from streams.delays.queueing import SourceQueueing
from streams.delays.records import Fitted, clock_fits, fit_window, path_delays
from streams.delays.source_partition import ClosedWindow, Source
from streams.delays.windows import Range
from streams.runtime.columnar import encode_columnar
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import (
    NEVER_NS,
    Input,
    Moment,
    Operator,
    Output,
    Owner,
    Past,
    Restore,
    Stage,
    Work,
    records_of,
)
from streams.runtime.pipeline_constants import QUEUEING_NS, SUB_SLOTS, slot_ns_of
from streams.runtime.tables import Inventory, Member
from streams.runtime.units import NS_PER_MS

log = logging.getLogger(__name__)

CHECK_NS: Final = 20 * NS_PER_MS
"""Interval at which the stage checks whether the partition is silent."""
TAIL_QUEUEING: Final = 40
"""Number of newest `PathQueueing` of each partition from which a new owner learns delay floors."""
TAIL_WINDOWS: Final = 16
"""Number of published windows of each source that a new owner reads: commits are about two windows behind."""
MIN_TAIL_PARTITIONS: Final = 8


class _Members(dict[str, Member]):
    """Maps NIC name to `Member`; a NIC that the inventory lacks gets an entry at its first lookup."""

    def __init__(self, inventory: Inventory) -> None:
        super().__init__()
        self._inventory = inventory

    def __missing__(self, nic: str) -> Member:
        member = self[nic] = self._inventory.member(nic)
        return member

    def __contains__(self, nic: object) -> bool:
        return True


@dataclass(slots=True)
class _Window:
    """A closed window whose records are not yet published."""

    closed: ClosedWindow
    fitted: bool = False


def continued_from(
    records: Iterable[ClockFits], source: str, position: int | None
) -> tuple[list[Range], dict[str, NicState]]:
    """Return the published offset ranges and prober states from which a new owner of `source` continues.

    `records` are its fits in the log's order. The states are those at `position`, the first offset to read.
    """
    ranges: dict[Range, None] = {}
    states: dict[str, tuple[int, NicState]] = {}
    begin = 0 if position is None else position
    for record in records:
        if record["source"] != source:
            continue
        window = record["window"]
        ranges[Range(window, record["first_offset"], record["next_offset"])] = None
        if record["next_offset"] <= begin:
            for nic in record["nics"]:
                state = states.get(nic["nic"])
                if state is None or state[0] <= record["next_offset"]:
                    states[nic["nic"]] = (record["next_offset"], NicState.of(nic))
    return list(ranges), {nic: state for nic, (_, state) in states.items()}


class DelayOperator(Operator):
    """Computes clock fits, path delays and path queueing from the messages of one source partition."""

    def __init__(self, owner: Owner, partition: int, tables: FabricTables) -> None:
        super().__init__()
        settings = owner.settings
        self._settings, self._registry = settings, owner.registry
        self._committed = owner.committed.get(partition)
        self._window_ns = settings.window_ms * NS_PER_MS
        self._silence_ns = settings.silence_ms * NS_PER_MS
        self._limit = JumpLimit(settings.clock_jump_us * 1000, settings.clock_jump_ppm)
        self._name = f"{PROBES.name}/{partition}"
        self._source = Source(self._name, self._window_ns, self._silence_ns)
        self._queueing = SourceQueueing(self._name, self._slot_ns(tables))
        self._windows: deque[_Window] = deque()
        self._newest_ns = 0
        """Append time of the newest message."""
        self._next_offset: int | None = self._committed
        self._checked_ns = 0
        """Log time of the last check whether the partition is silent."""
        self._queueing_ns: int | None = None
        """Log time at which path queueing is due; None if no samples wait."""

    def restore(self, past: Past, tables: FabricTables) -> None:
        """Restore the source's windows from published fits, and delay floors from published queueing."""
        records = records_of(past, CLOCK_FITS, self._registry)
        ranges, states = continued_from(records, self._name, self._committed)
        self._source = Source(self._name, self._window_ns, self._silence_ns, ranges, states)
        self._queueing.recover(records_of(past, PATH_QUEUEING, self._registry))

    def _slot_ns(self, tables: FabricTables) -> int:
        """Return the slot length of `PathQueueing`, ns, from the settings, else from the fastest link."""
        slot_us = self._settings.queue_slot_us
        return (slot_ns_of(tables.fastest_bps()) if slot_us is None else slot_us * 1000) // SUB_SLOTS

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        """Add the samples of messages to the open window and to path queueing."""
        newest_ns = messages[-1].append_ns
        if newest_ns < self._newest_ns - STEP_NS:
            self._step_back(newest_ns)
        self._newest_ns, self._next_offset = newest_ns, messages[-1].offset + 1
        self._checked_ns = min(self._checked_ns, self._newest_ns)  # log time may step back
        batches, rejected = decode_messages(messages, self._registry)
        self.rejected += [(messages[number], error) for number, error in rejected]
        try:
            self._close(self._source.add_messages(messages, batches))
        except DATA_ERRORS as error:  # not foreseen by any check: which of them caused it is not known
            self.rejected += [(message, error) for message in messages]
            return
        try:
            self._queueing.add_messages(messages, batches, tables.clocks.models())
        except DATA_ERRORS as error:
            self.failed.append((self._name, error))
        if self._queueing.waiting and self._queueing_ns is None:
            first_offset = self._queueing.first_offset
            waits_since_ns = (message.append_ns for message in messages if message.offset == first_offset)
            self._queueing_ns = next(waits_since_ns, self._newest_ns) + QUEUEING_NS

    def _close(self, closed: Iterable[ClosedWindow]) -> None:
        for window in closed:
            self._windows.append(_Window(window))
            if window.duplicates:
                log.info("delays: %s: %d duplicate batches", window.source, window.duplicates)

    def due_ns(self) -> int:
        """Return the log time, ns, at which records are due or silence may close a window."""
        if self._windows:
            return 0
        silent_ns = self._silent_ns()
        return silent_ns if self._queueing_ns is None else min(silent_ns, self._queueing_ns)

    def _silent_ns(self) -> int:
        """Return the log time, ns, at which silence of the source may next close a window."""
        window, silent_ns = self._source.open_window, self._newest_ns + self._silence_ns
        if window is not None:
            silent_ns = max(silent_ns, (window + 1) * self._window_ns + self._silence_ns)
        return max(silent_ns, self._checked_ns + CHECK_NS)

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output] | Work:
        """Publish path queueing if it is due, else fits of closed windows, else the windows' path delays.

        The solver waits for fits, so the fits of all partitions come before any delays.
        """
        # The last message is ahead of the log's clock, or the last check if there was no message.
        steps_back = moment.log_ns < (self._newest_ns or self._checked_ns) - STEP_NS
        if steps_back:
            self._step_back(moment.log_ns)
        if self._queueing_ns is not None and moment.log_ns >= self._queueing_ns:
            self._queueing_ns = None
            return self._path_queueing(tables)
        if not self._windows and (steps_back or moment.log_ns >= self._silent_ns()):
            self._checked_ns = moment.log_ns
            self._close(self._source.tick(moment.log_ns, moment.log_ns - self._newest_ns, True))
        unfitted = [window for window in self._windows if not window.fitted]
        if unfitted:
            return self._fits(unfitted, tables)
        return self._delays(self._windows.popleft().closed, tables) if self._windows else ()

    def _step_back(self, log_ns: int) -> None:
        """Move planned publication times back with the log's clock, so that they do not come too late."""
        self._checked_ns = 0
        self._newest_ns = min(self._newest_ns, log_ns - self._silence_ns)
        if self._queueing_ns is not None:
            self._queueing_ns = min(self._queueing_ns, log_ns)

    def _path_queueing(self, tables: FabricTables) -> list[Output]:
        self._queueing.set_slot_ns(self._slot_ns(tables))
        return [
            Output(
                PATH_QUEUEING,
                record["shard"],
                body=encode_columnar(PATH_QUEUEING.type, record, self._registry),
            )
            for record in self._queueing.take(_Members(tables.inventory))
        ]

    def _fits(self, windows: Sequence[_Window], tables: FabricTables) -> Work:
        inventory = tables.inventory
        members = {nic: inventory.member(nic) for window in windows for nic in window.closed.nics}
        shards, unread = inventory.shards(), self._unread()

        def fit() -> list[Output]:
            outputs: list[Output] = []
            for window in windows:
                window.fitted = True
                try:
                    fitted = fit_window(window.closed)
                    outputs += self._outputs(fitted, members, shards, unread)
                    self._queueing.learn(fitted.fits)
                except DATA_ERRORS as error:
                    self.failed.append((self._name, error))
            return outputs

        return fit

    def _unread(self) -> int:
        """Return the number of messages that wait in the source partition; -1 if unknown."""
        if self.end_offset is None or self._next_offset is None:
            return -1
        return max(0, self.end_offset - self._next_offset)

    def _outputs(
        self, fitted: Fitted, members: dict[str, Member], shards: list[str], unread: int
    ) -> list[Output]:
        records = clock_fits(fitted, members, shards, self._window_ns, self._limit, unread)
        return [Output(CLOCK_FITS, record["shard"], record) for record in records]

    def _delays(self, window: ClosedWindow, tables: FabricTables) -> Work:
        clocks, number = tables.clocks, window.cut.window
        models, log_offset_ns = clocks.models(), clocks.log_offset_ns
        end_ns = (number + 1) * self._window_ns
        nics = [
            (nic.samples, tables.inventory.member(name), clocks.state_of(name, end_ns))
            for name, nic in sorted(window.nics.items())
        ]
        head = codec.header(DELAYS.record, self._registry)

        def reduce() -> list[Output]:
            try:
                return [
                    Output(DELAYS, member.nic, body=head + body)
                    for samples, member, state in nics
                    for body in path_delays(
                        samples, member, number, self._window_ns, models, state, log_offset_ns
                    )
                ]
            except DATA_ERRORS as error:
                self.failed.append((self._name, error))
                return []

        return reduce

    def needed_from(self) -> int:
        """Return the offset of the first message of the windows that are not yet published."""
        for window in self._windows:
            if window.closed.offsets:
                return window.closed.offsets[0]
        first_offset = self._source.first_open_offset
        return NEVER_NS if first_offset is None else first_offset


class DelayStage(Stage):
    """Publishes clock fits, path delays and path queueing of each source partition."""

    name = "delays"
    owner = PROBES
    inputs = (Input(PROBES),)
    outputs = (CLOCK_FITS, DELAYS, PATH_QUEUEING)
    tables = (INVENTORY, CLOCK_OFFSETS)
    uses_append_time = True
    reject_reader = "map"

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        """Return the topics to read first: the newest fits of all sources and the newest path queueing."""
        shards = max(1, len(tables.inventory.shards()))
        fits = TAIL_WINDOWS * max(MIN_TAIL_PARTITIONS, partition_count) * shards
        return Restore(CLOCK_FITS, tail(fits)), Restore(PATH_QUEUEING, tail(TAIL_QUEUEING))

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> DelayOperator:
        """Return the operator that processes one source partition."""
        return DelayOperator(owner, partition, tables)
