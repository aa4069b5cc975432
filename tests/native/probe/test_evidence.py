"""Early losses of the engine: told soon, taken back, never of another peer, and never for its own sleep."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from native.core.probe import Engine, Evidence, PathEvidence, Peer

MakeNic = Callable[..., Any]
MakeResponder = Callable[..., Any]
ROOT = Path(__file__).parents[3]


class EvidenceLog:
    """All that an engine told so far."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: list[Evidence] = []

    def take(self) -> None:
        self.events.append(self.engine.evidence())

    def until(self, done: Callable[[], bool], timeout_s: float = 20.0) -> None:
        end = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < end, f"not in {timeout_s} s: {self.engine.counters()}"
            select.select([self.engine.evidence_fd], [], [], 0.05)
            self.take()

    def paths(self) -> list[PathEvidence]:
        return [status for event in self.events for status in event.paths]

    def sum(self, name: str) -> int:
        return sum(getattr(status, name) for status in self.paths())

    def row(self) -> int:
        newest = {(status.peer, status.path): status.loss_streak for status in self.paths()}
        return max(newest.values(), default=0)


def test_each_answer_is_counted_once_and_nothing_is_lost(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", timeout_ms=10_000), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    evidence_log = EvidenceLog(a.engine)
    evidence_log.until(lambda: evidence_log.sum("answered") > 2000)
    a.engine.set_rate(
        0.001
    )  # a peer that is left takes what was told of it along, and what came late as well

    def asked() -> int:
        return int(a.engine.counters()["requests_sent"])

    evidence_log.until(
        lambda: (
            evidence_log.sum("answered") == asked() and evidence_log.sum("lost") == evidence_log.sum("late")
        )
    )
    sent = asked()
    evidence_log.take()
    assert (evidence_log.sum("answered"), asked()) == (sent, sent), "each once"
    assert evidence_log.sum("lost") == evidence_log.sum("late")
    assert a.engine.counters()["lost"] == 0
    status = next(status for status in evidence_log.paths() if not status.lost and not status.loss_streak)
    assert status.peer == "b/lo"
    assert status.path in a.engine.path_ports
    assert 0 <= status.arrived_age_ns <= status.answered_age_ns
    assert status.first_lost_age_ns == -1
    assert status.timeout_ns >= 2_000_000
    assert sum(event.interval_ns for event in evidence_log.events) > 0


def test_evidence_of_a_silent_peer_has_the_age_of_its_last_answer(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", timeout_ms=400), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    evidence_log = EvidenceLog(a.engine)
    evidence_log.until(lambda: evidence_log.sum("answered") > 600)
    stopped = time.monotonic()
    b.stop()
    evidence_log.until(lambda: evidence_log.row() >= 3)
    took_ns = (time.monotonic() - stopped) * 1e9
    news = next(status for status in reversed(evidence_log.paths()) if status.loss_streak >= 3)
    assert 0 <= news.last_lost_age_ns <= news.first_lost_age_ns < took_ns
    assert news.first_lost_age_ns < news.answered_age_ns < took_ns + 1e9
    assert news.timeout_ns <= 400e6
    b.start()
    evidence_log.until(lambda: evidence_log.row() == 0)
    assert evidence_log.paths()[-1].answered_age_ns >= 0


def test_each_dropped_probe_is_declared_lost_once(make_nic: MakeNic, make_responder: MakeResponder) -> None:
    a = make_nic("a/lo", timeout_ms=300, rate_pps=1500.0)
    responder = make_responder(a.address, drop=0.2, double=0.05, seed=5)
    a.engine.set_peers([Peer("r/lo", *responder.address)])
    a.start()
    evidence_log = EvidenceLog(a.engine)
    evidence_log.until(lambda: evidence_log.sum("lost") - evidence_log.sum("late") > 150)
    a.engine.set_rate(0.001)
    counts = (0.0, 0.0)
    while counts != (counts := (responder.asked, a.engine.counters()["requests_sent"])) or sum(counts) == 0:
        threading.Event().wait(0.4)
    evidence_log.take()
    counters = a.engine.counters()
    assert (
        evidence_log.sum("answered") + evidence_log.sum("lost") - evidence_log.sum("late")
        == counters["requests_sent"]
    )
    assert evidence_log.sum("lost") - evidence_log.sum("late") == counters["lost"] >= responder.dropped
    assert evidence_log.sum("late") == counters["spurious"]


def test_an_answer_that_comes_late_takes_the_loss_back(
    make_nic: MakeNic, make_responder: MakeResponder
) -> None:
    a = make_nic("a/lo", timeout_ms=10_000, rate_pps=2000.0)
    responder = make_responder(a.address, reorder=0.005, seed=9)  # holds some replies until it has nine
    a.engine.set_peers([Peer("r/lo", *responder.address)])
    a.start()
    evidence_log = EvidenceLog(a.engine)
    evidence_log.until(lambda: evidence_log.sum("late") > 15)
    for event in evidence_log.events:
        for status in event.paths:
            assert status.late <= status.answered
    assert evidence_log.sum("lost") >= evidence_log.sum("late")
    a.until(lambda: a.samples() > 500)
    assert a.lost() == 0, "its sample counts all the same"


def test_a_removed_peer_leaves_no_losses_to_its_successor(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", max_peers=1, timeout_ms=300), make_nic("b/lo")
    a.engine.set_peers([Peer("gone/lo", b.address, 9)])
    a.start()
    b.start()
    evidence_log = EvidenceLog(a.engine)
    evidence_log.until(lambda: evidence_log.row() >= 3)
    a.engine.set_peers([])
    evidence_log.take()
    evidence_log.events.clear()

    def asked() -> bool:
        a.engine.drain()  # slots rest until nothing of who had them can come any more
        a.engine.set_peers([b.peer()])
        return evidence_log.sum("answered") > 200

    evidence_log.until(asked)
    # b may have slept; what is not b's never comes back
    evidence_log.until(lambda: evidence_log.sum("lost") == evidence_log.sum("late"))
    assert {status.peer for status in evidence_log.paths()} == {"b/lo"}


def test_a_peer_at_a_new_address_starts_without_evidence(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", timeout_ms=200), make_nic("b/lo")
    a.engine.set_peers([b.peer("x/lo", port=9)])
    a.start()
    evidence_log = EvidenceLog(a.engine)
    evidence_log.until(lambda: evidence_log.row() >= 3)
    c = make_nic("x/lo")
    c.start()
    a.engine.set_peers([c.peer("x/lo")])
    evidence_log.take()
    evidence_log.events.clear()
    evidence_log.until(lambda: evidence_log.sum("answered") > 100)
    evidence_log.until(lambda: evidence_log.sum("lost") == evidence_log.sum("late"))


def test_news_beyond_the_batch_limit_comes_with_the_next_batch(make_nic: MakeNic) -> None:
    a, b = make_nic("a/lo", paths=8), make_nic("b/lo")
    a.engine.set_peers([b.peer()])
    a.start()
    b.start()
    a.until(lambda: a.samples() > 500)
    first = a.engine.evidence(3)
    second = a.engine.evidence()
    assert len(first.paths) == 3
    assert len({status.path for status in (*first.paths, *second.paths)}) == 8


def test_requests_without_a_route_count_as_stuck_and_not_as_lost(make_nic: MakeNic) -> None:
    a = make_nic("a/lo", timeout_ms=50)
    a.engine.set_peers([Peer("far/lo", "240.0.0.1", 9)])  # from a loopback address nothing goes there
    a.start()
    evidence_log = EvidenceLog(a.engine)
    evidence_log.until(lambda: sum(event.stuck for event in evidence_log.events) > 20)
    assert evidence_log.sum("lost") == 0
    assert a.engine.counters()["stuck"] > 20


CHILD = """
import json, os, sys, threading, select
from native.core.probe import Engine, Peer, open_sockets
address, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sockets = open_sockets(address, 0, 0, 2)
engine = Engine(sockets, nic="child/lo", key=bytes(range(16)), rate_pps=1000.0, timeout_ms=5000)
engine.set_peers([Peer(name, address, port)])
threading.Thread(target=engine.run, daemon=True).start()
print(json.dumps(sockets.port), flush=True)
for line in sys.stdin:
    e = engine.evidence()
    lost, answered = sum(w.lost - w.late for w in e.paths), sum(w.answered for w in e.paths)
    print(json.dumps({"late_ns": e.late_ns, "lost": lost, "answered": answered}), flush=True)
engine.stop()
"""


@pytest.fixture
def child() -> Iterator[Callable[[str, int, str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(address: str, port: int, name: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, address, str(port), name],
            cwd=ROOT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.stdin.close()  # type: ignore[union-attr]  # they are pipes
        process.wait(10)
        process.stdout.close()  # type: ignore[union-attr]


def test_an_agent_without_cpu_time_reports_starvation_and_no_losses_of_its_own(
    make_nic: MakeNic, child: Callable[..., Any]
) -> None:
    a = make_nic("a/lo", timeout_ms=5000)
    a.start()
    process = child(a.address, a.sockets.port, "a/lo")

    def ask() -> dict[str, Any]:
        process.stdin.write("\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    port = json.loads(process.stdout.readline())
    a.engine.set_peers([Peer("child/lo", a.address, port)])
    evidence_log = EvidenceLog(a.engine)
    evidence_log.until(lambda: evidence_log.sum("answered") > 300)
    ask()
    evidence_log.take()
    evidence_log.events.clear()
    process.send_signal(signal.SIGSTOP)
    evidence_log.until(
        lambda: evidence_log.row() >= 50
    )  # towards the outside it is as dead, for longer than any of its pauses
    process.send_signal(signal.SIGCONT)
    evidence_log.until(
        lambda: evidence_log.row() == 0 and evidence_log.sum("lost") == evidence_log.sum("late")
    )
    heard, mine = 0, []
    while heard < 100:
        mine.append(ask())
        heard += mine[-1]["answered"]
    assert max(each["late_ns"] for each in mine) > 5_000_000
    assert sum(each["lost"] for each in mine) == 0, "answers that lay unread are no losses"
    assert a.lost() == 0
