"""What a tab asks of a link, in the hub's threads: the paths over it with their delays, the flows, the jobs.

In: the fabric's state, and history for delays. Out: frozen answers. Without history the paths are told all
the same, without delays.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fabrictime.state import action_entries, flow_cache
from fabrictime.state.action_entries import Paces
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.flow_history import SIDE_NS
from fabrictime.state.link_index import Crossing
from fabrictime.web.history_client import History, HistoryError
from fabrictime.web.tabs.delays import queries
from fabrictime.web.tabs.fabric.frames import links_of_job

ASKED: Final = 300
"""Paths over one link of which history is asked for delays."""
SPAN_NS: Final = 12_000_000_000


@dataclass(frozen=True, slots=True)
class PathOver:
    """A path over the link, seen from the NIC that sends. Delays of its last ten seconds; None: not told."""

    nic: str
    peer: str
    path: int
    answer: bool
    p50_ns: float | None = None
    p99_ns: float | None = None
    bound_ns: float | None = None
    lost: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Over:
    """What crosses a link now. `trouble`: why there are no delays."""

    paths: list[PathOver]
    total: int
    pairs: int
    flows: list[dict[str, Any]]
    rate_bps: float
    jobs: dict[str, float]
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """What probes took one way over the links that a flow left, before it did, and over those that it took,
    after: the median path's median; None where no probe tells."""

    before_ns: float | None
    after_ns: float | None


class LinkQueries:
    """Questions about links."""

    def __init__(self, state: FabricState, history: History) -> None:
        self._state = state
        self._history = history

    def over(self, numbers: Sequence[int], now_ns: int) -> Over:
        """Return what crosses any of some links (both ways of a cable, say)."""
        with self._state.lock:
            found = list(dict.fromkeys(each for n in numbers for each in self._state.link_index.over(n)))
            flows = self._state.flows.flows()
            names = [self._state.cable_graph.name(number) for number in numbers]
        paths, trouble = self._delays(found, now_ns)
        crossing = flow_cache.crossing(flows, names)
        jobs: dict[str, float] = {}
        for flow in crossing:
            if flow["job"]:
                jobs[flow["job"]] = jobs.get(flow["job"], 0.0) + flow["rate_bps"]
        return Over(
            paths,
            len(found),
            len({(each.nic, each.peer) for each in found}),
            [dict(flow) for flow in crossing],
            sum(flow["rate_bps"] for flow in crossing),
            dict(sorted(jobs.items(), key=lambda job: -job[1])),
            trouble,
        )

    def job_links(self, job: str) -> set[int]:
        """Return the links that a job's flows cross."""
        with self._state.lock:
            return links_of_job(self._state.flows.flows(), job, self._state)

    def paces(self) -> Paces:
        """Return the flows that are paced, and the slices of tenants."""
        with self._state.lock:
            return action_entries.paces(self._state.flows.flows(), self._state.acts.configs)

    def around(self, left: Sequence[str], took: Sequence[str], at_ns: int, done_ns: int) -> Around:
        """Return the delays of probes over links left and taken, `SIDE_NS` before and after a move.
        Raises HistoryError."""
        sides = ((left, at_ns - SIDE_NS, at_ns), (took, done_ns, done_ns + SIDE_NS))
        return Around(*(self._over_links(*side) for side in sides))

    def _over_links(self, links: Sequence[str], from_ns: int, to_ns: int) -> float | None:
        with self._state.lock:
            numbers = [
                number for link in links if (number := self._state.cable_graph.known(link)) is not None
            ]
            found = sorted({each for n in numbers for each in self._state.link_index.over(n)})
        asked = found[:: max(1, -(-len(found) // ASKED))]
        if not asked:
            return None
        keys = [(c.peer, c.nic, c.path) if c.answer else (c.nic, c.peer, c.path) for c in asked]
        told = queries.delays_of(self._history, keys, from_ns, to_ns)
        medians = [
            (told[key].reverse if crossing.answer else told[key].forward)[0]
            for crossing, key in zip(asked, keys, strict=True)
            if key in told
        ]
        known = [each for each in medians if each is not None]
        return statistics.median(known) if known else None

    def _delays(self, found: list[Crossing], now_ns: int) -> tuple[list[PathOver], str | None]:
        every = max(1, -(-len(found) // ASKED))
        asked = sorted(found)[::every]
        if not asked:
            return [], None
        # a request's delay is its prober's `forward`, an answer's is the asker's `reverse`
        keys = [(c.peer, c.nic, c.path) if c.answer else (c.nic, c.peer, c.path) for c in asked]
        try:
            told = queries.delays_of(self._history, keys, now_ns - SPAN_NS)
        except HistoryError as error:
            return [PathOver(*crossing) for crossing in asked], str(error)
        rows = []
        for crossing, key in zip(asked, keys, strict=True):
            row = told.get(key)
            if row is None:
                rows.append(PathOver(*crossing))
                continue
            way = row.reverse if crossing.answer else row.forward
            rows.append(PathOver(*crossing, *way, row.bound_ns, row.lost, row.count))
        rows.sort(key=lambda row: (-(row.p99_ns or -1.0), row.nic, row.peer, row.path))
        return rows, None if told else "history has no newer delays of these paths"
