"""Windows of a source: cut by append time, closed by silence, replayed by offset ranges."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streams.delays.windows import Cut, Range, WindowCutter
from tests.examples import examples

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


@settings(max_examples=examples(60))
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


def test_a_window_that_the_log_lost_is_cut_again_before_its_published_successor() -> None:
    """The log was killed: it had taken window 12, and not window 11 before it."""
    cut = cutter([Range(10, 0, 3), Range(12, 5, 7)])
    placed = [
        cut.place(window * WINDOW, offset) for offset, window in enumerate((10, 10, 10, 11, 11, 12, 12))
    ]
    closed = [each.range for one in placed for each in one.before + one.after]
    assert closed == [Range(10, 0, 3), Range(11, 3, 5), Range(12, 5, 7)]
    assert cut.place(13 * WINDOW, 7).window == 13


@pytest.mark.parametrize("first", [2, 3, 300])
def test_ranges_of_a_topic_that_was_made_again_hold_nothing_up(first: int) -> None:
    cut = cutter([Range(1, 500, 600), Range(2, 600, 700)])
    opened = cut.place(first * WINDOW + 900 * MS, 0)
    placed = cut.place((first + 1) * WINDOW, 1)
    closed = [*opened.before, *placed.before, *placed.after]
    assert closed[-1].range == Range(opened.window, 0, 1)
    now_ns = (placed.window + 1) * WINDOW + 200 * MS
    assert [c.range for c in cut.tick(now_ns, 1200 * MS, caught_up=True)] == [Range(placed.window, 1, 2)]


def test_a_lost_window_takes_no_published_number() -> None:
    cut = cutter([Range(10, 0, 1), Range(11, 3, 4)])
    placed = [cut.place(window * WINDOW, offset) for offset, window in enumerate((10, 10, 11, 11, 11))]
    closed = [each.range for one in placed for each in one.before + one.after]
    assert closed == [Range(10, 0, 1), Range(12, 1, 3), Range(11, 3, 4)]
    assert placed[-1].window == 13


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.integers(0, 3))
def test_windows_tile_the_offsets_whichever_of_them_were_lost(
    windows: list[tuple[int, bool]], more: int
) -> None:
    """`windows`: messages of each window, and whether it was published; `more`: messages of a later one."""
    known, sent = [], []
    for number, (messages, is_published) in enumerate(windows, 10):
        if is_published:
            first = len(sent) if messages else -1
            known.append(Range(number, first, first + messages if messages else -1))
        sent += [number] * messages
    sent += [len(windows) + 10] * more
    cut = cutter(known)
    closed = []
    for offset, number in enumerate(sent):
        placed = cut.place(number * WINDOW + 1, offset)
        closed += placed.before + placed.after
    closed += cut.tick(50 * WINDOW, 20 * WINDOW, caught_up=True)
    full = [each for each in closed if each.messages]
    assert [offset for each in full for offset in range(each.first_offset, each.next_offset)] == [
        *range(len(sent))
    ]
    assert sum(each.messages for each in full) == len(sent)
    assert len({each.window for each in full}) == len(full)


@pytest.mark.parametrize("jump", [30, 120, 300, 8 * 3600])
def test_windows_follow_append_time_ahead_and_back(jump: int) -> None:
    cut, closed = cutter(), []
    for second in range(60):
        window = 100 + second + (jump if 20 <= second < 40 else 0)
        placed = cut.place(window * WINDOW + 500 * MS, second)
        assert (placed.window, placed.late) == (window, False)
        closed += [(c.window, c.first_offset) for c in placed.before if c.messages]
    assert len(closed) == 59, "each second closes a window"
    assert closed[38:40] == [(138 + jump, 38), (139 + jump, 39)]
    assert closed[40] == (140, 40)


def test_a_small_step_back_makes_messages_late() -> None:
    cut = cutter()
    cut.place(100 * WINDOW + 100 * MS, 0)
    placed = cut.place(99 * WINDOW + 500 * MS, 1)
    assert (placed.window, placed.late, placed.before) == (100, True, [])


def test_a_stalled_reader_is_not_a_step_back() -> None:
    cut = cutter()
    cut.place(100 * WINDOW, 0)
    cut.tick(105 * WINDOW, 5 * WINDOW, caught_up=True)
    placed = cut.place(100 * WINDOW + 200 * MS, 1)
    assert placed.late
    assert placed.window >= 104


def test_a_silent_source_follows_the_log_clock_back() -> None:
    cut = cutter()
    cut.place(220 * WINDOW, 0)
    assert [c.window for c in cut.tick(102 * WINDOW, 5 * WINDOW, caught_up=True)] == [220]
    assert [c.window for c in cut.tick(103 * WINDOW, 6 * WINDOW, caught_up=True)] == [101]


def test_a_new_owner_after_a_step_back_continues_at_the_present() -> None:
    known = [Range(220, 0, 4), Range(221, 4, 6), Range(100, 6, 8)]
    cut = cutter(known)
    windows = [
        cut.place(append * WINDOW, offset).window for offset, append in enumerate((221, 100, 100, 101), 5)
    ]
    assert windows == [221, 100, 100, 101]
    later = cutter([Range(220, 0, 4)])
    assert later.place(100 * WINDOW, 4).window == 100
