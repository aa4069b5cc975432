"""Jumps of log time: when windows of the new time count, and the log whose clock steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictime.bench import Figure, Missing
from fabrictime.bench._stepped_log import SteppedLog
from fabrictime.bench.robust.log_time import Outcome, Window, _figures, evaluated

S = 1_000_000_000
JUMP_NS = 1_000 * S


def windows(*given: tuple[float, float, bool]) -> list[Window]:
    return [Window(received_s, JUMP_NS + int(end_s * S), synced) for received_s, end_s, synced in given]


def test_windows_of_the_old_time_do_not_count() -> None:
    old = windows((0.2, -120, True), (1.2, 7_200, True))
    assert evaluated(old, JUMP_NS, 10) == Outcome(None, None)
    new = windows((1.5, 1, False), (2.5, 2, True), (3.5, 3, True))
    assert evaluated(old + new, JUMP_NS, 4) == Outcome(1.5, 2.5)


def test_a_pause_after_the_first_window_counts_too() -> None:
    found = evaluated(windows((1.0, 1, True), (2.0, 2, True), (8.0, 3, True)), JUMP_NS, 9)
    assert found.resume_s == pytest.approx(6)
    assert evaluated(windows((1.0, 1, True)), JUMP_NS, 9).resume_s == pytest.approx(8)


def test_a_window_that_is_published_again_fills_no_pause() -> None:
    found = evaluated(windows((1.0, 1, True), (4.0, 1, True), (7.0, 2, True)), JUMP_NS, 7.5)
    assert found.resume_s == pytest.approx(6)


def test_figures_are_missing_where_a_jump_was_not_survived() -> None:
    good, bad = Outcome(1.5, 2.5), Outcome(None, None)
    figures = _figures([good, good], {"+120 s": [], "CreateTime": []}, "refused")
    assert figures["log_time_jumps_survived"] == Figure(1.0, note="2 of 2; refused")
    assert figures["windows_resume_s"] == Figure(1.5, "s", "worst of 2 jumps, windows of 1 s")
    figures = _figures([good, bad], {"+120 s": [], "+8 h": ["no window"]}, "refused")
    assert figures["log_time_jumps_survived"] == Figure(0.5, note="1 of 2; +8 h: no window; refused")
    assert isinstance(figures["windows_resume_s"], Missing)


def test_the_stepped_log_starts_and_ends(tmp_path: Path) -> None:
    with SteppedLog(tmp_path / "log", 2) as log:
        log.wrong_s = 120
        assert log._server.store.now_ms() > 0
        log.change_leader(-30)
    assert not log._thread.is_alive()
