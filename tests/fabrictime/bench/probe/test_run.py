"""The probe bench's figures from known measurements: the fastest rate without loss, and irtt's cost."""

from __future__ import annotations

import os
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

run = import_module("fabrictime.bench.probe.run")  # the package has a function of this name

NIC: Any = SimpleNamespace(nic="h1/e", address="10.0.0.1", netns="n")


def measured(rate: float, lost: int = 0) -> dict[str, Any]:
    return {
        "samples": 1_000,
        "took_s": 1_000 / rate,
        "cpu_s": 0.004,
        "far_cpu_s": 0.006,
        "lost": lost,
        "incomplete": 0,
        "missing": 0,
        "pairs": 490,
        "forward_ns": [1.0, 2.0, 3.0],
    }


def test_the_fastest_rate_is_the_median_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {62_000: [0, 0, 0], 70_000: [0, 1, 0], 80_000: [0, 3, 4], 90_000: [9, 9, 9]}
    losses = {rate: iter(each) for rate, each in runs.items()}
    monkeypatch.setattr(
        run, "measure", lambda near, far, paths, rate, seconds: measured(rate, next(losses[rate]))
    )
    monkeypatch.setattr(run, "report", lambda text: None)
    found = run.fastest(NIC, NIC, quick=False)
    assert found["probes_per_second_one_thread"] == pytest.approx(70_000)
    assert (found["offered_pps"], found["one_way_p99_ns"], found["pairs_kept_share"]) == (70_000, 3.0, 0.98)


def test_the_cost_of_irtt_is_without_the_start_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = iter([("", 0.2), ("packets sent/received: 1000/999", 0.7)])
    costs = iter([5.0, 5.5])
    monkeypatch.setattr(run, "irtt_client", lambda *_: next(outputs))
    monkeypatch.setattr(run, "cpu_s", lambda pid: next(costs))
    assert run.irtt_once(NIC, NIC, 1, "1ms", 2.0) == (500, pytest.approx(1_000))
    outputs, costs = iter([("", 0.0), ("nothing", 0.0)]), iter([0.0, 0.0])
    with pytest.raises(RuntimeError, match="no count of packets"):
        run.irtt_once(NIC, NIC, 1, "1ms", 2.0)


def test_without_irtt_its_figures_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    assert run.against_irtt(NIC, NIC, quick=True) == {
        "missing": "irtt is not installed (Debian: apt-get install irtt)"
    }


def test_the_processor_time_of_this_process_grows() -> None:
    before = run.cpu_s(os.getpid())
    assert before == pytest.approx(time.process_time(), abs=0.5)
    sum(range(100_000))
    assert run.cpu_s(os.getpid()) > before
