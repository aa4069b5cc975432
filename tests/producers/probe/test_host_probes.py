"""Probes of the hosts of silent peers: whose, how often, and real answers of this machine's kernel."""

from __future__ import annotations

import time
from typing import Any

import pytest

from native.core.probe import PathEvidence
from producers.probe.host_probes import HostProber, HostSocket, SilentPeers


def path(peer: str, *, lost: int = 0, answered: int = 0) -> PathEvidence:
    fields: dict[str, Any] = dict.fromkeys(PathEvidence._fields, 0)
    fields |= {"peer": peer, "path": 9320, "lost": lost, "answered": answered, "loss_streak": lost}
    fields |= {"arrived_age_ns": 0 if answered else -1}
    return PathEvidence(**fields)


def test_only_a_peer_that_answers_nothing_is_probed_once_a_second() -> None:
    peers, probed = SilentPeers(), []
    for tenth in range(50):
        now_s = tenth / 10
        silent = path("b", lost=3) if now_s >= 1 else path("b", answered=9)
        peers.update([path("a", answered=1), path("c", lost=2, answered=1), silent], now_s)
        probed += [(name, now_s) for name in peers.due(now_s)]
    assert [name for name, _ in probed] == ["b"] * 4
    assert probed[0][1] == pytest.approx(1.25, abs=0.11)
    assert probed[1][1] - probed[0][1] >= 1 - 1e-9


def test_a_peer_that_is_no_longer_probed_is_no_longer_silent() -> None:
    peers = SilentPeers()
    peers.update([path("b", lost=3)], 0)
    assert peers.due(1) == ["b"]
    assert peers.due(4) == []
    peers.keep_only([])
    assert peers.report(9) == []


def test_answers_are_reported_at_once_and_missing_ones_after_a_while() -> None:
    peers = SilentPeers()
    peers.update([path("b", lost=3), path("c", lost=3)], 0)
    for name in peers.due(1):
        peers.on_sent(name, 2)
    peers.on_answer("b", 1.01)
    peers.on_answer("nobody", 1.01)
    row = {"peer": "b", "requests": 2, "answers": 1, "answered_age_ns": 10_000_000}
    assert peers.report(1.02) == [row]
    assert peers.report(1.3) == []
    assert peers.report(1.6) == [{"peer": "c", "requests": 2, "answers": 0, "answered_age_ns": -1}]


@pytest.mark.parametrize(("own", "peer"), [("127.0.0.1", "127.0.0.2"), ("::1", "::1")])
def test_the_kernel_answers_without_any_prober(own: str, peer: str) -> None:
    found = HostSocket(own, None)
    try:
        assert found.send(peer) >= 1
        deadline = time.monotonic() + 5
        while not (answers := list(found.answers())):
            assert time.monotonic() < deadline
        assert set(answers) == {peer}
    finally:
        found.close()


def test_a_silent_peer_on_a_host_that_answers_is_reported() -> None:
    prober = HostProber("127.0.0.1", None)
    try:
        prober.peers.update([path("b/lo", lost=3)], time.monotonic() - 1)
        rows: list[Any] = []
        deadline = time.monotonic() + 5
        while not rows:
            assert time.monotonic() < deadline
            rows = prober.step({"b/lo": "127.0.0.2"}, time.monotonic())
        assert rows[0]["peer"] == "b/lo"
        assert rows[0]["answers"] >= 1
        assert rows[0]["answered_age_ns"] >= 0
    finally:
        prober.close()
