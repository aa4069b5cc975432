"""The evidence in a real log: each source that stops is missing within seconds, and returns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from fabrictime.state.evidence import CHECKING, Verdict
from fabrictime.state.evidence_reader import EvidenceReader, EvidenceSettings, EvidenceWatch, fresh_s_of
from schemas.kafka.offset_reader import OffsetReader
from schemas.kafka.partitioning import partition_of
from schemas.kafka.publisher import Publisher
from schemas.kafka.settings import KafkaSettings
from schemas.topics import CLOCK_OFFSETS, INVENTORY
from tests.fabrictime.evidence import SHARD, FreshEvidence
from tests.records import make

FRESH_S = 1.5
LIMIT_S = 6.0
"""s within which a stopped source must be missing: `FRESH_S`, two readings and a busy machine."""


@pytest.fixture
def evidence(log: str) -> Iterator[FreshEvidence]:
    with FreshEvidence(log) as found:
        yield found


@pytest.fixture
def watch(log: str) -> Iterator[EvidenceWatch]:
    with EvidenceWatch(EvidenceSettings(KafkaSettings(bootstrap=log), fresh_s=FRESH_S)) as found:
        yield found


def within(watch: EvidenceWatch, holds: Callable[[Verdict], bool], limit_s: float = LIMIT_S) -> Verdict:
    end_s = time.monotonic() + limit_s
    while not holds(found := watch.verdict()):
        assert time.monotonic() < end_s, found
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    ("source", "phrase"),
    [
        ("probes", "no fresh probe results for"),
        ("clocks", "no fresh clock window for"),
        ("links", "no fresh evaluation of link health for"),
    ],
)
def test_a_source_that_stops_is_missing_until_it_returns(
    evidence: FreshEvidence, watch: EvidenceWatch, source: str, phrase: str
) -> None:
    assert watch.await_verdict().is_fresh
    evidence.running.discard(source)
    found = within(watch, lambda verdict: bool(verdict.missing))
    assert [line[: len(phrase)] for line in found.missing] == [phrase]
    evidence.running.add(source)
    within(watch, lambda verdict: verdict.is_fresh)


def test_wrong_log_time_is_missing_evidence(evidence: FreshEvidence, watch: EvidenceWatch) -> None:
    evidence.log_offset_ns = -120_000_000_000
    assert watch.await_verdict() != CHECKING
    found = within(watch, lambda verdict: bool(verdict.missing))
    assert found.missing == ("log time is 120.0 s ahead of the hosts' system clocks",)
    evidence.log_offset_ns = 0
    within(watch, lambda verdict: verdict.is_fresh)


@pytest.mark.parametrize(("pace", "ahead_s"), [(0.6, 0.0), (None, 120.0)])
def test_a_slow_simulation_is_no_wrong_log_time(log: str, pace: float | None, ahead_s: float) -> None:
    """Later messages about other NICs change nothing: a simulated one, a stop, a tombstone."""
    publisher = Publisher(log)
    for name, shard, port, its_pace in (
        ("h1/eth1", SHARD, 4791, pace),
        ("x/eth1", "x", 4791, 0.0),
        ("h2/eth1", SHARD, 0, None),
    ):
        nic = make("Nic", nic=name, shard=shard, probe_port=port, simulation_pace=its_pace)
        publisher.publish(INVENTORY, name, nic)
    publisher.send(INVENTORY.name, "h3/eth1", None)
    publisher.flush(5)
    evidence = FreshEvidence(log)
    evidence.log_offset_ns = -120_000_000_000
    reader = EvidenceReader(EvidenceSettings(KafkaSettings(bootstrap=log), fresh_s=FRESH_S))
    with closing(reader), evidence:
        reader.read()
        assert reader.ages.log_ahead_s == ahead_s
        publisher.publish(INVENTORY, "h4/eth1", make("Nic", nic="h4/eth1", shard="y", probe_port=4791))
        publisher.flush(5)
        end_s = time.monotonic() + LIMIT_S
        while reader.ages.log_ahead_s != 120.0:
            assert time.monotonic() < end_s, "a real NIC of any shard has a clock"
            time.sleep(0.1)
            reader.read()


def test_evidence_that_stopped_before_is_missing_and_the_change_is_reported(log: str) -> None:
    with FreshEvidence(log):
        pass
    changes: list[None] = []
    settings = EvidenceSettings(KafkaSettings(bootstrap=log), fresh_s=FRESH_S)
    with EvidenceWatch(settings, lambda: changes.append(None)) as watch:
        assert {line.partition(" for ")[0] for line in watch.await_verdict().missing} >= {
            "no fresh probe results",
            "no fresh clock window",
        }
        within(watch, lambda verdict: bool(changes))


def shard_in(partition: int, count: int) -> str:
    """Return a shard whose link evidence and clocks are in this partition of `count`."""
    names = (f"s{number}" for number in itertools.count())
    return next(
        name for name in names if {partition_of(key, count) for key in (name, f"{name}/0")} == {partition}
    )


def test_an_agent_reads_the_positions_of_its_shards_and_no_record(
    evidence: FreshEvidence, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(OffsetReader(log, [CLOCK_OFFSETS], "g")) as all_places:
        count = len(all_places.ends())
    assert count > 1
    monkeypatch.setattr(OffsetReader, "messages_at", lambda *given: pytest.fail("a record is read"))
    kafka = KafkaSettings(bootstrap=log)
    missing: list[int] = []
    for shard in (shard_in(0, count), shard_in(1, count)):
        settings = EvidenceSettings(kafka, fresh_s=FRESH_S, shards=(shard,))
        with EvidenceWatch(settings) as watch:
            missing.append(len(watch.await_verdict().missing))
    assert missing == [0, 2], "probes and clocks are published in partition 0 alone"


def test_a_log_that_does_not_answer_is_named() -> None:
    with EvidenceWatch(EvidenceSettings(KafkaSettings(bootstrap="127.0.0.1:1"))) as watch:
        found = within(watch, lambda verdict: bool(verdict.missing))
    assert "log 127.0.0.1:1" in found.line


def test_slow_periods_have_more_time() -> None:
    assert fresh_s_of(1000, 1000) == 5.0
    assert fresh_s_of(60_000, 1000) == 300.0
    assert fresh_s_of(1000, 10_000) == 50.0
