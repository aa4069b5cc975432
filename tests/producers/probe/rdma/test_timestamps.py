"""A NIC's counter as a clock, and two clocks read together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.probe.rdma.timestamps import TickClock, cross_timestamp


@given(
    st.integers(16, 64),
    st.integers(1000, 2_000_000),
    st.integers(0, 2**64 - 1),
    st.lists(st.floats(0, 0.2), max_size=40),
    st.floats(0, 0.2),
)
def test_it_runs_on_over_every_wrap(bits: int, khz: int, start: int, steps: list[float], back: float) -> None:
    mask = (1 << bits) - 1
    clock = TickClock(mask, khz, start, 10**18)
    passed = 0
    for step in steps:
        passed += int(step * mask)
        assert clock.read((start + passed) & mask) == 10**18 + passed * 1_000_000 // khz
        earlier = passed - int(back * mask)
        assert clock.stamp((start + earlier) & mask) == 10**18 + earlier * 1_000_000 // khz, (
            "a stamp from before"
        )


def test_a_clock_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="mask 0x0: expected ones from the lowest bit on"):
        TickClock(0, 1000, 0, 0)
    with pytest.raises(ValueError, match="mask 0xffff0000"):
        TickClock(0xFFFF0000, 1000, 0, 0)
    with pytest.raises(ValueError, match="clock of 0 kHz"):
        TickClock(2**64 - 1, 0, 0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 50_000)), min_size=8, max_size=8),
    st.integers(0, 10**12),
)
def test_two_clocks_read_together_are_within_the_bound(delays: list[tuple[int, int]], apart: int) -> None:
    now = [10**18]
    pending = iter(delays)

    def read() -> int:
        before, after = next(pending)
        now[0] += before
        value = now[0] + apart
        now[0] += after
        return value

    found = cross_timestamp(read, lambda: now[0])
    assert abs(found.clock_ns - (found.system_ns + apart)) <= found.bound_ns
    assert found.bound_ns == min((before + after + 1) // 2 for before, after in delays)


def test_a_system_clock_that_is_set_back_meanwhile_is_read_again() -> None:
    system = iter([1000, 400, *range(500, 10_000, 10)])
    assert cross_timestamp(lambda: 7, lambda: next(system)).bound_ns == 5
