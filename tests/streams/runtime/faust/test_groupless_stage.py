"""The runner of stages without a consumer group, on a log that the test writes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from schemas import codec
from schemas.kafka.message import Message, Place
from schemas.kafka.start import BEGINNING, Start
from schemas.topics import ALERTS, CONFIG, DECISIONS, DELAYS, LINKS, REJECTS, Topic
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.faust import groupless_stage, input_lateness, needed_reader
from streams.runtime.faust.groupless_stage import GrouplessStage
from streams.runtime.operator import Input, Moment, Operator, Order, Output, Owner, Past, Restore, Stage, Work
from streams.runtime.pipeline_constants import INPUT_DELAY_NS
from tests.streams.runtime.fake_context import FakeContext, until

S = 1_000_000_000
T = 1_900_000_000 * S


class Broker:
    """Partition 0 of each topic."""

    def __init__(self) -> None:
        self.messages: dict[str, list[Message]] = defaultdict(list)
        self.readers: list[Reader] = []

    def put(self, topic: Topic, age_ns: int = 0, key: str = "x", value: bytes | None = b"-") -> Message:
        log = self.messages[topic.name]
        log.append(Message(T - age_ns, topic.name, 0, len(log), key, value))
        return log[-1]


class Reader:
    """What the runner uses of `AsyncTopicReader`."""

    broker: Broker

    def __init__(self, cluster: Any) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        self.at: dict[tuple[str, int], int] = {}
        self.paused: set[tuple[str, int]] = set()
        self.is_slow = False
        """Whether messages that the log holds have not arrived yet."""
        self.starts: dict[str, Start] = {}
        self.is_open = False
        self.consumer = SimpleNamespace(
            start=self.__aenter__,
            stop=self.__aexit__,
            _fetcher=SimpleNamespace(),
            assignment=lambda: list(self.at),
            end_offsets=self._end_offsets,
        )
        self.broker.readers.append(self)

    async def __aenter__(self) -> Reader:
        self.is_open = True
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.is_open = False

    async def assign(self, starts: dict[Topic, Start], only: Any = None) -> None:
        self.starts = {topic.name: start for topic, start in starts.items()}
        self.at = {(topic.name, 0): 0 for topic in starts}
        self.ends = {place: len(self.broker.messages[place[0]]) for place in self.at}

    @property
    def missing(self) -> set[tuple[str, int]]:
        return {place for place, end in self.ends.items() if self.at[place] < end}

    async def caught_up(self) -> bool:
        return not self.missing

    def pause(self, places: Any) -> None:
        self.paused |= set(places)

    async def poll(self, wait_s: float, count: int | None = None) -> list[Message]:
        await asyncio.sleep(0)
        found: list[Message] = []
        if self.is_slow:
            return found
        for place in self.at.keys() - self.paused:
            new = self.broker.messages[place[0]][self.at[place] :][: count or None]
            self.at[place] += len(new)
            found += new
        return found

    async def _end_offsets(self, places: Any) -> dict[tuple[str, int], int]:
        return {place: len(self.broker.messages[place[0]]) for place in places}

    async def has_reached(self, ends: dict[tuple[str, int], int]) -> bool:
        return all(self.at[place] >= end for place, end in ends.items())


class Notes(Operator):
    """Notes its calls, and publishes what the test queues."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[str, int]] = []
        self.moments: list[int] = []
        self.outputs: list[Output] = []
        self.past: Past = {}
        self.work: Work | None = None
        self.is_needed = False

    def restore(self, past: Past, tables: FabricTables) -> None:
        self.past = past

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        self.taken += [(each.topic, each.offset) for each in messages]

    def due_ns(self) -> int:
        return 0

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output] | Work:
        self.moments.append(moment.log_ns)
        if self.work is not None:
            work, self.work = self.work, None
            return work
        outputs, self.outputs = self.outputs, []
        return outputs


def beginning(log_ns: int, tables: FabricTables) -> Start:
    return BEGINNING


def is_needed(operator: Operator, tables: FabricTables) -> bool:
    return isinstance(operator, Notes) and operator.is_needed


class NotesStage(Stage):
    name = "alerts"
    owner = LINKS
    inputs = (
        Input(CONFIG, beginning),
        Input(LINKS, beginning, is_owned=True, is_tapped=True),
        Input(DELAYS, beginning, is_needed=is_needed),
    )
    outputs = (DECISIONS, ALERTS)
    order = Order.TIMED
    per_partition = False

    def __init__(self) -> None:
        self.operator = Notes()
        self.owners: list[Owner] = []

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        return (Restore(ALERTS, BEGINNING),)

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> Notes:
        self.owners.append(owner)
        return self.operator


