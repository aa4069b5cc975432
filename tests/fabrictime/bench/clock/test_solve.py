"""The mesh of the solve bench: its truth is found, scipy agrees, and a failed child is a reason."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from fabrictime.bench import Figure, Missing
from fabrictime.bench.clock import solve
from fabrictime.bench.clock.solve import PEERS, Fleet


def test_the_solution_is_off_by_its_own_standard_errors() -> None:
    fleet = Fleet.of(300)
    solution = fleet.solve()
    off = (solution.x - fleet.truth) / solution.sigma
    assert np.sqrt(np.mean(off**2)) == pytest.approx(1, abs=0.4)


def test_the_same_seed_is_the_same_mesh_and_no_nic_measures_itself() -> None:
    fleet, again = Fleet.of(50, seed=3), Fleet.of(50, seed=3)
    assert (fleet.value == again.value).all()
    assert len(fleet.a) == 50 * PEERS
    assert (fleet.a != fleet.b).all()


@pytest.mark.parametrize("kind", ["cg", "spsolve"])
def test_scipy_finds_the_same_clocks(kind: str) -> None:
    pytest.importorskip("scipy")
    found = solve.scipys(kind, 200)
    assert found["off_sigma"] < 0.05
    assert found["seconds"] > 0


def test_a_child_that_fails_takes_too_long_or_lacks_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def child(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], code, text, "first\nno memory\n")

    monkeypatch.setattr(subprocess, "run", child)
    code, text = 0, '{"missing": "no scipy"}'
    assert solve._child("cg", 9) == Missing("no scipy")
    code = 1
    with pytest.raises(RuntimeError, match="cg on 9 NICs ended with 1: no memory"):
        solve._child("cg", 9)

    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired([], 1)

    monkeypatch.setattr(subprocess, "run", late)
    assert solve._child("ours", 9) == Missing("ours on 9 NICs took longer than 240 s")


def test_figures_are_made_of_the_measurements_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"seconds": 2.0, "build_s": 1.0, "off_sigma": 0.001, "ours_s": 0.5}
    ours = {"seconds": 0.5, "memory_mb": 7.0, "rms_over_sigma": 1.0}
    answers = {"ours": ours, "cg": theirs, "spsolve": Missing("too slow")}
    monkeypatch.setattr(solve, "_child", lambda kind, nics: answers[kind])
    found = solve.measure(lambda line: None, quick=True)
    seconds = found["solve_100k_nics_1m_edges_s"]
    assert isinstance(seconds, Figure)
    assert seconds.note is not None
    assert (seconds.value, "2000 NICs" in seconds.note) == (0.5, True)
    assert found["scipy_spsolve_s"] == Missing("too slow")
