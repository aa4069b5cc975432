"""Measures how often probes cross each directed link and the route of each live flow.

Inputs are `fabric.probes` of an interval and the true route of each port pair. The results are the intervals
between two probes of each link and each flow route, and the total probe rate. A flow route is the ordered
links of the flow's data, as in `producers/probe/flow_targets.py`. Requests and answers both count for a link.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fabrictime.bench import Figure, Value
from fabrictime.bench._fabric import CannotRun
from fabrictime.testbed.control import ControlClient
from schemas.records import ProbeBatch

Links = tuple[str, ...]
Route = Callable[[str, str, int, int], Links]
"""A function of (source NIC, destination NIC, source port, destination port) to the links of such packets."""
Times = Mapping[tuple[str, str, int], NDArray[np.int64]]
"""Times at which requests were sent, ns of the system clock, by (NIC, peer, source port)."""

ASKED_MS: Final = 5.0
FLOW_BPS: Final = 500_000
READY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Flow:
    """A live flow, identified by its NICs and ports."""

    nic: str
    peer: str
    port: int
    peer_port: int


@dataclass(frozen=True, slots=True)
class Cover:
    """Gaps between the probes of each subject, ns, in order; the whole interval below two probes."""

    gaps_ns: Mapping[Any, NDArray[np.int64]]

    def mean_ms(self) -> NDArray[np.float64]:
        """Return the mean gap of each subject."""
        return np.array([gaps.mean() / 1e6 for gaps in self.gaps_ns.values()])

    def all_ms(self) -> NDArray[np.float64]:
        """Return all gaps of all subjects."""
        return np.concatenate(list(self.gaps_ns.values())) / 1e6

    def long_share(self, ms: float = ASKED_MS) -> float:
        """Return the share of the time that lies in gaps above `ms`."""
        every = self.all_ms()
        return float(every[every > ms].sum() / every.sum())


def times_of(batches: Iterable[ProbeBatch], begin_ns: int, end_ns: int) -> dict[Any, NDArray[np.int64]]:
    """Return, by (NIC, peer, source port), the times at which answered requests were sent in an interval.

    Times are in ns of the system clock; they come from `ProbeBatch` records.
    """
    times_by_path: dict[tuple[str, str, int], list[NDArray[np.int64]]] = {}
    for batch in batches:
        ahead_ns = batch["clock_ns"] - batch["system_ns"]
        for element in batch["samples"]:
            at_ns = np.cumsum(np.array(element["sent"], np.int64)) - ahead_ns
            times_by_path.setdefault((batch["nic"], element["peer"], element["path"]), []).append(at_ns)
    times = {}
    for key, parts in times_by_path.items():
        at_ns = np.sort(np.concatenate(parts))
        at_ns = at_ns[(at_ns >= begin_ns) & (at_ns < end_ns)]
        if len(at_ns):
            times[key] = at_ns
    return times


def cover_of(probes: Mapping[Any, Sequence[NDArray[np.int64]]], begin_ns: int, end_ns: int) -> Cover:
    """Return the gaps between probes of each subject.

    The ends of the measured interval count as probes, so that a subject with one probe has long gaps.
    """
    gaps = {}
    for subject, parts in probes.items():
        at_ns = np.sort(np.concatenate([np.array([begin_ns, end_ns], np.int64), *parts]))
        gaps[subject] = np.diff(at_ns)
    return Cover(gaps)


def figures_of(
    times: Times,
    ports: Mapping[str, int],
    links: Iterable[str],
    flows: Sequence[Flow],
    route: Route,
    interval: tuple[int, int],
) -> dict[str, Value]:
    """Return the figures about the probe intervals of links and of flow routes.

    `ports` has the probe port of each NIC; `interval` is begin and end, ns of the system clock.
    """
    of_link: dict[str, list[NDArray[np.int64]]] = {link: [] for link in links}
    of_flow: dict[Flow, list[NDArray[np.int64]]] = {flow: [] for flow in flows}
    true = {flow: route(flow.nic, flow.peer, flow.port, flow.peer_port) for flow in flows}
    for (nic, peer, port), at_ns in times.items():
        there, back = route(nic, peer, port, ports[peer]), route(peer, nic, ports[peer], port)
        for link in {*there, *back} & of_link.keys():
            of_link[link].append(at_ns)
        for flow in flows:
            if (flow.nic, flow.peer) == (nic, peer) and true[flow] == there:
                of_flow[flow].append(at_ns)
    figures: dict[str, Value] = {}
    for name, subject, probes in (("link", "directed links", of_link), ("flow_route", "live flows", of_flow)):
        if not probes:
            continue
        cover = cover_of(probes, *interval)
        means, every = cover.mean_ms(), cover.all_ms()
        note = (
            f"the worst of {len(means)} {subject}; all: {np.median(means):.1f} ms in the median, gaps p99"
            f" {np.percentile(every, 99):.1f} most {every.max():.0f} ms,"
            f" {cover.long_share():.0%} of the time in gaps above {ASKED_MS:g} ms"
        )
        figures[f"{name}_probed_every_ms"] = Figure(float(means.max()), "ms", note)
        figures[f"{name}s_probed_in_time"] = Figure(float((means <= ASKED_MS).mean()), "1")
    return figures


@contextmanager
def live_flows(
    control: ControlClient, pairs: Sequence[tuple[str, str]], seconds: float
) -> Iterator[list[Flow]]:
    """Run a slow UDP flow per (NIC, peer) during the block; yield the flows once all run.

    Raises CannotRun.
    """
    started: list[Flow] = []
    ready, ended = threading.Semaphore(0), threading.Event()

    def run(nic: str, peer: str) -> None:
        results = control.stream(
            "flow",
            seconds + 30,
            source=nic,
            destination=peer,
            rate_bps=FLOW_BPS,
            duration_s=seconds,
            protocol="udp",
        )
        first = next(results)
        started.append(Flow(nic, peer, first["sport"], first["dport"]))
        ready.release()
        ended.wait()
        results.close()  # a generator: the flow ends with its client

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in pairs]
    try:
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + READY_S
        for _ in threads:
            if not ready.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise CannotRun(f"flows: {len(started)} of {len(pairs)} run after {READY_S:g} s")
        yield sorted(started, key=lambda flow: (flow.nic, flow.peer, flow.port))
    finally:
        ended.set()
        for thread in threads:
            thread.join(5)