class Context(FakeContext):
    def __init__(self) -> None:
        super().__init__()
        self.registry = None
        self.tables = FabricTables()
        self.taps: dict[str, Any] = {}
        began_ns = time.monotonic_ns()
        self.log_clock = SimpleNamespace(observe=lambda *_: None, now_ns=lambda now_ns: T + now_ns - began_ns)


class Run:
    """One generation of a stage."""

    def __init__(self, broker: Broker, stage: NotesStage) -> None:
        self.broker, self.context, self.operator, self.kind = broker, Context(), stage.operator, stage
        self.stage = GrouplessStage(self.context, stage)  # type: ignore[arg-type]

    def tap(self, message: Message) -> None:
        self.context.taps[LINKS.name]([message], message.place, message.offset + 1)

    async def begin(self) -> None:
        self.stage.assign([TP(LINKS.name, 0)])
        await self.stage.ready()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    Reader.broker = broker

    async def count(cluster: Any, topic: str) -> int:
        return 1

    async def read_past(cluster: Any, restores: Sequence[Restore], *_: Any) -> tuple[Past, dict[Place, int]]:
        return {each.topic.name: broker.messages[each.topic.name] for each in restores}, {}

    monkeypatch.setattr(groupless_stage, "AsyncTopicReader", Reader)
    monkeypatch.setattr(needed_reader, "AsyncTopicReader", Reader)
    monkeypatch.setattr(groupless_stage, "partition_count", count)
    monkeypatch.setattr(groupless_stage, "read_past", read_past)
    return broker


@pytest.fixture
async def run(broker: Broker) -> AsyncIterator[Run]:
    run = Run(broker, NotesStage())
    yield run
    await run.stage.revoke()
    await run.context.stop()


async def test_a_new_owner_restores_and_reads_the_past_before_it_has_recovered(run: Run) -> None:
    published = run.broker.put(ALERTS, 5 * S)
    for age in (4, 3):
        run.broker.put(CONFIG, age * S)
    run.broker.put(LINKS, 2 * S)
    await run.begin()
    assert run.operator.past == {ALERTS.name: [published]}
    assert set(run.operator.taken) == {(CONFIG.name, 0), (CONFIG.name, 1), (LINKS.name, 0)}
    await until(lambda: bool(run.operator.moments))
    log_ns = run.context.log_clock.now_ns(time.monotonic_ns())
    assert run.operator.moments[-1] <= log_ns - INPUT_DELAY_NS, "behind the log's clock"
    assert run.kind.owners[0].partitions == {0}


async def test_a_new_owner_waits_for_the_backlog_that_another_stage_passes_on(run: Run) -> None:
    """That stage continues when all have recovered: a time before its backlog must not pass meanwhile."""
    for age in (3, 2):
        run.broker.put(LINKS, age * S)
    begun = asyncio.ensure_future(run.begin())
    await until(lambda: bool(run.broker.readers and run.broker.readers[0].ends))
    backlog = run.broker.put(LINKS, S)
    await begun
    written_ns = run.context.log_clock.now_ns(time.monotonic_ns())
    await until(lambda: run.context.log_clock.now_ns(time.monotonic_ns()) > written_ns + 2 * INPUT_DELAY_NS)
    assert run.operator.moments == []
    run.tap(backlog)
    await until(lambda: bool(run.operator.moments))
    assert run.operator.taken == [(LINKS.name, offset) for offset in range(3)]


async def test_tapped_messages_are_taken_once_whoever_reads_them_first(run: Run) -> None:
    first = run.broker.put(LINKS, S)
    begun = asyncio.ensure_future(run.begin())
    await asyncio.sleep(0)
    run.tap(first)
    await begun
    for _ in range(3):
        run.tap(run.broker.put(LINKS))
    await until(lambda: len(run.operator.moments) > 3)
    assert run.operator.taken == [(LINKS.name, offset) for offset in range(4)]


