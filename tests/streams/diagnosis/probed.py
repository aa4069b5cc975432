"""Probes among a job's NICs over two spines, with losses and queues by link, second by second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from schemas.records import ClockSync, PathDelays, PathMaps
from streams.diagnosis.network.view import NetworkView
from tests.records import make, make_part
from tests.streams.diagnosis.scenario import MS, S, nic, route

PORTS = range(40_000, 40_004)
"""Paths of each pair, over the spines in turn."""
Loss = Callable[[int, int, list[str], int], float]
"""Share of lost probes, of (source, target, links of both directions, second)."""


def links_of(source: int, target: int, path: int) -> tuple[list[str], list[str]]:
    """Links of a probe's request and answer: both cross the same spine."""
    spine = path % 2
    return route(source, target, spine), route(target, source, spine)


def trace(view: NetworkView, hosts: Sequence[int]) -> None:
    """Let the view know the routes of all probes among some hosts."""
    for source in hosts:
        for target in hosts:
            if source == target:
                continue
            paths = [
                make_part(
                    "PathMaps", "PathMap", path=path, leg=leg, links=links, found="TRACED", complete=True
                )
                for path in PORTS
                for leg, links in (
                    ("REQUEST", links_of(source, target, path)[0]),
                    ("ANSWER", links_of(target, source, path)[1]),
                )
            ]
            view.take_paths(make(PathMaps, nic=nic(source), peer=nic(target), shard="fabric", paths=paths))


def probe(
    view: NetworkView,
    hosts: Sequence[int],
    begin_ns: int,
    seconds: int,
    loss: Loss,
    *,
    queue_ms: Loss = lambda *_: 0.1,
    per_path: int = 10,
    seed: int = 1,
    **fields: Any,
) -> int:
    """Report so many seconds of probes; return their end."""
    rng = np.random.default_rng(seed)
    for second in range(seconds):
        for source in hosts:
            elements = []
            for target in hosts:
                for path in PORTS if target != source else ():
                    links = [*links_of(source, target, path)[0], *links_of(source, target, path)[1]]
                    lost = int(rng.binomial(per_path, loss(source, target, links, second)))
                    queue_ns = queue_ms(source, target, links, second) * MS * rng.uniform(0.8, 1.0)
                    known = per_path > lost
                    elements.append(
                        make_part(
                            "PathDelays", "PathDelay", peer=nic(target), path=path, count=per_path - lost,
                            lost=lost, rtt_min_ns=9_000.0 if known else None,
                            rtt_p50_ns=9_000.0 + queue_ns / 3 if known else None,
                            rtt_p99_ns=9_000.0 + queue_ns if known else None,
                        )
                    )  # fmt: skip
            at_ns = begin_ns + second * S
            view.take_delays(
                make(
                    PathDelays,
                    **{
                        "nic": nic(source), "shard": "fabric", "window": at_ns // S, "parts": 1,
                        "window_start_ns": at_ns, "window_end_ns": at_ns + S, "state": ClockSync.SYNCED,
                        "paths": elements, **fields,
                    },
                )
            )  # fmt: skip
    return begin_ns + seconds * S
