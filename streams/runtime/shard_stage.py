"""Base class of the stages that read a topic and keep state by shard.

A subclass names its stage and topic and implements `recover`, `process` and, where needed, `start` and
`drop`. The base class owns the partitions, runs the timers, and decides when a message is acknowledged: at
once by `done`, or after processing by `retain(partition, message, until)`, once its condition holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Final, Generic, TypeVar

from schemas.kafka.message import Message
from schemas.topics import Topic
from streams.runtime.assignment import Assignment, KeyedState, PartitionState
from streams.runtime.context import WorkerContext

__all__ = ["PartitionStage", "ShardStage"]

S = TypeVar("S")
P = TypeVar("P")

RELEASE_S: Final = 0.25
"""s between two checks of retained messages; commits are a second apart."""

MAX_RUN_S: Final = 0.01
"""s of processing after which other stages run."""

Seconds = float | Callable[[], float]


class PartitionStage(ABC, Generic[P]):
    """A stage with state of type `P` for each partition of its topic."""

    name: ClassVar[str]
    topic: ClassVar[Topic]

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.partitions: Assignment[P] = Assignment(
            context,
            self.name,
            self.topic,
            start=self._start,
            recover=self.recover,
            process=self.process_batch,
            on_revoke=self.on_revoke,
        )
        self._retains = False

    @abstractmethod
    async def recover(self, partitions: list[PartitionState[P]]) -> None:
        """Set the state of newly assigned partitions from the log."""

    @abstractmethod
    async def process(self, partition: PartitionState[P], message: Message) -> None:
        """Process one message, then call `retain` or `partitions.done` for it."""

    async def process_batch(self, partition: PartitionState[P], messages: Sequence[Message]) -> None:
        """Process messages of one partition, in order; a stage may override it to process them together."""
        resumed_s = time.monotonic()
        for message in messages:
            if partition.revoking:
                return
            self.partitions.begin(partition, message)
            await self.process(partition, message)
            if time.monotonic() - resumed_s > MAX_RUN_S:
                await asyncio.sleep(0)
                resumed_s = time.monotonic()

    def start(self) -> None:
        """Start the stage's timers with `every`."""

    def on_revoke(self, partitions: list[PartitionState[P]]) -> None:
        """Release the stage's other resources of revoked partitions."""

    def every(
        self,
        seconds: Seconds | None,
        work: Callable[[], Awaitable[None]],
        *,
        wake: asyncio.Event | None = None,
        settle_s: Seconds = 0.0,
        name: str | None = None,
    ) -> None:
        """Run `work` after each `seconds`, or as soon as `wake` is set; None: only when `wake` is set.

        After either, wait `settle_s`, so that events in quick succession share one run, and clear `wake`.
        """
        task_name = f"{self.name} {name or 'timer'}"
        self.context.task(task_name, _repeat(seconds, self._surviving(work), wake, settle_s))

    def _surviving(self, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def survive() -> None:
            with self.context.survive(self.name, self.topic, ""):
                await work()

        return survive

    def retain(self, partition: PartitionState[P], message: Message, until: Callable[[], bool]) -> None:
        """Acknowledge a processed message once `until` returns True and all published records are
        acknowledged.

        A new owner reads retained messages again. Conditions are checked in offset order, and a condition
        that holds must keep holding.
        """
        partition.retained.append((message.offset, until))

    async def _release(self) -> None:
        for partition in self.partitions:
            async with self.partitions.lock:  # results of old messages may be on their way
                released = list(_pop_released(partition))
            await self.partitions.flush(partition)
            self.partitions.done(partition, released)

    def _start(self) -> None:
        self.start()
        self.every(lambda: RELEASE_S, self._release, name="acknowledgement")


class ShardStage(PartitionStage[KeyedState[S]], Generic[S]):
    """A stage with state of type `S` for each shard of its partitions."""

    async def recover(self, partitions: list[PartitionState[KeyedState[S]]]) -> None:
        """Set the state of newly assigned partitions: shards are created at their first access."""
        create = await self.recover_shards()
        for partition in partitions:
            partition.state = KeyedState(partial(create, partition))

    @abstractmethod
    async def recover_shards(self) -> Callable[[PartitionState[KeyedState[S]], str], S]:
        """Read the past from the log; return a function that creates a shard's state from it."""

    def drop(self, state: S) -> None:
        """Release the stage's other resources of a revoked shard."""

    def on_revoke(self, partitions: list[PartitionState[KeyedState[S]]]) -> None:
        """Release the stage's other resources of revoked partitions."""
        for partition in partitions:
            for state in partition.state.values():
                self.drop(state)

    def shards(self) -> Iterator[tuple[PartitionState[KeyedState[S]], str, S]]:
        """Yield (partition, shard, state) for each shard of this worker."""
        for partition in self.partitions:
            for shard, state in list(partition.state.items()):
                yield partition, shard, state

    def owns(self, shard: str) -> bool:
        """Return whether this worker has received messages of the shard in this generation."""
        return any(shard in partition.state for partition in self.partitions)


def _pop_released(partition: PartitionState[P]) -> Iterator[int]:
    """Remove the messages whose condition holds from the front; yield their offsets."""
    while partition.retained and partition.retained[0][1]():
        yield partition.retained.popleft()[0]


def _value(seconds: Seconds) -> float:
    return seconds() if callable(seconds) else seconds


async def _repeat(
    seconds: Seconds | None,
    work: Callable[[], Awaitable[None]],
    wake: asyncio.Event | None,
    settle_s: Seconds,
) -> None:
    while True:
        period_s = None if seconds is None else _value(seconds)
        if wake is None:
            await asyncio.sleep(period_s or 0.0)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), period_s)
        pause_s = _value(settle_s)
        if pause_s:
            await asyncio.sleep(pause_s)
        if wake is not None:
            wake.clear()
        await work()
