"""How the bench of dead links takes a verdict: its time, other cables, and paths that are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.detect import dead_links
from fabrictime.bench.detect.dead_links import _one, _wait_traced


class Tail:
    """A topic whose records come at given times (ms)."""

    def __init__(self, *records: tuple[float, dict[str, Any]]) -> None:
        self.left = list(records)

    def until(self, wanted: Callable[[Any], Any], seconds: float) -> float | None:
        while self.left:
            at_ms, record = self.left.pop(0)
            if wanted(record):
                return at_ms
        return None


class Control:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, command: str, **_: Any) -> dict[str, int]:
        self.asked.append(command)
        return {"start_begin_ns": 1_000_000_000}


def health(subject: str, state: str = "DOWN", candidates: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"subject": subject, "state": state, "candidates": list(candidates)}


def one(*records: tuple[float, dict[str, Any]]) -> tuple[float | None, list[str]]:
    control = Control()
    found = _one(control, Tail(*records), "down a>b", "a<>b")  # type: ignore[arg-type]
    assert control.asked == ["fault", "clear"], "healed, whatever was found"
    return found


def test_the_time_counts_from_the_moment_before_the_fault() -> None:
    assert one((1_030.0, health("a<>b"))) == (30.0, [])


def test_another_cable_is_wrong_unless_it_is_aliased_with_the_broken_one() -> None:
    aliased = health("e<>f", candidates=("a<>b",))
    found = one(
        (1_010.0, health("c<>d")), (1_020.0, aliased), (1_030.0, health("a<>b")), (1_040.0, health("g<>h"))
    )
    assert found == (30.0, ["c<>d", "g<>h"])


def test_a_link_that_is_not_found_is_missed() -> None:
    assert one((1_010.0, health("a<>b", "GREY"))) == (None, [])
    assert one() == (None, [])


def paths(nic: str, peer: str, complete: bool = True) -> tuple[float, dict[str, Any]]:
    return 0.0, {
        "nic": nic,
        "peer": peer,
        "paths": [{"leg": "REQUEST", "complete": complete}, {"leg": "ANSWER", "complete": False}],
    }


def test_all_pairs_of_nics_are_awaited() -> None:
    _wait_traced(Tail(paths("p", "q", complete=False), paths("p", "q"), paths("q", "p")), 2)  # type: ignore[arg-type]
    with pytest.raises(CannotRun, match="1 of 2 traced"):
        _wait_traced(Tail(paths("p", "q"), paths("q", "p", complete=False)), 2)  # type: ignore[arg-type]


def test_a_probe_of_each_link_fits_the_limit_of_probes() -> None:
    assert 8 * (dead_links.RATE_PPS + dead_links.FLOW_PPS) <= dead_links.MAX_PPS
