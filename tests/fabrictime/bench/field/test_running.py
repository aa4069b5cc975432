"""Waiting for a pipeline."""

from __future__ import annotations

from pathlib import Path

from fabrictime.bench.field._running import is_well, state_of, wait_for


def test_waiting_ends_with_the_time_or_the_limit() -> None:
    answers = iter([False, True])
    took_s = wait_for(lambda: next(answers), 10)
    assert took_s is not None
    assert took_s < 5
    assert wait_for(lambda: False, 0.3) is None


def test_a_directory_without_a_pipeline_is_not_well(tmp_path: Path) -> None:
    assert state_of(tmp_path) is None
    assert not is_well(tmp_path)
