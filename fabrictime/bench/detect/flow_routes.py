"""Compares the published routes of live flows on a fabric of real packets with the links' counters.

A burst with the flow's own ports increments the counters of its true links. The figures are the share of
flows with exactly these links, the time from a flow's start to its published route, and the time until all
routes of an all-to-all of movable flows are known, in both directions.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.testbed.control import ControlClient
from schemas import codec
from schemas.ipc import connect
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.topics import FLOW_ROUTES, FLOWS, Topic
from streams.runtime.flow_routes import FlowRouteTable

FLOWS_EACH: Final = 6
"""Number of UDP flows, and also of TCP flows."""
RATE_BPS: Final = 2_000_000
FLOW_S: Final = 60.0
LIMIT_S: Final = 40.0
CHECKED: Final = 200
PEER_PORT: Final = 5201


def measure_routes(
    control: ControlClient, bootstrap: str, socket: Path, progress: Progress
) -> dict[str, Value]:
    """Measure and return the figures by key, in about half a minute."""
    nics = {nic["nic"]: nic for nic in control.ask("show")["nics"]}
    follower = _Follower(bootstrap)
    try:
        progress("flows: their own paths")
        figures = _flow_paths(control, follower, sorted(nics))
        progress("flows: ways that they could take, all to all")
        return figures | _all_to_all(control, follower, nics, socket)
    finally:
        follower.close()


TOPICS: Final[tuple[Topic, ...]] = (FLOWS, FLOW_ROUTES)


class _Follower:
    """Reads flow reports and flow routes from now on."""

    def __init__(self, bootstrap: str) -> None:
        starts = dict.fromkeys(TOPICS, BEGINNING)
        self._reader = TopicReader.open(bootstrap, starts, fetch_wait_ms=20)
        self.book = FlowRouteTable()
        self.hops: dict[tuple[str, str, int, int], tuple[float, list[str]]] = {}
        """By a flow's protocol, NIC and ports: time, s, of its first published links, and the newest."""

    def until(self, subject: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
        """Read the log until `subject()` is true, for at most `limit_s`; return whether it became true."""
        deadline = time.monotonic() + limit_s
        while not subject():
            if time.monotonic() > deadline:
                return False
            for message in self._reader.poll(0.05, 200):
                self._take(message)
        return True

    def close(self) -> None:
        """Close the consumer."""
        self._reader.close()

    def _take(self, message: Message) -> None:
        if message.topic == FLOW_ROUTES.name:
            self.book.take(message.key_bytes, message.value)
            return
        for flow in codec.decode(message.value or b"", FLOWS.record)["flows"]:
            if flow["links"]:
                key = (flow["protocol"], flow["nic"], flow["source_port"], flow["peer_port"])
                first_s, _ = self.hops.get(key, (message.append_ns / 1e9, []))
                self.hops[key] = (first_s, flow["links"])


def _flow_paths(control: ControlClient, follower: _Follower, nics: list[str]) -> dict[str, Value]:
    count = len(nics)
    flow_ends = [
        (protocol, nics[at % count], nics[(at + 1 + (at // count + count // 2) % (count - 1)) % count])
        for protocol in ("udp", "tcp")
        for at in range(FLOWS_EACH)
    ]
    started: list[tuple[tuple[str, str, int, int], str, float]] = []
    ready = threading.Semaphore(0)

    def run(protocol: str, nic: str, peer: str) -> None:
        results = control.stream(
            "flow",
            FLOW_S + 30,
            source=nic,
            destination=peer,
            rate_bps=RATE_BPS,
            duration_s=FLOW_S,
            protocol=protocol,
            job="bench",
        )
        first = next(results)
        key = (protocol.upper(), nic, first["sport"], first["dport"])
        started.append((key, peer, time.time()))
        ready.release()
        ended.wait()
        results.close()  # a generator: the flow ends with its client

    ended = threading.Event()
    threads = [threading.Thread(target=run, args=ends, daemon=True) for ends in flow_ends]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            if not ready.acquire(timeout=LIMIT_S):
                return dict.fromkeys(("flow_paths_right", "flow_path_known_ms_p95"), Missing("no flows"))
        follower.until(lambda: all(key in follower.hops for key, _, _ in started))
        took_ms, right = [], 0
        for key, peer, began_s in started:
            protocol, nic, sport, dport = key
            true = control.ask(
                "path", source=nic, destination=peer, sport=sport, dport=dport, protocol=protocol.lower()
            )
            first_s, hops = follower.hops.get(key, (np.inf, []))
            right += hops == true
            took_ms.append(max(0.0, (first_s - began_s) * 1e3))
    finally:
        ended.set()
    published = sum(np.isfinite(flow_ms) for flow_ms in took_ms)
    note = f"{len(started)} flows of UDP and TCP, by the links' counters; {published} published at all"
    p95_ms = float(np.quantile(took_ms, 0.95, method="higher"))
    return {
        "flow_paths_right": Figure(right / len(started), note=note),
        "flow_path_known_ms_p95": p95_ms if np.isfinite(p95_ms) else Missing(note),
    }


def _all_to_all(
    control: ControlClient, follower: _Follower, nics: dict[str, dict[str, Any]], socket: Path
) -> dict[str, Value]:
    """Register a movable flow from each NIC to each other host's NIC; wait until all routes are known."""
    pairs = [(a, b) for a in nics for b in nics if nics[a]["host"] != nics[b]["host"]]
    with ExitStack() as stack:
        program = stack.enter_context(connect(socket, 10))
        began_s = time.monotonic()
        for number, (nic, peer) in enumerate(pairs):
            lines = {
                "protocol": "udp",
                "source_address": nics[nic]["address"],
                "source_port": 40_000 + number,
                "peer_address": nics[peer]["address"],
                "peer_port": PEER_PORT,
                "cookie": 2**63 + number,
                "sent_bytes": 1,
                "at_ns": time.monotonic_ns(),
                "can": ["MOVE"],
            }
            program.sendall(json.dumps(lines).encode() + b"\n")

        def all_known() -> bool:
            return all(
                len(routes := follower.book.of(nic, peer, PEER_PORT)) > 1
                and all(route.reverse for route in routes.values())
                for nic, peer in pairs
            )

        if not follower.until(all_known):
            return dict.fromkeys(("ways_right", "ways_known_s"), Missing(f"not all within {LIMIT_S:g} s"))
        took_s = time.monotonic() - began_s
        published = [
            (nic, peer, port, route)
            for nic, peer in pairs
            for port, route in follower.book.of(nic, peer, PEER_PORT).items()
        ]
        sample = published[:: max(1, len(published) // CHECKED)]
        right = sum(
            list(route.links) == _likely(control, nic, peer, port, PEER_PORT)
            and list(route.reverse) == _likely(control, peer, nic, PEER_PORT, port)
            for nic, peer, port, route in sample
        )
    note = f"{len(published)} ways of {len(pairs)} pairs, there and back; {len(sample)} held to the routes"
    return {
        "ways_right": Figure(right / len(sample), note=note),
        "ways_known_s": took_s,
    }


def _likely(control: ControlClient, nic: str, peer: str, sport: int, dport: int) -> list[str]:
    links: list[str] = control.ask(
        "path", source=nic, destination=peer, sport=sport, dport=dport, likely=True
    )
    return links
