"""Windows of a source: cut by append time, closed by silence, replayed by offset ranges."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streams.delays.windows import Cut, LogClock, Range, WindowCutter

MS = 1_000_000
WINDOW = 1000 * MS
SILENCE = 150 * MS


def cutter(known: list[Range] | None = None) -> WindowCutter:
    return WindowCutter(WINDOW, SILENCE, known or [])


def test_a_message_of_the_next_window_closes_this_one() -> None:
    cut = cutter()
    assert cut.place(10 * WINDOW, 5).window == 10
    assert cut.place(10 * WINDOW + 999 * MS, 6).before == []
    placed = cut.place(11 * WINDOW, 7)
    assert placed.window == 11
    assert placed.before == [Cut(10, 5, 7, 2, 0)]


def test_silence_closes_a_window_only_150_ms_past_its_end() -> None:
    cut = cutter()
    cut.place(10 * WINDOW + 900 * MS, 0)
    assert cut.tick(11 * WINDOW + 149 * MS, 200 * MS, caught_up=True) == []
    assert cut.tick(11 * WINDOW + 150 * MS, 149 * MS, caught_up=True) == []
    assert [c.window for c in cut.tick(11 * WINDOW + 150 * MS, 250 * MS, caught_up=True)] == [10]


def test_silence_closes_nothing_while_the_log_holds_unread_messages() -> None:
    cut = cutter()
    cut.place(10 * WINDOW, 0)
    assert cut.tick(15 * WINDOW, 4 * WINDOW, caught_up=False) == []


def test_a_message_after_the_close_is_late_and_enters_the_next_window() -> None:
    cut = cutter()
    cut.place(10 * WINDOW, 0)
    cut.tick(11 * WINDOW + 200 * MS, 300 * MS, caught_up=True)
    placed = cut.place(10 * WINDOW + 950 * MS, 1)
    assert (placed.window, placed.late) == (11, True)
    assert cut.place(11 * WINDOW + 300 * MS, 2).late is False
    assert cut.place(12 * WINDOW, 3).before == [Cut(11, 1, 3, 2, 1)]


def test_an_empty_source_publishes_every_window() -> None:
    cut = cutter()
    windows = [c for t in range(0, 4000, 10) for c in cut.tick(20 * WINDOW + t * MS, 10 * WINDOW, True)]
    sent = [c.window for c in windows]
    assert sent == list(range(sent[0], 23))
    assert all(c.first_offset == -1 and c.messages == 0 for c in windows)


def test_a_long_pause_is_skipped_not_filled() -> None:
    cut = cutter()
    cut.place(10 * WINDOW, 0)
    placed = cut.place(3600 * WINDOW, 1)
    assert [c.window for c in placed.before] == [10]
    assert placed.window == 3600


def test_a_new_owner_does_not_publish_a_window_again_from_later_messages() -> None:
    cut = cutter([Range(10, 0, 4)])
    placed = cut.place(10 * WINDOW + 990 * MS, 4)
    assert (placed.window, placed.late) == (11, True)


def test_published_windows_are_cut_again_at_their_ranges() -> None:
    known = [Range(10, 0, 2), Range(11, 2, 5)]
    cut = cutter(known)
    # offset 2 was late at first: its append time lies in window 10
    placed = [cut.place(10 * WINDOW + i * MS, i) for i in range(3)]
    placed += [cut.place(11 * WINDOW + i * MS, i) for i in (3, 4)]
    assert [p.window for p in placed] == [10, 10, 11, 11, 11]
    assert [p.late for p in placed] == [False, False, True, False, False]
    assert [c.range for p in placed for c in p.before + p.after] == known
    assert cut.place(11 * WINDOW + 500 * MS, 5).window == 12


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 700), min_size=1, max_size=60),
    quiet=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2500)), max_size=8),
    start=st.integers(0, 59),
)
@example(gaps=[0], quiet=[(0, 2150)], start=0)
def test_a_replay_by_ranges_cuts_the_same_windows(
    gaps: list[int], quiet: list[tuple[int, int]], start: int
) -> None:
    """At first some messages are late. The replay reads all at once, from any commit."""
    times, now = [], 100 * WINDOW
    for gap in gaps:
        now += gap * MS
        times.append(now)
    delayed_ms = dict(quiet)
    first, cuts = cutter(), []
    for offset, append_ns in enumerate(times):
        delay = delayed_ms.get(offset, 0) * MS
        if delay:
            cuts += first.tick(append_ns + delay, delay, caught_up=True)
        placed = first.place(append_ns, offset)
        cuts += placed.before + placed.after
    # the most delayed message is in the window that was open at its arrival
    cuts += first.tick(times[-1] + 6 * WINDOW, 6 * WINDOW, caught_up=True)
    assert sum(c.messages for c in cuts) == len(times)
    assert [c.window for c in cuts] == sorted({c.window for c in cuts})
    filled = [c for c in cuts if c.messages]
    begin = filled[start % len(filled)].first_offset
    again, replayed = cutter([c.range for c in cuts]), []
    for offset in range(begin, len(times)):
        placed = again.place(times[offset], offset)
        replayed += placed.before + placed.after
    assert replayed == [c for c in filled if c.first_offset >= begin]


def test_the_log_clock_is_the_greatest_append_time_plus_elapsed_time() -> None:
    clock = LogClock(1_000, 0)
    assert clock.now_ns(50) == 1_050
    clock.observe(5_000, 100)
    clock.observe(5_010, 200)  # arrived 90 ns later than the best: no information
    assert clock.now_ns(300) == 5_200


def test_a_log_clock_that_was_set_back_is_followed_after_a_while() -> None:
    clock = LogClock(0, 0)
    clock.observe(10**12, 0)
    for second in range(1, 70):
        clock.observe(5 * 10**11 + second * 10**9, second * 10**9)
    assert clock.now_ns(69 * 10**9) == pytest.approx(5 * 10**11 + 69 * 10**9, abs=1)
