"""A worker counts what it publishes: by topic, decision, alert, and the clocks of its newest windows."""

from types import SimpleNamespace

import pytest

from schemas.topics import ALERTS, CLOCK_OFFSETS, DECISIONS, LINK_HEALTH
from streams.runtime.faust.output_counters import OutputCounters
from streams.runtime.operator import Output
from tests.records import make, make_part

NOW_NS = 5_000_000_000


@pytest.fixture
def counters():
    return OutputCounters(SimpleNamespace(now_ns=lambda monotonic_ns: NOW_NS))


def figures(counters):
    return {
        (sample.name.removeprefix("fabrictime_"), *sample.labels): sample.value
        for sample in counters.samples()
    }


def window(number, part, parts, *clocks, shard="s"):
    states = [
        make_part("ClockOffsets", "ClockState", clock=f"h{part}.{k}/ptp0", state=state, bound_ns=bound_ns)
        for k, (state, bound_ns) in enumerate(clocks)
    ]
    record = make(
        "ClockOffsets",
        shard=shard,
        window=number,
        part=part,
        parts=parts,
        clocks=states,
        window_end_ns=4_000_000_000,
        log_offset_ns=500_000_000,
    )
    return Output(CLOCK_OFFSETS, f"{shard}/{part}", record)


def test_counters_begin_at_zero_for_the_topics_of_the_stages(counters):
    counters.expect([DECISIONS, ALERTS])
    seen = figures(counters)
    assert seen["decisions_total", "REROUTE"] == 0
    assert seen["alerts_raised_total", "LINK_DOWN"] == 0
    assert seen["topic_records_published_total", DECISIONS.name] == 0


def test_decisions_and_alerts_are_counted_by_kind_and_an_alert_once(counters):
    counters.take(Output(DECISIONS, "h1", make("Decision", action="REROUTE")))
    for update, state in enumerate(("RAISED", "RAISED", "CLEARED")):
        alert = make("Alert", kind="LINK_DOWN", state=state, update=update)
        counters.take(Output(ALERTS, "h1", alert))
    counters.take(Output(LINK_HEALTH, "a>b", None))  # a tombstone
    seen = figures(counters)
    assert seen["decisions_total", "REROUTE"] == 1
    assert seen["alerts_raised_total", "LINK_DOWN"] == 1
    assert seen["topic_records_published_total", ALERTS.name] == 3
    assert seen["topic_records_published_total", LINK_HEALTH.name] == 1


def test_clocks_of_the_newest_windows_of_all_shards_count(counters):
    counters.take(window(7, 0, 1, ("UNSYNCED", 9e9)))
    counters.take(window(8, 0, 2, ("SYNCED", 20.0), ("UNSYNCED", 1e9)))
    counters.take(window(8, 1, 2, ("HOLDOVER", 300.0)))
    counters.take(window(3, 0, 1, ("SYNCED", 10.0), shard="t"))
    seen = figures(counters)
    assert [seen["fleet_clocks", state] for state in ("SYNCED", "HOLDOVER", "UNSYNCED")] == [2, 1, 1]
    assert seen["fleet_clock_bound_seconds",] == pytest.approx(300e-9)
    assert seen["window_delay_seconds",] == pytest.approx(1.5)


def test_a_revoked_owner_exports_no_clocks(counters):
    counters.take(window(8, 0, 1, ("SYNCED", 20.0)))
    counters.forget_clocks()
    assert ("fleet_clocks", "SYNCED") not in figures(counters)
    assert figures(counters)["topic_records_published_total", CLOCK_OFFSETS.name] == 1
