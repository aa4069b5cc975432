"""A small stage that publishes all that its outputs may depend on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar

from schemas.checks import BadRecord
from schemas.kafka.message import Message
from schemas.topics import CLOCK_OFFSETS, CONFIG, DELAYS, FLOWS, INVENTORY, LINKS, PATHS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Input, Moment, Operator, Output, Owner, Past, Stage, Work

ERRORS: dict[bytes | None, Exception] = {b"broken": ValueError("broken"), b"lost": ConnectionError("lost")}
"""Values at which `take` fails, by the record's fault or by the log's."""

LATER_NS = 5_000_000
"""Time after which an operator is due that has taken the value `later`."""


class NotingOperator(Operator):
    """Publishes what it has taken, at once; the test sets what is due, needed and slow."""

    adapts = True

    def __init__(self, stage: NotingStage, owner: Owner, partition: int) -> None:
        super().__init__()
        self.stage, self.owner, self.partition = stage, owner, partition
        self.taken: list[int] = []
        self.batches: list[int] = []
        """Messages of each `take`."""
        self.advances: list[Moment] = []
        self.needed = NEVER_NS
        self.due = NEVER_NS
        self.paces: list[int] = []
        """What `keep_up` was told: ns that messages wait."""
        self.is_closed = self.is_working = False
        self.text = ""
        self._notes: list[str] = []
        self._level = 0

    def restore(self, past: Past, tables: FabricTables) -> None:
        self.stage.restored.append(self.partition)

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        assert not self.is_working
        self.batches.append(len(messages))
        for message in messages:
            if message.value in ERRORS:
                raise ERRORS[message.value]
            if message.value == b"bad":
                self.rejected.append((message, BadRecord("MALFORMED", "no")))
                continue
            self.taken.append(message.offset)
            if message.value == b"later":
                self.due = message.log_ns + LATER_NS
            elif message.value != b"quiet":
                self._notes.append(f"{message.offset}@{message.log_ns}")
        flows = tables.flows.of("fabric")
        flows.advance(messages[-1].append_ns)
        self._notes += [f"{len(flows.hosts())} hosts, {flows.count()} flows"] if self._notes else []
        tables.flows.forget(flows)

    def due_ns(self) -> int:
        assert not self.is_working
        return 0 if self._notes else self.due

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output] | Work:
        self.advances.append(moment)
        if moment.log_ns < self.due_ns():
            return ()
        if not self._notes:
            self.due = NEVER_NS
        texts = [
            *self._notes,
            f"{moment.log_ns} {moment.offset_ns} {self._level} {len(tables.topology.nodes)} nodes",
        ]
        self._notes = []
        outputs = [Output(DELAYS, "key", body=" ".join(texts).encode())]
        if not self.stage.is_heavy:
            return outputs
        self.is_working = True
        return lambda: self._work(outputs)

    def _work(self, outputs: Sequence[Output]) -> Sequence[Output]:
        self.stage.working.set()
        assert self.stage.go_on.wait(10)
        self.is_working = False
        return outputs

    def needed_from(self) -> int:
        assert not self.is_working
        return self.needed

    def close(self, tables: FabricTables) -> None:
        assert not self.is_closed
        self.is_closed = True
        self.stage.closed.append(self.partition)

    def status(self) -> str:
        return self.text

    def keep_up(self, spent_ns: int, waited_ns: int) -> None:
        self.paces.append(waited_ns)
        self._level = len(self.paces) // 4

    def level(self) -> str:
        return str(self._level) if self._level else ""

    def set_level(self, level: str) -> None:
        self._level = int(level or 0)


class NotingStage(Stage):
    """Owns partitions of `fabric.links`."""

    name = "noting"
    owner = LINKS
    inputs = (Input(LINKS),)
    outputs = (DELAYS,)
    tables = (INVENTORY, CLOCK_OFFSETS, PATHS, CONFIG, FLOWS)

    def __init__(self) -> None:
        self.restored: list[int] = []
        self.closed: list[int] = []
        self.is_heavy = False
        self.working, self.go_on = threading.Event(), threading.Event()

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> NotingOperator:
        return NotingOperator(self, owner, partition)


class SteppedNotingStage(NotingStage):
    """Its log time is append time."""

    uses_append_time: ClassVar[bool] = True


class HastyNotingStage(NotingStage):
    """Takes no messages that are older than 500 ms while newer ones wait."""

    inputs = (Input(LINKS, skip_after_ns=500_000_000),)
