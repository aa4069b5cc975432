"""The map stage in Faust: probes in, fits and path delays out.

In: `fabric.probes`, this worker's partitions. Out: per source partition and window `ClockFits`, then
`PathDelays` a NIC; once the log has acknowledged them, the window's messages are acknowledged. On a rebalance
what is held is dropped: the next owner reads it again and cuts it by the offset ranges that were published.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import faust
from faust.types import TP

from native.core import BadBatch, decode_probe_batch
from schemas import codec
from schemas.topics import CLOCK_FITS, DELAYS, PATH_QUEUEING, PROBES
from streams.agents.acks import OrderedAcks
from streams.agents.rejects import send_reject
from streams.agents.room import Room
from streams.lookups import Inventory, read_tail
from streams.map.columnar import encode_columnar
from streams.map.queueing import SUB_SLOTS, SourceQueueing, slot_ns_of
from streams.map.records import Fitted, Member, clock_fits, fit_window, path_delays
from streams.map.source import ClosedWindow, Source
from streams.map.tally import JumpLimit, NicState
from streams.map.windows import Range
from streams.settings import StreamSettings

__all__ = ["MapStage", "recovered", "register"]

log = logging.getLogger(__name__)

MS: Final = 1_000_000
TICK_S: Final = 0.01
QUEUEING_S: Final = 0.025
"""s between two records of what the paths' queueing is."""
TAIL_QUEUEING: Final = 40
"""Newest `PathQueueing` of each partition from which a new owner learns floors."""
TAIL_WINDOWS: Final = 16
"""Published windows of each source that a new owner looks back on: commits are some two windows behind."""
REVOKE_S: Final = 3.0
"""s that a revocation waits for windows that are being published."""


@dataclass(slots=True)
class _Held:
    """One assigned partition."""

    tp: TP
    next_offset: int | None
    seen_ns: int
    source: Source | None = None
    queueing: SourceQueueing | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    acks: OrderedAcks = field(default_factory=OrderedAcks)
    rejects: list[Awaitable[Any]] = field(default_factory=list)
    dropped: bool = False


@dataclass(slots=True)
class _Job:
    held: _Held
    window: ClosedWindow
    lag_messages: int
    rejects: list[Awaitable[Any]]
    samples: int
    fitted: Fitted | None = None
    sent: list[Awaitable[Any]] = field(default_factory=list)


class _Members(dict[str, Member]):
    """Every NIC's member, also of those that the inventory does not know."""

    def __init__(self, inventory: Inventory) -> None:
        super().__init__()
        self._inventory = inventory

    def __missing__(self, nic: str) -> Member:
        member = self[nic] = self._inventory.member(nic)
        return member

    def __contains__(self, nic: object) -> bool:
        return True


def source_name(tp: TP) -> str:
    """Return the name of a source partition, as `ClockFits.source` has it."""
    return f"{tp.topic}/{tp.partition}"


def recovered(
    records: Iterable[codec.Record], source: str, position: int | None
) -> tuple[list[Range], dict[str, NicState]]:
    """Return what a new owner of `source` goes on from: the published ranges, and the probers' states as they
    were at `position`, where it begins to read."""
    ranges: dict[int, Range] = {}
    states: dict[str, tuple[int, NicState]] = {}
    begin = 0 if position is None else position
    for record in records:
        if record["source"] != source:
            continue
        window = record["window"]
        ranges[window] = Range(window, record["first_offset"], record["next_offset"])
        if record["next_offset"] <= begin:
            for nic in record["nics"]:
                known = states.get(nic["nic"])
                if known is None or known[0] <= window:
                    states[nic["nic"]] = (window, NicState.of(nic))
    return sorted(ranges.values()), {nic: state for nic, (_, state) in states.items()}


