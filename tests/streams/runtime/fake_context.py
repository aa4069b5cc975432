"""A worker's shared state for tests, with a log that acknowledges when the test allows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from faust.types import TP

from schemas import codec
from schemas.topics import LINKS, REJECTS, R, Topic
from schemas.topology import Topology
from schemas.unexpected import DATA_ERRORS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.faust.context import Tap
from streams.runtime.faust.output_counters import OutputCounters
from streams.runtime.faust.rejects import RejectBudget
from streams.runtime.settings import StreamSettings

TP0, TP1 = TP(LINKS.name, 0), TP(LINKS.name, 1)
START_NS = 1_700_000_000_500_000_000
MS = 1_000_000


class FakeContext:
    """A worker's shared state."""

    def __init__(self) -> None:
        self.settings = StreamSettings(buffer_messages=4)
        self.registry = self.signer = None
        self.tables = FabricTables()
        self.topology, self.topology_digest = Topology(), "t0"
        self.caught_up = _set_event()
        self.log_takes = _set_event()
        """Whether the log acknowledges."""
        self.space = _set_event()
        """Whether the producer takes records."""
        self.committed_offsets: dict[TP, int] = {}
        self.sent: list[tuple[str, str, bytes | None]] = []
        self.failures: list[Exception] = []
        """Errors that `survive` has caught."""
        self.taps: dict[str, Tap] = {}
        self.notes: dict[str, str] = {}
        self.rejected = self.failed_evaluations = 0
        self.reject_budget = RejectBudget()
        self.acknowledged, self.append_s = 0, 0.0
        self.ends: dict[TP, int] = {}
        self.positions: dict[TP, int] = {}
        self.now_ns = START_NS
        self.log_clock = SimpleNamespace(observe=lambda *_: None, now_ns=lambda _: self.now_ns)
        self.outputs = OutputCounters(self.log_clock)
        self.end_offsets: dict[TP, int] = {}
        self.app = SimpleNamespace(
            topics=set[str](),
            topic=lambda name, **_: name,
            transport=SimpleNamespace(receivers=dict[str, Any]()),
        )
        self.tasks: list[asyncio.Task[None]] = []

    def note(self, subject: str, text: str) -> None:
        self.notes[subject] = text

    async def tables_caught_up(self) -> None:
        await self.caught_up.wait()

    async def committed(self, tp: TP) -> int | None:
        return self.committed_offsets.get(tp)

    def task(self, name: str, work: Any) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    @contextlib.contextmanager
    def survive(self, stage: str, topic: Topic[Any], key: str) -> Any:
        try:
            yield
        except DATA_ERRORS as error:
            self.failures.append(error)

    async def send(self, topic: Topic[R], key: str, record: R) -> Awaitable[Any]:
        return await self.send_bytes(topic.name, key, codec.encode(topic.type, record))

    async def send_bytes(self, topic: str, key: str, value: bytes | None) -> Awaitable[Any]:
        await self.space.wait()
        self.sent.append((topic, key, value))
        return self.log_takes.wait()

    def values(self, topic: Topic[Any]) -> list[bytes]:
        """Return what was sent to a topic."""
        return [value or b"" for name, _, value in self.sent if name == topic.name]

    def rejected_offsets(self) -> list[int]:
        """Return the offsets of the rejected messages, in order."""
        return sorted(codec.decode(value, REJECTS.record)["offset"] for value in self.values(REJECTS))

    def highwater(self, tp: TP) -> int | None:
        return self.ends.get(tp)

    def position(self, tp: TP) -> int | None:
        return self.positions.get(tp)


@dataclass(frozen=True)
class Record:
    """A message as the client library delivers it."""

    offset: int
    tp: TP = TP0
    value: bytes | None = b"value"
    key: bytes | None = b"key"
    timestamp: int = START_NS // MS
    timestamp_type: int = 1

    @property
    def topic(self) -> str:
        return self.tp.topic

    @property
    def partition(self) -> int:
        return self.tp.partition


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - the stage runs in the same loop
            await asyncio.sleep(0)


async def settle() -> None:
    """Let tasks run that wait for nothing."""
    for _ in range(20):
        await asyncio.sleep(0)
