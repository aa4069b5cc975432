"""Log time: a step back of the log's clock is recognised, and windows that come again are not one."""

from __future__ import annotations

import pytest

from schemas.log_time import STEP_NS, WindowOrder, is_log_time_wrong, step_windows
from schemas.records import ClockOffsets
from tests.records import make

S = 1_000_000_000


def record(window: int, *, part: int = 0, shard: str = "s0", window_ns: int = S) -> ClockOffsets:
    return make(
        ClockOffsets, shard=shard, part=part, window=window,
        window_start_ns=window * window_ns, window_end_ns=(window + 1) * window_ns,
    )  # fmt: skip


@pytest.mark.parametrize(("window_ns", "windows"), [(S // 10, 10), (3 * S // 10, 4), (S, 2), (60 * S, 2)])
def test_short_windows_take_more_of_them_to_show_a_step(window_ns: int, windows: int) -> None:
    assert step_windows(window_ns) == windows
    assert step_windows(window_ns) * window_ns >= STEP_NS


def test_windows_that_a_new_owner_publishes_again_are_no_step() -> None:
    order = WindowOrder()
    assert not order.steps_back(record(100))
    assert not order.steps_back(record(96))
    assert not order.steps_back(record(91)), "one record alone may be a mistake"
    assert order.steps_back(record(92))
    assert not order.steps_back(record(93)), "relative to the last record, not to the newest"


def test_shards_and_parts_have_orders_of_their_own() -> None:
    order = WindowOrder()
    order.steps_back(record(100))
    assert not order.steps_back(record(10, part=1))
    assert not order.steps_back(record(10, shard="s1"))
    assert not order.steps_back(record(10))
    assert order.steps_back(record(11))


@pytest.mark.parametrize(
    ("ahead_s", "is_wrong"), [(0, False), (3, False), (6, True), (-0.5, False), (-2, True)]
)
def test_late_messages_put_log_time_ahead_of_the_hosts(ahead_s: float, is_wrong: bool) -> None:
    assert is_log_time_wrong(ahead_s) is is_wrong
