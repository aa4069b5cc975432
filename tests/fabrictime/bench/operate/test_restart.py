"""The bench of a rolling restart: what counts as late, as a false alarm, as lost and as a step."""

from typing import Any

from fabrictime.bench.operate.restart import Watch
from schemas.kafka.message import Message
from schemas.topics import ACTIONS, ALERTS, CLOCK_OFFSETS, DECISIONS, Topic
from tests.records import make, make_part

S = 1_000_000_000
T = 1_700_000_000 * S


def watch_of(*taken: tuple[float, Topic, Any]) -> Watch:
    watch = Watch()
    for at_s, topic, record in taken:
        watch.take(Message(T + round(at_s * S), topic.name, 0, 0, "", None), record)
    return watch


def window(number: int, *clocks: Any) -> Any:
    span = {"window_start_ns": T + number * S, "window_end_ns": T + (number + 1) * S}
    return make("ClockOffsets", shard="s", window=number, clocks=list(clocks), **span)


def clock(at_s: float, offset_ns: int) -> Any:
    fields = {"drift_ppb": 1000.0, "bound_ns": 50.0, "drift_sigma_ppb": 1.0}
    return make_part(
        "ClockOffsets", "ClockState", clock="h1", at_ns=T + round(at_s * S), offset_ns=offset_ns, **fields
    )


def alert(kind: str, subject: str, **fields: Any) -> Any:
    return make("Alert", kind=kind, subject=subject, **{"state": "RAISED", **fields})


def test_a_window_is_late_by_the_time_beyond_its_length() -> None:
    arrivals = ((0, 0), (1, 1), (4.5, 2), (4.6, 3), (4.7, 3))
    watch = watch_of(*((at_s, CLOCK_OFFSETS, window(number)) for at_s, number in arrivals))
    assert watch.gap_s == 2.5


def test_a_clock_steps_if_it_leaves_its_line_by_more_than_both_bounds() -> None:
    offsets = ((0, 0), (1, 1_000), (2, 2_090), (3, 3_000), (4, 4_500))
    watch = watch_of(*((at_s, CLOCK_OFFSETS, window(at_s, clock(at_s, ns))) for at_s, ns in offsets))
    assert watch.steps == ["h1 500 ns, bound 108"]


def test_alerts_about_healthy_things_are_false() -> None:
    alerts = (
        alert("LINK_DOWN", "leaf1:p1<>spine1:p1"),
        alert("CONTENTION", "leaf2:p1>spine2:p1"),
        alert("LINK_DOWN", "leaf2:p1<>spine2:p1"),
        alert("LINK_DOWN", "leaf2:p1<>spine2:p1", update=1),
        alert("AGENT", "h3", state="CLEARED"),
    )
    watch = watch_of(*((0, ALERTS, record) for record in alerts))
    assert watch.false_alarms == ["LINK_DOWN leaf2:p1<>spine2:p1"]


def test_a_decision_without_a_report_is_lost() -> None:
    decisions = [(0, DECISIONS, make("Decision", decision_id=name)) for name in ("a", "b")]
    watch = watch_of(*decisions, (1, ACTIONS, make("ActionReport", decision_id="a")))
    assert (watch.decisions, watch.lost_decisions()) == (2, ["b"])
