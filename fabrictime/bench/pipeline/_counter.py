"""A stream worker whose only stage counts the messages of `fabric.probes`: `python -m ... SETTINGS FILE`.

Everything but the stage is the product's worker: the Faust app, its consumer, assignment, commits. SETTINGS
is `StreamSettings` as JSON. FILE is rewritten, with the count and the process's seconds of processor time,
at the assignment of partitions, before a message is fetched, and then every 10,000 messages.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from schemas.kafka.message import Message
from schemas.topics import PROBES
from streams import app
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import NEVER_NS, Input, Moment, Operator, Output, Owner, Past, Stage
from streams.runtime.settings import StreamSettings

COUNT_EVERY: Final = 10_000


class _Counts:
    """The number of messages of all partitions of this process."""

    file: Path

    def __init__(self) -> None:
        self._counted = 0
        self._first: dict[str, float] = {}
        """The counts as reported before the first message."""

    def add(self, messages: int) -> None:
        """Count messages."""
        before, self._counted = self._counted, self._counted + messages
        if before // COUNT_EVERY != self._counted // COUNT_EVERY:
            self.report()

    def report(self) -> None:
        """Write the count and the processor time so far."""
        progress = {"messages": self._counted, "cpu_s": time.process_time(), "at_s": time.monotonic()}
        self._first = self._first or progress
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps([self._first, progress]), encoding="utf-8")
        fresh.replace(self.file)


class _CountOperator(Operator):
    """Counts the messages of a partition; each message is finished at once."""

    def __init__(self, counts: _Counts) -> None:
        super().__init__()
        self._counts = counts

    def restore(self, past: Past, tables: FabricTables) -> None:
        """Record the processor time before the first message; there is no state to restore."""
        self._counts.report()

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        """Count messages."""
        self._counts.add(len(messages))

    def due_ns(self) -> int:
        """Return a time that is never reached, since no work becomes due."""
        return NEVER_NS

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        """Return no outputs."""
        return ()


class _CountStage(Stage):
    """A stage that only counts messages, in place of the delay stage."""

    name = "delays"
    owner = PROBES
    inputs = (Input(PROBES),)
    outputs = ()

    def __init__(self) -> None:
        self._counts = _Counts()

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> _CountOperator:
        """Return the operator of a partition."""
        return _CountOperator(self._counts)


def main(settings: StreamSettings, file: Path) -> int:
    """Run the worker until SIGTERM; return its exit code."""
    _Counts.file = file
    app.STAGES = (("map", _CountStage),)  # type: ignore[misc]
    return app.main(settings)


if __name__ == "__main__":
    sys.exit(main(StreamSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2])))
