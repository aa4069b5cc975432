"""Figures of the incast bench: ratios within a seed, the worst in their notes, and intervals without data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fabrictime.bench import Figure
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.control import PARTS, incast
from fabrictime.bench.control.incast import RATE_BPS, _figures, _Interval, _interval, _paced
from fabrictime.bench.control.watch import Watch

UNPACED = _Interval(40.0, 20.0, 30e6, 1.5, 0.5)
PACED = _Interval(10.0, 2.0, 33e6, 1.2, 0.6)


def test_ratios_are_of_the_same_seed_and_the_worst_is_noted() -> None:
    found = _figures([(UNPACED, PACED), (UNPACED, UNPACED), (UNPACED, PACED)], [1.0, 0.5, 1.0], [4, 6, 5])
    latency, goodput = found["incast_bystander_rpc_p99_vs_unpaced"], found["incast_goodput_vs_unpaced"]
    assert latency == Figure(0.25, note="worst 1.000 of 3 seeds")
    assert goodput == Figure(1.1, note="worst 1.000 of 3 seeds")
    assert found["incast_flows_paced_share"] == Figure(1.0, "1", "least 0.50")
    assert set(PARTS["incast"]) <= set(found)


def run(took_s: list[float], bytes_: int = 2_000_000) -> Any:
    return SimpleNamespace(took_s=lambda span: np.array(took_s), bytes=bytes_)


def queue(bytes_: list[float]) -> Any:
    return SimpleNamespace(within=lambda span: np.array(bytes_))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incast.time, "sleep", lambda seconds: None)


def test_an_interval_has_latency_queue_goodput_and_the_time_over_line_rate() -> None:
    floor_s = 2_000_000 * 8 * 1514 / 1448 / RATE_BPS
    found = _interval((0, 9), run([2 * floor_s] * 3), run([0.004] * 9), queue([RATE_BPS / 8 * 0.01] * 5), 0.5)
    assert (found.rpc_p99_ms, found.queue_p99_ms) == (pytest.approx(4), pytest.approx(10))
    assert found.over_floor == pytest.approx(2)
    assert found.goodput_bps == pytest.approx(RATE_BPS * 1448 / 1514 / 2)


def test_an_interval_without_a_batch_or_request_cannot_be_measured() -> None:
    with pytest.raises(CannotRun, match="0 batches, 1 requests"):
        _interval((0, 9), run([]), run([0.1]), queue([1.0]), 0.5)


def test_only_flows_of_the_job_that_were_paced_since_count() -> None:
    flows = {"f": {"nic": "h1/e", "peer_port": 9}, "g": {"nic": "h8/e", "peer_port": 9}}
    applied = {"action": "PACE", "outcome": "APPLIED"}
    actions = [
        {**applied, "flow_id": "f"},
        {**applied, "flow_id": "g"},
        {**applied, "flow_id": "f", "outcome": "FAILED"},
    ]
    watch: Any = Watch.__new__(Watch)
    watch.flows, watch.actions = flows, actions
    job: Any = SimpleNamespace(ports={("h1", 1, 9)})
    assert (_paced(watch, job, 0), _paced(watch, job, 1)) == ({"f"}, set())
