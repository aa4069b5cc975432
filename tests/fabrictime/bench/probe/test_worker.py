"""One NIC of the probe bench: what it counts of an engine that loses some probes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fabrictime.bench.probe import worker


class Engine:
    """An engine that has sent 100 probes for each drain, some of them lost."""

    def __init__(self, samples: int) -> None:
        self.samples, self.drained, self.peers = samples, 0, []

    def set_peers(self, peers: list[Any]) -> None:
        self.peers.append(peers)

    def drain(self) -> Any:
        self.drained += 1
        return SimpleNamespace(forward=np.arange(float(self.samples)))

    def counters(self) -> dict[str, int]:
        done = self.drained * self.samples
        names = ("no_t3", "overflow_samples", "send_errors")
        return {
            "requests_sent": 100 * self.drained,
            "samples": done,
            "lost": 100 * self.drained - done,
            "pairs": done // 2,
            **dict.fromkeys(names, self.drained),
        }


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass only while the worker sleeps."""
    now = [0.0]
    monkeypatch.setattr(worker.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(worker.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))


@pytest.mark.parametrize(("samples", "p50"), [(98, 48.5), (0, 0.0)])
def test_probes_that_are_lost_or_incomplete_are_counted(samples: int, p50: float) -> None:
    engine = Engine(samples)
    peer: Any = "peer"
    found = worker._ask(engine, peer, 0.45)  # type: ignore[arg-type]
    assert engine.peers == [[peer], []], "it stops before it counts"
    assert found["samples"] == 5 * samples
    assert (found["sent"], found["lost"]) == (600, 6 * (100 - samples))
    assert (found["missing"], found["incomplete"]) == (6 * (100 - samples), 18)
    assert found["forward_ns"][1] == p50
    assert found["took_s"] == pytest.approx(0.5)