class MapStage:
    """One worker's source partitions."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.settings: StreamSettings = room.settings
        self.window_ns = self.settings.window_ms * MS
        self.silence_ns = self.settings.silence_ms * MS
        self.limit = JumpLimit(self.settings.clock_jump_us * 1000, self.settings.clock_jump_ppm)
        self._held: dict[TP, _Held] = {}
        self._jobs: list[_Job] = []
        self._job_came = asyncio.Event()
        self._batch_came = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._room_left = asyncio.Event()
        self._room_left.set()
        self._waiting_samples = 0
        self._pool = ThreadPoolExecutor(1, "map")

    @property
    def positions(self) -> dict[TP, int]:
        """One past the last message that was taken of each partition that has one."""
        return {tp: held.next_offset for tp, held in self._held.items() if held.next_offset is not None}

    def start(self) -> None:
        """Begin the timers; call once within the event loop."""
        self.room.task("map timer", self._tick_forever())
        self.room.task("map publisher", self._publish_forever())
        self.room.task("map queueing", self._queueing_forever())

    def assigned(self, partitions: Iterable[TP]) -> None:
        """Take over partitions; they are read once their past is known."""
        taken = []
        for tp in partitions:
            held = self._held[tp] = _Held(tp, None, time.monotonic_ns())
            taken.append(held)
        if taken:
            self.room.task("map recovery", self._recover(taken))

    async def revoked(self) -> None:
        """Let go of all partitions: finish what is being published, drop what is held."""
        for held in self._held.values():
            held.dropped = True
            held.ready.set()
        self._held.clear()
        self._jobs.clear()
        self._waiting_samples = 0
        self._room_left.set()
        try:
            await asyncio.wait_for(self._idle.wait(), REVOKE_S)
        except TimeoutError:
            log.warning("map: windows still being published after %g s of a rebalance", REVOKE_S)

    async def ready(self) -> None:
        """Wait until every assigned partition knows its past."""
        for held in list(self._held.values()):
            await held.ready.wait()

    async def _recover(self, taken: list[_Held]) -> None:
        await self.room.views_caught_up()
        tail = TAIL_WINDOWS * max(8, len(taken)) * max(1, len(self.room.inventory.shards()))
        records = await read_tail(self.settings.bootstrap, CLOCK_FITS.name, tail, self.room.registry)
        floors = await read_tail(
            self.settings.bootstrap, PATH_QUEUEING.name, TAIL_QUEUEING, self.room.registry
        )
        slot_ns = self.slot_ns()
        for held in taken:
            if held.dropped:
                continue
            name = source_name(held.tp)
            held.queueing = SourceQueueing(name, slot_ns)
            held.queueing.recover(floors)
            held.next_offset = await self.room.committed(held.tp)
            ranges, states = recovered(records, name, held.next_offset)
            held.source = Source(name, self.window_ns, self.silence_ns, ranges, states)
            held.seen_ns = time.monotonic_ns()
            held.ready.set()
        log.info("map: took over %s", ", ".join(str(held.tp.partition) for held in taken))

    async def take(self, message: Any) -> None:
        """Take one message of `fabric.probes`."""
        held = self._held.get(message.tp)
        if held is None:
            return
        if not held.ready.is_set():
            await held.ready.wait()
        if held.dropped or held.source is None:
            return
        offset, value = message.offset, message.value
        if held.next_offset is not None and offset < held.next_offset:
            return
        now_ns = time.monotonic_ns()
        append_ns = round(message.timestamp * 1000) * MS
        self.room.log_clock.observe(append_ns, now_ns)
        held.next_offset, held.seen_ns = offset + 1, now_ns
        message.value = None
        held.acks.read(message)
        if value is None:
            closed = held.source.skip(append_ns, offset, offset)
        else:
            batch = None
            try:
                batch = decode_probe_batch(value, codec.body_start(value, PROBES.record, self.room.registry))
                if message.key != batch.nic.encode():
                    detail = f"key {message.key!r}, expected the batch's NIC {batch.nic!r}"
                    batch = None
                    raise codec.BadRecord("WRONG_KEY", detail)
            except (codec.BadRecord, BadBatch) as error:
                held.rejects.append(await send_reject(self.room, message, value, "map", error))
            closed = held.source.add(append_ns, offset, len(value), batch, offset)
            if batch is not None and held.queueing is not None:
                held.queueing.add(batch, append_ns, offset, self.room.offsets.lines())
                self._batch_came.set()
        if closed:
            self._enqueue(held, closed)
            await self._room_left.wait()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ns = time.monotonic_ns()
            log_now_ns = self.room.log_clock.now_ns(now_ns)
            for held in list(self._held.values()):
                if held.source is None:
                    continue
                quiet_ns = now_ns - held.seen_ns
                if quiet_ns < self.silence_ns:
                    continue
                closed = held.source.tick(log_now_ns, quiet_ns, self._caught_up(held))
                if closed:
                    self._enqueue(held, closed)

    def slot_ns(self) -> int:
        """Return ns of a slot of `PathQueueing`: as the settings say, else by the rate of the NICs."""
        if self.settings.queue_slot_us is not None:
            return self.settings.queue_slot_us * 1000 // SUB_SLOTS
        return slot_ns_of(self.room.fastest_bps()) // SUB_SLOTS

    async def _queueing_forever(self) -> None:
        """Send what the paths' queueing is, soon and often; nothing is acknowledged by it."""
        while True:
            await self._batch_came.wait()
            await asyncio.sleep(QUEUEING_S)
            self._batch_came.clear()
            for held in list(self._held.values()):
                if held.queueing is None or not held.queueing.waiting or held.dropped:
                    continue
                members = _Members(self.room.inventory)
                records = held.queueing.take(members)
                encoded = [
                    (r["shard"], encode_columnar(PATH_QUEUEING.record, r, self.room.registry))
                    for r in records
                ]
                sent = [
                    await self.room.send_raw(PATH_QUEUEING.name, shard, value) for shard, value in encoded
                ]
                await asyncio.gather(*sent)

    def _caught_up(self, held: _Held) -> bool:
        highwater = self.room.highwater(held.tp)
        if highwater is None:
            return False
        if held.next_offset is not None:
            return held.next_offset >= highwater
        return highwater == 0 or self.room.position(held.tp) == highwater

    def _enqueue(self, held: _Held, closed: list[ClosedWindow]) -> None:
        highwater = self.room.highwater(held.tp)
        lag = -1 if highwater is None or held.next_offset is None else max(0, highwater - held.next_offset)
        for window in closed:
            rejects, held.rejects = held.rejects, []
            job = _Job(held, window, lag, rejects, window.samples)
            self._jobs.append(job)
            self._waiting_samples += job.samples
            if window.duplicates:
                log.info("map: %s: %d batches came twice", window.source, window.duplicates)
        if self._waiting_samples > self.settings.held_samples:
            self._room_left.clear()
        self._idle.clear()
        self._job_came.set()

    async def _publish_forever(self) -> None:
        while True:
            await self._job_came.wait()
            self._job_came.clear()
            while self._jobs:
                jobs, self._jobs = self._jobs, []
                await self._publish(jobs)
            self._idle.set()

    async def _publish(self, jobs: list[_Job]) -> None:
        """Publish closed windows: the fits of all first, since the solver waits for them, then the delays."""
        loop = asyncio.get_running_loop()
        for job in jobs:
            members = {nic: self.room.inventory.member(nic) for nic in job.window.nics}
            for key, value in await loop.run_in_executor(
                self._pool, self._encode_fits, job, members, self.room.inventory.shards()
            ):
                job.sent.append(await self.room.send_raw(CLOCK_FITS.name, key, value))
            if job.fitted is not None and job.held.queueing is not None:
                job.held.queueing.learn(job.fitted.fits)
                job.fitted = None
        for job in jobs:
            await self._publish_delays(job)
        for job in jobs:
            await asyncio.gather(*job.sent, *job.rejects)
            if not job.held.dropped:
                for message in job.held.acks.done(job.window.tokens):
                    message.ack(self.room.app.consumer)
                self._waiting_samples -= job.samples
                if self._waiting_samples <= self.settings.held_samples:
                    self._room_left.set()

    def _encode_fits(
        self, job: _Job, members: dict[str, Member], shards: list[str]
    ) -> list[tuple[str, bytes]]:
        fitted = fit_window(job.window)
        job.fitted = fitted
        records = clock_fits(fitted, members, shards, self.window_ns, self.limit, job.lag_messages)
        return [(r["shard"], codec.encode(CLOCK_FITS.record, r, self.room.registry)) for r in records]

    async def _publish_delays(self, job: _Job) -> None:
        offsets, window = self.room.offsets, job.window
        lines = offsets.lines()
        end_ns = (window.cut.window + 1) * self.window_ns
        work = [
            (nic.samples, self.room.inventory.member(name), offsets.state_of(name, end_ns))
            for name, nic in sorted(window.nics.items())
        ]

        def encode() -> list[tuple[str, bytes]]:
            return [
                (member.nic, head + body)
                for samples, member, state in work
                for body in path_delays(
                    samples, member, window.cut.window, self.window_ns, lines, state, log_offset_ns
                )
            ]

        head = codec.header(DELAYS.record, self.room.registry)
        log_offset_ns = offsets.log_offset_ns
        for key, value in await asyncio.get_running_loop().run_in_executor(self._pool, encode):
            job.sent.append(await self.room.send_raw(DELAYS.name, key, value))
        window.nics.clear()


def register(app: faust.App, room: Room) -> MapStage:
    """Put the map agent on the app."""
    stage = MapStage(room)
    topic = app.topic(
        PROBES.name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
    )

    async def probes(stream: Any) -> None:
        stage.start()
        async for event in stream.noack().events():
            try:
                message = event.message
                event.value = None
                await stage.take(message)
            except Exception as error:
                room.give_up(f"map: {type(error).__name__}: {error}", error)
                raise

    app.agent(topic, name="map")(probes)
    return stage
