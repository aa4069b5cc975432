"""The partitions that a stage of this worker owns, from their assignment to their revocation.

`Ownership` follows the assignments of a topic's partitions. Each assignment begins a generation. A revocation
ends the generation once its work has ended and its records are acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from faust.types import TP

from schemas.topics import CLOCK_OFFSETS
from streams.runtime.faust.context import WorkerContext
from streams.runtime.operator import Stage

log = logging.getLogger(__name__)

REVOKE_S: Final = 3.0
"""Longest time that a revocation waits for running work and unacknowledged records, s."""


class Generation:
    """The period from an assignment of partitions to their revocation."""

    def __init__(self, tps: Iterable[TP] = ()) -> None:
        self.tps: Final = tuple(tps)
        self.recovered = asyncio.Event()
        """Set when the state is recovered, and at the latest when the generation ends."""
        self.revoking = False
        """Whether a revocation has begun: no new work starts, but running work may still send results."""
        self.revoked = False
        """Whether the revocation is over: another worker may own the partitions, so nothing is sent."""
        if not self.tps:
            self.recovered.set()


class Ownership:
    """The partitions of a topic that one stage of this worker owns, over all generations."""

    def __init__(self, context: WorkerContext, definition: Stage) -> None:
        self.context, self.definition = context, definition
        self.stage, self.topic = definition.name, definition.owner
        self.generation = Generation()
        self.lock = asyncio.Lock()
        """Held while state is changed or published; a revocation waits for it."""
        self.received = 0
        """Number of messages that the stage received."""
        self.left_out = 0
        """Number of messages that the stage skipped, because newer ones waited."""
        self._serving: asyncio.Task[None] | None = None

    @property
    def positions(self) -> dict[TP, int]:
        """Maps each partition with processed messages to one past its last processed offset."""
        return {}

    @property
    def reached(self) -> dict[TP, int]:
        """Maps each partition to one past the last message that is processed or stored."""
        return self.positions

    def register(self) -> None:
        """Make the app read the partitions unless another stage reads them; the default does nothing."""

    def assign(self, partitions: Iterable[TP]) -> None:
        """Start a generation with exactly these partitions."""
        self._end()
        if CLOCK_OFFSETS in self.definition.outputs:
            self.context.outputs.forget_clocks()
        self.generation.revoked = True
        self.generation = Generation(partitions)
        if self.generation.tps:
            self._serving = self.context.task(f"{self.stage} ownership", self._begin(self.generation))

    async def revoke(self) -> None:
        """End the generation once its running work has ended and its records are acknowledged."""
        generation, serving = self.generation, self._end()
        try:
            async with asyncio.timeout(REVOKE_S):
                if serving is not None:
                    await asyncio.wait([serving])
                async with self.lock:
                    await self._flush_all()
        except TimeoutError:
            log.warning("%s: work has not ended after %g s of a rebalance", self.stage, REVOKE_S)
        generation.revoked = True

    async def ready(self) -> None:
        """Wait until the state of the assigned partitions is recovered."""
        await self.generation.recovered.wait()

    async def _serve(self, generation: Generation) -> None:
        """Run the stage for a generation with partitions, once the global tables have caught up.

        An implementation sets `Generation.recovered`. Its task is cancelled when the generation ends.
        """
        raise NotImplementedError

    async def _begin(self, generation: Generation) -> None:
        await self.context.tables_caught_up()
        await self._serve(generation)

    def _end(self) -> asyncio.Task[None] | None:
        """End the generation if it is still running; return its task, which has been cancelled."""
        self.generation.revoking = True
        self.generation.recovered.set()
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
        return serving

    async def _flush_all(self) -> None:
        """Wait until the log has acknowledged all sent records."""
