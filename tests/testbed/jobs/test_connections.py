"""Connections under streams, over loopback: opened, moved without a lost byte, paced, and refused."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fabrictime.testbed.jobs.connections import Carried, Connections, Place, congestion_of
from fabrictime.testbed.jobs.plan import make_job_plan
from fabrictime_client import FlowEndpoint
from native.jobs.streams import DONE, Streams

HERE, THERE = Place("h1", None, "127.0.0.1"), Place("h2", None, "127.0.0.2")
SIZE = 200_000


@pytest.fixture
def endpoint() -> Iterator[FlowEndpoint]:
    """An endpoint without agents."""
    with FlowEndpoint("", "") as made:
        yield made


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def job(endpoint):
    """Open a job from one address of loopback to another; its streams and connections."""
    made: list[Connections] = []

    def start(iterations: int) -> tuple[Streams, Connections]:
        plan = make_job_plan("incast", 2, 1, SIZE)
        streams = Streams(plan.ranks, plan.ends, plan.parts, iterations=iterations, check=True)
        carried = [
            Carried(route.stream, (THERE, HERE)[route.sender], (THERE, HERE)[route.receiver], free_port())
            for route in plan.routes
        ]
        made.append(Connections(streams, carried, 0, endpoint, congestion="reno"))
        assert made[-1].open(time.monotonic_ns() + 5_000_000_000, lambda: False)
        return streams, made[-1]

    yield start
    for each in made:
        each.close()


def finish(streams: Streams, connections: Connections) -> None:
    end_ns = time.monotonic_ns() + 10_000_000_000
    while connections.run(end_ns) != DONE:
        assert time.monotonic_ns() < end_ns


def test_a_move_in_the_middle_loses_and_doubles_nothing(job) -> None:
    streams, connections = job(20)
    [one] = connections.carried
    before, port = one.port, free_port()
    connections.run(time.monotonic_ns() + 1_000_000)
    assert one.flow is not None
    connections.move(one, port)
    finish(streams, connections)
    assert streams.got(one.stream) == 20 * SIZE
    assert (streams.spoilt, connections.lost) == (0, 0)
    assert [(move["from_port"], move["to_port"]) for move in connections.moves] in ([], [(before, port)])


def test_a_pace_is_the_lower_of_the_jobs_own_and_the_actuators(job) -> None:
    _, connections = job(1)
    [one] = connections.carried
    assert one.flow is not None
    one.own_pace_bps = 5_000_000
    for asked, paced in ((8_000_000, 5_000_000), (2_000_000, 2_000_000), (0, 5_000_000)):
        connections.pace(one, asked)
        assert one.pace_bps == paced


def test_a_move_to_a_port_that_is_taken_leaves_the_stream_where_it_is(job) -> None:
    streams, connections = job(3)
    [one] = connections.carried
    assert one.flow is not None
    before = one.port
    with socket.create_server((one.source.address, 0)) as taken, pytest.raises(OSError, match="in use"):
        connections.move(one, taken.getsockname()[1])
    finish(streams, connections)
    assert (one.port, streams.got(one.stream)) == (before, 3 * SIZE)


def test_a_congestion_control_that_the_kernel_lacks_is_named() -> None:
    with socket.socket() as sock, pytest.raises(OSError, match="'nonesuch' is not in this kernel"):
        congestion_of(sock, "nonesuch")


def test_a_congestion_control_that_only_root_may_use_is_no_missing_one() -> None:
    available, allowed = (
        set(Path(f"/proc/sys/net/ipv4/tcp_{kind}_congestion_control").read_text().split())
        for kind in ("available", "allowed")
    )
    if os.geteuid() == 0 or not available - allowed:
        pytest.skip("root may use all, or this kernel allows all to everybody")
    name = min(available - allowed)
    with socket.socket() as sock, pytest.raises(OSError, match=f"'{name}': net.ipv4.tcp_allowed"):
        congestion_of(sock, name)
