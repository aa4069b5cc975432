"""Alerts go on through wrong log time: raised and cleared as fast as with right log time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import CLOCK_OFFSETS, LINK_HEALTH, LINKS
from streams.alerts.ordered_inputs import AlertInputs
from streams.runtime.log_time import LogClock, LogTime
from streams.runtime.pipeline_constants import INPUT_DELAY_NS
from tests.records import make
from tests.streams.alerts.script import cable

MS = 1_000_000
S = 1_000_000_000
START = 1_760_000_000 * S
JUMPS_S = (120, 8 * 3600, -30)
WRONG = range(40, 60)
"""Seconds in which log time is wrong."""


class Live:
    """A live worker's alert inputs: link evidence each 100 ms, clock windows each second."""

    def __init__(self, error_s: Callable[[float], float]) -> None:
        self.now_ns = 0
        self.error_s = error_s
        self.clock = LogClock(START, 0)
        self.times = LogTime(START, 0)
        self.inputs = AlertInputs()
        self.inputs.offset_of = lambda offset_ns: self.times.offset_ns(offset_ns, self.now_ns)
        self.records: list[tuple[float, Any]] = []
        self._seq = 0

    def add(self, topic: Any, key: str, record: dict[str, Any] | None, partition: int = 0) -> None:
        append_ns = START + self.now_ns + round(self.error_s(self.now_ns / S) * S)
        self._seq += 1
        self.clock.observe(append_ns, self.now_ns, (topic.name, partition), self._seq)
        now_ns = self.times.now_ns(self.clock.now_ns(self.now_ns), self.now_ns)
        steady_ns = self.times.of((topic.name, partition), append_ns, now_ns, self.now_ns)
        value = None if record is None else codec.encode(topic.record, record)
        self.inputs.add(Message(append_ns, topic.name, partition, self._seq, key, value, log_ns=steady_ns))

    def health(self, state: str) -> None:
        at_ns = START + self.now_ns
        record = make(
            "LinkHealth",
            shard="fabric",
            subject=cable(1, 2),
            kind="LINK",
            seq=self._seq,
            state=state,
            since_ns=at_ns,
            evaluated_ns=at_ns,
            text=f"{cable(1, 2)} is {state}",
        )
        self.add(LINK_HEALTH, cable(1, 2), record, partition=1)

    def run(self, until_s: float) -> None:
        while self.now_ns < until_s * S:
            self.now_ns += 10 * MS
            if self.now_ns % (100 * MS) == 0:
                self.add(LINKS, "fabric", None)
            if self.now_ns % S == 0:
                error_ns = round(self.error_s(self.now_ns / S) * S)
                at_ns = START + self.now_ns
                window = {"window_start_ns": at_ns - S, "window_end_ns": at_ns, "log_offset_ns": -error_ns}
                number = (at_ns + error_ns) // S - 1
                self.add(
                    CLOCK_OFFSETS,
                    "fabric/0",
                    make("ClockOffsets", shard="fabric", window=number, parts=1, **window),
                )
            to_ns = self.times.now_ns(self.clock.now_ns(self.now_ns), self.now_ns) - INPUT_DELAY_NS
            self.records += [(self.now_ns / S, record) for _, record in self.inputs.evaluate(to_ns)]

    def seconds_to(self, kind: str, state: str, after_s: float) -> float:
        """Return the time from `after_s` to the first such record, s."""
        return next(
            at_s - after_s
            for at_s, record in self.records
            if at_s > after_s and (record["kind"], record["state"]) == (kind, state)
        )


def wrong_for_20_s(jump_s: float) -> Callable[[float], float]:
    return lambda at_s: jump_s if WRONG.start <= at_s < WRONG.stop else 0.0


@pytest.mark.parametrize("jump_s", JUMPS_S)
@pytest.mark.parametrize("at_s", [41.0, 50.0, 60.2, 70.0])
def test_a_death_is_raised_and_cleared_in_time_whatever_log_time_does(jump_s: float, at_s: float) -> None:
    usual, live = Live(lambda at_s: 0.0), Live(wrong_for_20_s(jump_s))
    for each in (usual, live):
        each.run(at_s)
        each.health("DOWN")
        each.run(at_s + 15)
        each.health("UP")
        each.run(at_s + 45)
    for state, after_s in (("RAISED", at_s), ("CLEARED", at_s + 15)):
        expected_s = usual.seconds_to("LINK_DOWN", state, after_s)
        assert live.seconds_to("LINK_DOWN", state, after_s) == pytest.approx(expected_s, abs=1.5)


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_step_alone_raises_no_alert_but_that_log_time_is_wrong(jump_s: float) -> None:
    live = Live(wrong_for_20_s(jump_s))
    live.run(100)
    assert [(r["kind"], r["subject"], r["state"]) for _, r in live.records] == [
        ("CLOCKS", "log", "RAISED"),
        ("CLOCKS", "log", "CLEARED"),
    ]
    assert live.seconds_to("CLOCKS", "RAISED", WRONG.start) < 3
    assert live.seconds_to("CLOCKS", "CLEARED", WRONG.stop) < 15


def test_a_leader_with_a_clock_far_ahead_delays_no_alert() -> None:
    live = Live(lambda at_s: 0.0)
    live.run(10)
    live.error_s = lambda at_s: 3600.0
    live.health("DOWN")
    live.error_s = lambda at_s: 0.0
    live.run(15)
    assert live.seconds_to("LINK_DOWN", "RAISED", 10) < 2


def test_messages_that_are_read_late_keep_their_append_times() -> None:
    times = LogTime(START, 0)
    assert times.of(("t", 0), START - 8 * S, START, MS) == START - 8 * S
    assert times.of(("t", 0), START - 5 * S, START, 2 * MS) == START - 5 * S
    assert times.shifted_ns(START - 3600 * S) == START - 3600 * S
