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
from typing import Any, Final

from schemas.kafka.message import Message
from schemas.topics import PROBES
from streams import app
from streams.runtime.assignment import PartitionState
from streams.runtime.settings import StreamSettings
from streams.runtime.shard_stage import PartitionStage

__all__ = ["COUNT_EVERY", "main"]

COUNT_EVERY: Final = 10_000


class _Counter(PartitionStage[None]):
    """Counts messages, which are done at once."""

    name = "map"
    topic = PROBES
    file: Path

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._counted = 0
        self._first: dict[str, float] = {}
        """The report before the first message."""

    async def recover(self, partitions: list[PartitionState[None]]) -> None:
        """Note the processor time before the first message; nothing is to be recovered."""
        self._report()
        for partition in partitions:
            partition.state = None

    async def process(self, partition: PartitionState[None], message: Message) -> None:
        """Count a message; for runtimes that deliver them one by one."""
        self._count(partition, [message])

    async def process_batch(self, partition: PartitionState[None], messages: Sequence[Message]) -> None:
        """Count messages of one partition."""
        self.partitions.begin(partition, messages[-1])
        self._count(partition, messages)

    def _count(self, partition: PartitionState[None], messages: Sequence[Message]) -> None:
        before, self._counted = self._counted, self._counted + len(messages)
        self.partitions.done(partition, [message.offset for message in messages])
        if before // COUNT_EVERY != self._counted // COUNT_EVERY:
            self._report()

    def _report(self) -> None:
        progress = {"messages": self._counted, "cpu_s": time.process_time(), "at_s": time.monotonic()}
        self._first = self._first or progress
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps([self._first, progress]), encoding="utf-8")
        fresh.replace(self.file)


def main(settings: StreamSettings, file: Path) -> int:
    """Run the worker until SIGTERM; return its exit code."""
    _Counter.file = file
    app.STAGES = (("map", _Counter),)  # type: ignore[misc]
    return app.main(settings)


if __name__ == "__main__":
    sys.exit(main(StreamSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2])))
