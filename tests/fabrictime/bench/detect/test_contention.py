"""How the contention bench compares windows with the truth: found, missed, false, and by kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fabrictime.bench import Figure
from fabrictime.bench.detect.contention import MS, REPORTED, SHORT_NS, Detected, Run, Score, _events
from producers.sim.fault_grammar import parse_fault

S = 1_000_000_000
BEGIN = 4 * S


def run(truth: list[dict[str, Any]], *windows: Detected, deep: Any = ()) -> Score:
    """Return the score of windows over ten seconds; `deep`: queues that were there."""
    made = Run.__new__(Run)
    made.sim = SimpleNamespace(
        start_ns=0, now_ns=10 * S, fleet=SimpleNamespace(shape=SimpleNamespace(buffer_bytes=1e6))
    )  # type: ignore[assignment]
    made.seconds, made.deep = 10, dict(deep)
    made.truth = {(row["link"], row["begin_ns"]): row for row in truth}  # type: ignore[misc]
    made.published = {REPORTED: {str(number): window for number, window in enumerate(windows)}}
    score = Score()
    made.score(score, REPORTED)
    return score


def true(
    link: str = "a>b", begin_ns: int = BEGIN, end_ns: int | None = BEGIN + S, kind: str = "INCAST"
) -> dict[str, Any]:
    return {"link": link, "begin_ns": begin_ns, "end_ns": end_ns, "kind": kind}


def window(
    link: str = "a>b", kind: str = "INCAST", opened_ns: int = BEGIN + 20 * MS, **fields: Any
) -> Detected:
    made = Detected(link, [], kind, opened_ns, opened_ns + 80 * MS, fields.pop("first_kind", kind))
    made.closed_ns, made.close_at_ns = BEGIN + S, BEGIN + S + 300 * MS
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_times_count_from_the_true_begin_and_end() -> None:
    found = run([true()], window())
    assert (found.open_ms, found.close_ms) == ([100.0], [300.0])
    assert (found.found, found.missed, found.false, found.right) == (1, 0, 0, 1)


def test_an_aliased_link_is_right_and_a_kind_that_changes_counts_at_once_alone() -> None:
    found = run([true()], window("x>y", others=["a>b"], kind="COLLISION", first_kind="INCAST"))
    assert (found.found, found.right, found.right_at_once) == (1, 0, 1)
    kinds = found.figures()["contention_kind_right"]
    assert isinstance(kinds, Figure)
    assert kinds.note == "INCAST published as COLLISION 1"


def test_a_window_elsewhere_is_false_unless_a_queue_was_there() -> None:
    elsewhere = window("c>d")
    assert (run([true()], elsewhere).false, run([true()], elsewhere).missed) == (1, 1)
    assert run([], elsewhere, deep={"c>d": [(BEGIN + S, 25_000.0)]}).false == 0
    assert run([], elsewhere, deep={"c>d": [(BEGIN + S, 100.0)]}).false == 1


def test_short_contention_and_the_warm_up_need_not_be_seen() -> None:
    short, early = true(end_ns=BEGIN + SHORT_NS - 1), true(begin_ns=S // 2)
    found = run([short, early])
    assert (found.found, found.missed) == (0, 0)
    assert run([short], window()).false == 0, "but may be"


@pytest.mark.parametrize("seconds", [0.0, 5.0, 12.0])
def test_every_event_is_a_fault_of_the_simulation_and_over_in_time(seconds: float) -> None:
    lines = list(_events(np.random.default_rng(1), seconds))
    assert bool(lines) == (seconds > 4.7)
    for line in lines:
        parse_fault(line)
        after_ms = int(line.partition(" after ")[2].partition("ms")[0])
        assert after_ms < 1_000 * seconds


def test_figures_without_a_window_are_no_numbers() -> None:
    figure = Score().figures()["contention_open_ms_p95"]
    assert isinstance(figure, Figure)
    assert np.isnan(figure.value)


def test_a_run_sees_the_jobs_contention_with_and_without_flow_reports() -> None:
    made = Run(1, 3.0, 5e6)
    made.go()
    assert made.truth
    assert made.deep
    for windows in made.published.values():
        assert {link for each in windows.values() for link in each.links} & {link for link, _ in made.truth}
        assert min(each.open_at_ns - each.opened_ns for each in windows.values()) > 15e6
    assert made.busy_s > 0
