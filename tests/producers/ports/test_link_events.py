"""Link events as pure assembly: numbered, in parts, with the agent's own trouble; and when they are due."""

from __future__ import annotations

from dataclasses import replace

import pytest

from native.core.probe import Evidence, PathEvidence
from producers.ports.link_events import EvidencePacer, LinkEvents, agent_trouble
from schemas import codec
from schemas.topics import LINKS

WELL = Evidence(
    clock_ns=5_000,
    system_ns=7_000,
    interval_ns=5_000_000,
    late_ns=0,
    queue_ns=0,
    missed_timers=0,
    stuck=0,
    receive_drops=0,
    capped=0,
    paths=[],
)
DEAD = PathEvidence("h2/eth1", 9320, 2, 0, 0, 0, 3, 40_000_000, 2_500_000, 60_000_000, 59_990_000, 2_000_000)
ALIVE = PathEvidence("h2/eth1", 9321, 0, 4, 0, 0, 0, -1, -1, 900_000, 870_000, 2_000_000)


def test_losses_and_the_answers_beside_them_go_into_one_event_that_the_schema_takes():
    events = LinkEvents("h1/eth1", "fabric", 77)
    (record,) = events.probes(replace(WELL, paths=[DEAD, ALIVE]))
    read = codec.decode(codec.encode(LINKS.record, record), LINKS.record)
    assert read == record
    assert (read["kind"], read["nic"], read["shard"], read["run"]) == ("PROBE", "h1/eth1", "fabric", 77)
    assert (read["clock_ns"], read["system_ns"], read["interval_ns"]) == (5_000, 7_000, 5_000_000)
    assert read["paths"][0] == {
        "peer": "h2/eth1",
        "path": 9320,
        "lost": 2,
        "answered": 0,
        "late": 0,
        "delayed": 0,
        "loss_streak": 3,
        "first_lost_age_ns": 40_000_000,
        "last_lost_age_ns": 2_500_000,
        "answered_age_ns": 60_000_000,
        "arrived_age_ns": 59_990_000,
        "timeout_ns": 2_000_000,
        "classes": [],
    }
    assert read["paths"][1]["answered"] == 4
    assert read["trouble"] == []


def test_every_event_of_a_run_has_the_next_number_whatever_its_kind():
    events = LinkEvents("h1/eth1", "fabric", 77)
    records = [
        events.carrier(False, 1, 2),
        *events.probes(replace(WELL, paths=[DEAD])),
        *events.counters({"rx_crc_errors": (3, 10)}, 1, 2, 1_000_000_000),
        events.speed(100_000_000_000, 1, 2),
        events.verbs("PORT_ERR", 1, 2),
    ]
    assert [record["event"] for record in records] == [0, 1, 2, 3, 4]
    for record in records:
        assert codec.decode(codec.encode(LINKS.record, record), LINKS.record) == record
    assert records[0]["carrier"] is False
    assert records[2]["counters"] == [{"name": "rx_crc_errors", "delta": 3, "total": 10}]
    assert records[3]["speed_bps"] == 100_000_000_000
    assert records[4]["verbs"] == "PORT_ERR"


def test_paths_beyond_one_record_go_into_more_events():
    records = LinkEvents("a/b", "s", 1).probes(replace(WELL, paths=[ALIVE] * 5000))
    assert [len(record["paths"]) for record in records] == [4096, 904]
    assert [record["event"] for record in records] == [0, 1]


def test_no_evidence_gives_no_event():
    assert LinkEvents("a/b", "s", 1).probes(WELL) == []
    assert LinkEvents("a/b", "s", 1).counters({}, 1, 2, 3) == []


@pytest.mark.parametrize(
    ("counters", "name"),
    [
        ({"late_ns": 5_000_000}, "STARVED"),
        ({"missed_timers": 1}, "STARVED"),
        ({"queue_ns": 2_000_000}, "LOCAL_QUEUE"),
        ({"stuck": 1}, "LOCAL_DROP"),
        ({"receive_drops": 1}, "RX_OVERFLOW"),
        ({"capped": 1}, "CAPPED"),
    ],
)
def test_the_agents_own_trouble_is_reported_without_losses(counters, name):
    (record,) = LinkEvents("a/b", "s", 1).probes(replace(WELL, **counters))
    assert record["trouble"] == [name]
    assert record["late_ns"] == counters.get("late_ns", 0)
    assert record["paths"] == []


def test_a_short_wait_in_the_hosts_queue_is_no_trouble():
    assert agent_trouble(replace(WELL, queue_ns=1_999_999)) == []


def test_urgent_evidence_waits_for_the_minimum_gap_and_other_evidence_longer():
    pace = EvidencePacer(0.005, 1.0, now=10.0)
    assert pace.due(urgent=True) == pytest.approx(10.005)
    assert pace.due(urgent=False) == pytest.approx(11.0)
    pace.on_evidence_taken(replace(WELL, paths=[DEAD, ALIVE]), 20.0)
    assert pace.due(urgent=True) == pytest.approx(20.01)
    assert pace.due(urgent=False) == pytest.approx(20.1)
    for _ in range(5):
        pace.on_evidence_taken(replace(WELL, paths=[DEAD, ALIVE]), 20.0)
    assert pace.due(urgent=True) == pytest.approx(20.04)
    pace.on_evidence_taken(replace(WELL, paths=[ALIVE]), 20.1)
    assert pace.due(urgent=True) == pytest.approx(20.105)
    assert pace.due(urgent=False) == pytest.approx(21.1)
