"""The last event of a clock, as `fabrictime clock` shows it."""

from __future__ import annotations

from fabrictime.state.clocks import Fleet
from schemas.records import ClockOffsets
from tests.records import make, make_part

S = 1_000_000_000


def offsets(window: int, event: str, event_ns: float = 0.0) -> ClockOffsets:
    clock = make_part("ClockOffsets", "ClockState", clock="h1/ptp0", event=event, event_ns=event_ns)
    record: ClockOffsets = make(
        "ClockOffsets", shard="s", window=window, parts=1, window_start_ns=window * S, clocks=[clock]
    )
    return record


def test_the_return_of_a_clock_does_not_hide_its_step() -> None:
    """A leap second: STEP, then NEW as the clock is measured again."""
    records = [offsets(10, "NEW"), offsets(20, "STEP", -1e9), offsets(21, "NEW")]
    clocks = Fleet()
    for record in records:
        clocks.add(record, 0)
    (line,) = clocks.picture(now_ns=0).clocks
    assert (line.event, line.event_ns, line.event_at_ns) == ("STEP", -1e9, 20 * S)


def test_a_clock_that_is_new_much_later_is_new() -> None:
    clocks = Fleet()
    for record in (offsets(20, "STEP", 5.0), offsets(60, "NEW")):
        clocks.add(record, 0)
    (line,) = clocks.picture(now_ns=0).clocks
    assert line.event == "NEW"