@pytest.mark.parametrize("topic", [CONFIG, LINKS])
async def test_no_moment_passes_a_message_that_the_log_holds(
    run: Run, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads it late, or the stage that passes it on does."""
    monkeypatch.setattr(input_lateness, "SILENT_NS", 0)
    await run.begin()
    await until(lambda: len(run.operator.moments) > 1)
    reader = run.broker.readers[0]
    reader.is_slow = True
    message = run.broker.put(topic)
    written_ns = run.context.log_clock.now_ns(time.monotonic_ns())
    await until(lambda: run.context.log_clock.now_ns(time.monotonic_ns()) > written_ns + 2 * INPUT_DELAY_NS)
    assert run.operator.moments[-1] <= written_ns
    assert run.operator.taken == []
    count = len(run.operator.moments)
    reader.is_slow = False
    if topic is LINKS:
        run.tap(message)
    await until(lambda: len(run.operator.moments) > count)
    assert run.operator.taken == [(topic.name, 0)]


@pytest.mark.parametrize("topic", [CONFIG, LINKS])
async def test_a_message_that_does_not_come_delays_for_a_limited_time(
    run: Run, topic: Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(groupless_stage, "LATE_S", 0.05)
    monkeypatch.setattr(input_lateness, "SILENT_NS", 0)
    await run.begin()
    run.broker.readers[0].is_slow = True
    run.broker.put(topic)
    written_ns = run.context.log_clock.now_ns(time.monotonic_ns())
    await until(lambda: run.operator.moments[-1:] > [written_ns + INPUT_DELAY_NS])
    late = "its inputs" if topic is CONFIG else LINKS.name
    assert f"alerts: {late}: not read to the end in 0.05 s" in caplog.text


async def test_an_advance_is_over_when_the_log_has_acknowledged_its_outputs(run: Run) -> None:
    await run.begin()
    run.context.log_takes.clear()
    run.operator.outputs = [Output(DECISIONS, "h1", body=b"1"), Output(ALERTS, "x"), Output(DECISIONS, "h2")]
    await until(lambda: len(run.context.sent) == 3)
    advances = len(run.operator.moments)
    await asyncio.sleep(0.02)
    assert len(run.operator.moments) == advances
    assert run.context.sent == [
        (DECISIONS.name, "h1", b"1"),
        (ALERTS.name, "x", None),
        (DECISIONS.name, "h2", None),
    ]
    run.context.log_takes.set()
    await until(lambda: len(run.operator.moments) > advances)


async def test_a_revocation_waits_for_the_acknowledgements(run: Run) -> None:
    await run.begin()
    run.context.log_takes.clear()
    run.operator.outputs = [Output(ALERTS, "x", body=b"1")]
    await until(lambda: len(run.context.sent) == 1)
    revoking = asyncio.ensure_future(run.stage.revoke())
    await asyncio.sleep(0.05)
    assert not revoking.done()
    run.context.log_takes.set()
    await asyncio.wait_for(revoking, 2)


async def test_inputs_are_read_while_they_are_needed(run: Run) -> None:
    run.broker.put(DELAYS, 100 * S)
    await run.begin()
    await until(lambda: not run.operator.behind)
    assert len(run.broker.readers) == 1
    run.operator.is_needed = True
    await until(lambda: (DELAYS.name, 0) in run.operator.taken)
    await until(lambda: not run.operator.behind)
    assert run.broker.readers[1].is_open
    await run.stage.revoke()
    assert not any(reader.is_open for reader in run.broker.readers)


async def test_unusable_messages_and_failed_evaluations_are_rejected(run: Run) -> None:
    await run.begin()
    message = run.broker.put(CONFIG)
    run.operator.rejected.append((message, codec.BadRecord("MALFORMED", "planted")))
    run.operator.failed.append(("train", ZeroDivisionError("planted")))
    await until(lambda: len(run.context.sent) == 2)
    found = [codec.decode(value or b"", REJECTS.record) for _, _, value in run.context.sent]
    assert [(each["topic"], each["reader"]) for each in found] == [
        (CONFIG.name, "solve"),
        (ALERTS.name, "alerts"),
    ]
    assert run.context.failed_evaluations == 1
    assert (run.operator.rejected, run.operator.failed) == ([], [])


async def test_an_output_that_cannot_be_published_costs_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cannot be encoded, one is too large for the log."""
    await run.begin()
    send_bytes = run.context.send_bytes

    async def send(topic: str, key: str, value: bytes | None) -> Any:
        if key == "large":
            raise ValueError("20000000 bytes")
        return await send_bytes(topic, key, value)

    monkeypatch.setattr(run.context, "send_bytes", send)
    run.operator.outputs = [
        Output(DECISIONS, "empty", record={}),
        Output(DECISIONS, "large", body=b"-"),
        Output(ALERTS, "x", body=b"good"),
    ]
    await until(lambda: len(run.context.sent) == 3)
    assert run.context.values(ALERTS) == [b"good"]
    rejects = [codec.decode(value, REJECTS.record) for value in run.context.values(REJECTS)]
    assert [each["key"] for each in rejects] == [b"empty", b"large"]
    advances = len(run.operator.moments)
    await until(lambda: len(run.operator.moments) > advances)


@pytest.mark.parametrize("is_slow", [False, True])
async def test_an_evaluation_that_fails_does_not_end_the_stage(run: Run, is_slow: bool) -> None:
    await run.begin()

    def fail(*_: Any) -> Sequence[Output]:
        raise KeyError("planted")

    if is_slow:
        run.operator.work = fail
    else:
        run.operator.advance = fail  # type: ignore[method-assign]
    await until(lambda: run.context.failures != [])
    await asyncio.sleep(0.02)
    assert len(run.context.failures) == 1, "it is not repeated at once"
    run.operator.__dict__.pop("advance", None)
    run.tap(run.broker.put(LINKS))
    run.operator.outputs = [Output(ALERTS, "x", body=b"good")]
    await until(lambda: run.context.sent == [(ALERTS.name, "x", b"good")])
    assert run.operator.taken == [(LINKS.name, 0)]


async def test_messages_that_cannot_be_taken_are_rejected(run: Run) -> None:
    await run.begin()

    def fail(*_: Any) -> None:
        raise KeyError("planted")

    run.operator.take = fail  # type: ignore[method-assign]
    run.broker.put(CONFIG)
    await until(lambda: len(run.context.sent) == 1)
    run.tap(run.broker.put(LINKS))
    await until(lambda: len(run.context.sent) == 2)
    rejects = [codec.decode(value, REJECTS.record) for value in run.context.values(REJECTS)]
    assert [(each["topic"], each["offset"]) for each in rejects] == [(CONFIG.name, 0), (LINKS.name, 0)]


async def test_an_error_of_the_log_ends_the_task(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    await run.begin()

    async def refuse(topic: str, key: str, value: bytes | None) -> Any:
        async def acknowledgement() -> None:
            raise ConnectionError("no leader")

        return acknowledgement()

    monkeypatch.setattr(run.context, "send_bytes", refuse)
    (serving,) = [task for task in run.context.tasks if task.get_name() == "alerts ownership"]
    run.operator.outputs = [Output(ALERTS, "x")]
    with pytest.raises(ConnectionError, match="no leader"):
        await asyncio.wait_for(serving, 5)


def test_a_stage_joins_the_group_only_by_a_topic_that_it_writes(broker: Broker) -> None:
    class Writer(NotesStage):
        outputs = (LINKS,)

    for kind, joined in ((NotesStage(), set[str]()), (Writer(), {LINKS.name})):
        run = Run(broker, kind)
        run.stage.register()
        assert run.context.app.topics == joined


async def test_messages_that_are_passed_on_during_slow_work_wait_for_its_end(run: Run) -> None:
    await run.begin()
    started, ended = threading.Event(), threading.Event()

    def work() -> Sequence[Output]:
        started.set()
        assert ended.wait(10)
        return [Output(ALERTS, "x", body=b"slow")]

    run.operator.work = work
    await until(started.is_set)
    run.tap(run.broker.put(LINKS))
    assert run.operator.taken == []
    ended.set()
    await until(lambda: run.context.sent == [(ALERTS.name, "x", b"slow")])
    await until(lambda: run.operator.taken == [(LINKS.name, 0)])


async def test_a_log_clock_that_steps_back_does_not_make_an_as_read_stage_advance_again_and_again(
    broker: Broker,
) -> None:
    class Ticks(Notes):
        def due_ns(self) -> int:
            return self.moments[-1] + 20_000_000 if self.moments else 0

    class TicksStage(NotesStage):
        inputs = ()
        order = Order.AS_READ

    kind = TicksStage()
    kind.operator = Ticks()
    run = Run(broker, kind)
    await run.begin()
    await until(lambda: len(run.operator.moments) > 1)
    stepped_s = time.monotonic()
    run.context.log_clock.now_ns = lambda now_ns: T - 100 * S + now_ns - round(stepped_s * S)
    await until(lambda: run.operator.moments[-1] < T - 90 * S)
    before = len(run.operator.moments)
    await asyncio.sleep(0.1)
    advances = len(run.operator.moments) - before
    assert advances <= (time.monotonic() - stepped_s) / 0.02
    await run.stage.revoke()
    await run.context.stop()
