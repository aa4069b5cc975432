"""Replays by steps: which differences count, and which outputs died with their worker."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.commands.replay import run as replay_run
from fabrictime.commands.replay.compare import Difference, Gap, Partitions, Value, compared
from fabrictime.commands.replay.reader import Span
from fabrictime.commands.replay.run import (
    EPOCH_BACK_NS,
    KINDS,
    UNRECORDED_NS,
    Operator,
    Replay,
    begin,
    changes_since,
    failures_of,
    gaps_of,
    operators_of,
)
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.partitioning import partition_of
from schemas.topics import CLOCK_FITS, PATH_QUEUEING, PROBES, STEPS
from streams.delays.stage import DelayStage
from streams.runtime.log_runner import StepRunner
from streams.runtime.operator import NEVER_NS
from streams.runtime.settings import StreamSettings
from streams.runtime.steps import Epoch, Recording, StepLog
from tests.records import make

S = 1_000_000_000
RUN = Replay("localhost:1", Span(0, 100 * S))
Values = list[tuple[Value, int]]


def fits(window: int, lag: int = 0, samples: int = 5, partition: int = 0) -> Value:
    source = f"fabric.probes/{partition}"
    fields = {"window": window, "lag_messages": lag, "samples": samples}
    record = make("ClockFits", shard="fabric", source=source, **fields)
    return CLOCK_FITS.name, "fabric", codec.encode(CLOCK_FITS.type, record)


def _compared(
    run: Replay, published: Values, replayed: Values, gaps: list[Gap]
) -> tuple[list[Difference], int]:
    edge_ns = KINDS["delays"].edge_ns
    return compared(run.span, published, replayed, gaps, Partitions(PROBES, 4), edge_ns=edge_ns)


def test_equal_outputs_and_local_facts_are_no_difference() -> None:
    published = [(fits(1), 1 * S), (fits(2, lag=9), 2 * S)]
    assert _compared(RUN, published, [(fits(1), 1 * S), (fits(2, lag=-1), 2 * S)], []) == ([], 0)


def test_an_output_that_differs_is_named_with_its_fields() -> None:
    differences, unrecorded = _compared(RUN, [(fits(1), S)], [(fits(1, samples=6), S)], [])
    assert unrecorded == 0
    assert [dict(each.fields) for each in differences] == [{"samples": (5, 6)}]


def test_an_output_without_steps_counts_only_between_two_owners() -> None:
    published = [(fits(1), 10 * S), (fits(2), 20 * S)]
    differences, unrecorded = _compared(RUN, published, [], [Gap(0, 9 * S, 12 * S)])
    assert (len(differences), unrecorded) == (1, 1)


def operator(partition: int, begin_s: int, last_s: int, error: str = "", epoch: Any = None) -> Operator:
    epoch = epoch or Epoch("delays", partition, begin_s * 1000, None)
    runner = StepRunner(DelayStage(), Recording(epoch, iter(())), StreamSettings(), 4)
    runner.last_ns = last_s * S
    name = f"delays/{partition}"
    return Operator(name, partition, begin_s * S, last_ns=last_s * S, runner=runner, error=error)


def test_a_gap_lasts_until_the_next_owner_begins() -> None:
    operators = [operator(0, 0, 10), operator(0, 17, 30), operator(1, 0, 30)]
    end_ns = 30 * S + UNRECORDED_NS
    assert gaps_of([], has_steps=True) == []
    assert gaps_of(operators, has_steps=True) == [
        (0, 10 * S, 17 * S),
        (0, 30 * S, end_ns),
        (1, 30 * S, end_ns),
    ]


def test_an_operator_that_cannot_be_replayed_is_a_gap_and_a_line() -> None:
    operators = [operator(0, 0, 10), operator(0, 12, 30, error="steps 3 to 4 are not in the log")]
    assert gaps_of(operators, has_steps=True)[1] == (0, 12 * S, 30 * S + UNRECORDED_NS)
    assert failures_of(operators) == ["delays/0 cannot be replayed: steps 3 to 4 are not in the log"]


def test_a_gap_of_one_partition_hides_nothing_of_another() -> None:
    published = [(fits(window, partition=window % 2), window * S) for window in range(10, 20)]
    differences, unrecorded = _compared(RUN, published, [], [Gap(1, 0, 100 * S)])
    assert (len(differences), unrecorded) == (5, 5)


def test_an_output_without_a_source_is_of_the_partition_of_its_key() -> None:
    by_shard = Partitions(PATH_QUEUEING, 4)
    assert by_shard.of({"shard": "pod7"}) == partition_of("pod7", 4)
    assert Partitions(PROBES, 4).of({"shard": "pod7", "nic": "h1/eth0"}) == partition_of("h1/eth0", 4)
    assert by_shard.of({}) is None


def test_several_outputs_of_one_identity_are_compared_each() -> None:
    def versions(*samples: int) -> Values:
        return [(fits(1, samples=each), S + each) for each in samples]

    assert len(_compared(RUN, versions(1, 2, 3, 4), versions(9, 8, 7, 4), [])[0]) == 3
    assert len(_compared(RUN, versions(1, 2, 3, 6), versions(9, 8, 7, 5), [])[0]) == 4
    assert _compared(RUN, [(fits(1), S), (fits(1), 2 * S)], [(fits(1), S)], []) == ([], 0)
    assert _compared(RUN, [(fits(1), S), (fits(1, lag=9), 2 * S)], [(fits(1), S)], []) == ([], 0)
    assert _compared(RUN, [(fits(1), S)], [(fits(1), S), (fits(1), 2 * S)], []) == ([], 0)


def test_outputs_of_before_the_interval_are_counterparts_only() -> None:
    run = Replay("localhost:1", Span(10 * S, 100 * S))
    before = 10 * S - KINDS["delays"].before_ns
    assert _compared(run, [(fits(1), 10 * S)], [(fits(1), before), (fits(2), before)], []) == ([], 0)
    assert _compared(run, [(fits(3), before)], [(fits(3), 10 * S)], []) == ([], 0)


def test_tombstones_are_compared_by_key() -> None:
    gone: Value = (CLOCK_FITS.name, "fabric", None)
    further: Value = (CLOCK_FITS.name, "other", None)
    same, other = [(gone, S), (fits(1), S)], [(gone, 2 * S), (fits(1, samples=6), S), (further, 3 * S)]
    kinds = [each.kind for each in _compared(RUN, same, other, [])[0]]
    assert kinds == ["is replayed, and was not published", "differs"]


def test_changes_since_the_steps_are_one_line() -> None:
    one, two = (
        operator(0, 0, 10, epoch=Epoch("delays", 0, 0, None, {}, settings, "other", "0.0 other"))
        for settings in ("other", "")
    )
    assert changes_since([one, two], RUN) == "build, settings"


def steps(stage: str, partition: int, count: int, **fields: Any) -> list[Message]:
    """Return a record each second of the first minutes of the log."""
    log = StepLog(Epoch(stage, partition, 1000, None), (PROBES.name, partition))
    messages = []
    for second in range(1, count + 1):
        log.note(S + second * S, [((PROBES.name, partition), second)])
        record: Any = {**(log.record() or {}), **fields}
        value = codec.encode(STEPS.type, record)
        messages.append(Message((1 + second) * S, STEPS.name, 0, second, f"{stage}/{partition}", value))
    return messages


def test_steps_are_read_of_the_stage_alone_and_a_bad_record_drops_its_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = [
        *steps("delays", 0, 5),
        *steps("links", 0, 5),
        *steps("delays", 1, 5, moved=[7]),
        *steps("delays", 2, 5, elapsed_us=[2**60]),
        *steps("delays", 9, 5),
        Message(S, STEPS.name, 0, 9, "delays/3", b"no record"),
    ]
    starts: list[Any] = []

    def read(cluster: Any, given: Any, to_ns: int) -> Any:
        starts.append(given[STEPS].since_ns)
        yield log, to_ns

    monkeypatch.setattr(replay_run, "read_interval", read)
    monkeypatch.setattr(replay_run, "partition_counts", lambda cluster, topics: {PROBES.name: 4})
    run = Replay("localhost:1", Span(2 * S, 100 * S))
    operators = operators_of("delays", replay_run._Index(["delays"], run).messages[STEPS.name], 4, run)
    for each in operators:
        begin(each, 4, run)
        outputs = list(each.outputs(NEVER_NS))
        assert not outputs or not each.error
        assert bool(each.runner and each.runner.last_ns) == (each.partition == 0)
    assert [(each.partition, bool(each.error)) for each in operators] == [
        (0, False),
        (1, True),
        (2, True),
        (9, True),
    ]
    lines = failures_of(operators)
    assert [line.split(":")[0] for line in lines] == [
        f"delays/{partition} cannot be replayed" for partition in (1, 2, 9)
    ]
    assert starts == [2 * S - EPOCH_BACK_NS]
