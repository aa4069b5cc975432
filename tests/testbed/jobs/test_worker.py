"""One job over loopback in this process: the lines that it reports, its orders, and ports that are taken."""

from __future__ import annotations

import base64
import json
import os
import select
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from fabrictime.testbed.jobs import worker as job_worker
from fabrictime.testbed.jobs.worker import _Order, _Orders
from fabrictime_client import FlowEndpoint

RANKS = [{"host": f"h{number}", "netns": None, "address": f"127.0.0.{number}"} for number in (1, 2, 3)]


@pytest.fixture
def endpoint() -> Iterator[FlowEndpoint]:
    """An endpoint without agents."""
    with FlowEndpoint("", "") as made:
        yield made


class Orders:
    """Orders of a starter, handed out once."""

    is_stopping = False

    def __init__(self, *orders: dict[str, list[int]]) -> None:
        self.waiting = list(orders)

    def take(self) -> list[dict[str, list[int]]]:
        found, self.waiting = self.waiting, []
        return found

    def ended(self) -> bool:
        return False


def order(**fields: object) -> _Order:
    given = {
        "kind": "alltoall",
        "ranks": RANKS,
        "connections": 1,
        "size_bytes": 30_000,
        "iterations": 3,
        "duration_s": 20.0,
        "gap_s": 0.0,
        "slot_s": 0.01,
        "congestion": "reno",
        "seed": 5,
        "sports": None,
        "dport": 0,
        "dscp": 0,
        "check": True,
        "job": "train",
        "tenant": None,
        "registrations": None,
        "control": None,
    }
    return _Order(**(given | fields))


def test_every_byte_of_every_iteration_is_reported(
    capsys: pytest.CaptureFixture[str], endpoint: FlowEndpoint
) -> None:
    job_worker._run(order(), Orders(), endpoint)
    started, *between, ended = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(started["connections"]) == 6
    assert {each["flow"].partition(":")[0] for each in started["connections"]} == {"sock"}
    assert sum(len(each["iterations"]) for each in between) == 3
    assert sum(ended["received_bytes"]) == 3 * started["iteration_bytes"]
    assert (ended["spoilt_bytes"], ended["lost_connections"]) == (0, 0)
    slots = [np.frombuffer(zlib.decompress(base64.b64decode(each)), np.uint32) for each in ended["slots"]]
    assert [int(each.sum()) for each in slots] == ended["received_bytes"]


def test_the_same_seed_draws_the_same_ports(
    capsys: pytest.CaptureFixture[str], endpoint: FlowEndpoint
) -> None:
    ports = []
    for _ in range(2):
        job_worker._run(order(iterations=1, slot_s=0), Orders(), endpoint)
        started = json.loads(capsys.readouterr().out.splitlines()[0])
        ports.append([each["source_port"] for each in started["connections"]])
    assert ports[0] == ports[1]


def test_lines_are_orders_until_a_stop_or_the_end_of_input(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    orders = _Orders.__new__(_Orders)
    orders.is_stopping, orders._waiting, orders._poll = False, b"", select.poll()
    orders._poll.register(reading, select.POLLIN | select.POLLHUP)
    monkeypatch.setattr(job_worker.sys, "stdin", os.fdopen(reading))
    os.write(writing, b'{"move": [1, 5000')
    assert orders.take() == []
    os.write(writing, b"1]}\n\n")
    assert orders.take() == [{"move": [1, 50001]}]
    assert not orders.ended()
    os.write(writing, b"stop\n")
    assert orders.ended()
    os.close(writing)
    assert orders.ended()
    job_worker.sys.stdin.close()
