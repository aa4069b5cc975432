"""The difference between fabric time and the log's clock."""

from __future__ import annotations

from streams.clock.log_offset import LogOffset

MS = 1_000_000
S = 1_000_000_000


def test_it_follows_the_median_in_steps() -> None:
    offset = LogOffset()
    offset.follow(1, [40 * MS, 42 * MS, 44 * MS], 3, 50 * MS)
    assert offset.offset_ns == 0
    offset.follow(2, [70 * MS, 72 * MS, 400 * MS], 3, 50 * MS)
    assert offset.offset_ns == 72 * MS


def test_a_step_of_the_majority_is_followed_at_once() -> None:
    offset = LogOffset()
    offset.follow(1, [-120 * S, -120 * S + 3 * MS, 7 * S], 3, S)
    assert offset.offset_ns == -120 * S + 3 * MS


def test_a_step_that_few_clocks_show_needs_the_next_window() -> None:
    offset = LogOffset()
    for step_ns in (S, 50 * MS):  # twice in one window proves nothing
        offset.follow(1, [5_000 * S], 8, step_ns)
    assert offset.offset_ns == 0
    offset.follow(2, [900 * S], 8, S)
    assert offset.offset_ns == 0
    offset.follow(3, [900 * S + 20 * MS], 8, S)
    assert offset.offset_ns == 900 * S + 20 * MS
    offset.follow(4, [], 8, S)
    assert offset.offset_ns == 900 * S + 20 * MS
