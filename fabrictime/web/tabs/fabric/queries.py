"""Queries about links: their paths with delays, their flows and jobs. They run in the poller's threads.

Paths and flows come from the live state, delays from the history. Without the history, paths have no delays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fabrictime.state import action_limits, flow_cache
from fabrictime.state.action_limits import Pacing
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.flow_history import SIDE_NS
from fabrictime.state.link_index import PathOnLink
from fabrictime.web.history_client import History, HistoryError
from fabrictime.web.tabs.delays import queries
from fabrictime.web.tabs.fabric.frames import links_of_job

MAX_QUERIED: Final = 300
"""Largest number of paths of one link whose delays are queried."""
SPAN_NS: Final = 12_000_000_000
"""Span of the queried delays, ns: ten seconds, and the time until windows reach the history."""


@dataclass(frozen=True, slots=True)
class PathFigures:
    """A path over a link, as its sending NIC knows it, and its delays of the last ten seconds; None without
    delays.
    """

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
class LinkTraffic:
    """Paths, flows and jobs on a link or cable. `trouble` is the reason why delays are missing."""

    paths: list[PathFigures]
    total: int
    pairs: int
    flows: list[dict[str, Any]]
    rate_bps: float
    jobs: dict[str, float]
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class MoveDelays:
    """One-way delays of probes around a flow's move: `before_ns` over the links that the flow left,
    `after_ns` over the links that it entered.

    Each delay is the median over the paths of their median delays; None without probes.
    """

    before_ns: float | None
    after_ns: float | None


class LinkQueries:
    """Runs queries about links in the poller's threads."""

    def __init__(self, state: FabricState, history: History) -> None:
        self._state = state
        self._history = history

    def traffic(self, numbers: Sequence[int], now_ns: Callable[[], int]) -> LinkTraffic:
        """Return the paths, flows and jobs that cross at least one of the links `numbers`, such as both
        directions of a cable.
        """
        state = self._state
        with state.lock:
            paths_on_link = list(
                dict.fromkeys(path for n in numbers for path in state.link_index.paths_over(n))
            )
            flows = state.flows.flows()
            names = [state.cable_graph.name(number) for number in numbers]
        paths, trouble = self._with_delays(paths_on_link, now_ns())
        on_links = flow_cache.flows_on(flows, names)
        jobs: dict[str, float] = {}
        for flow in on_links:
            if flow["job"]:
                jobs[flow["job"]] = jobs.get(flow["job"], 0.0) + flow["rate_bps"]
        return LinkTraffic(
            paths,
            len(paths_on_link),
            len({(path.nic, path.peer) for path in paths_on_link}),
            [dict(flow) for flow in on_links],
            sum(flow["rate_bps"] for flow in on_links),
            dict(sorted(jobs.items(), key=lambda job: -job[1])),
            trouble,
        )

    def job_links(self, job: str) -> set[int]:
        """Return the numbers of the links that a job's flows cross."""
        with self._state.lock:
            return links_of_job(self._state.flows.flows(), job, self._state)

    def pacing(self) -> Pacing:
        """Return the paced flows and the tenants' slices."""
        with self._state.lock:
            return action_limits.pacing(self._state.flows.flows(), self._state.actions.configs)

    def move_delays(
        self, left: Sequence[str], entered: Sequence[str], at_ns: int, done_ns: int
    ) -> MoveDelays:
        """Return probe delays before and after a flow's move, over the links that the flow left and entered.

        Each of the two intervals is `SIDE_NS` long: the first ends at `at_ns`, the second begins at
        `done_ns`. Raises HistoryError.
        """
        return MoveDelays(
            self._median_over(left, at_ns - SIDE_NS, at_ns),
            self._median_over(entered, done_ns, done_ns + SIDE_NS),
        )

    def _median_over(self, links: Sequence[str], from_ns: int, to_ns: int) -> float | None:
        state = self._state
        with state.lock:
            numbers = [n for link in links if (n := state.cable_graph.existing_number(link)) is not None]
            paths_on_link = sorted({path for n in numbers for path in state.link_index.paths_over(n)})
        queried = _sample(paths_on_link)
        if not queried:
            return None
        keys = [_history_key(path) for path in queried]
        delays = queries.delays_of(self._history, keys, from_ns, to_ns)
        medians = [
            (delays[key].reverse if path.answer else delays[key].forward)[0]
            for path, key in zip(queried, keys, strict=True)
            if key in delays
        ]
        measured = [median for median in medians if median is not None]
        return statistics.median(measured) if measured else None

    def _with_delays(
        self, paths_on_link: list[PathOnLink], now_ns: int
    ) -> tuple[list[PathFigures], str | None]:
        queried = _sample(sorted(paths_on_link))
        if not queried:
            return [], None
        keys = [_history_key(path) for path in queried]
        try:
            delays = queries.delays_of(self._history, keys, now_ns - SPAN_NS, now_ns)
        except HistoryError as error:
            return [PathFigures(*path) for path in queried], str(error)
        rows = []
        for path, key in zip(queried, keys, strict=True):
            row = delays.get(key)
            if row is None:
                rows.append(PathFigures(*path))
                continue
            p50_p99 = row.reverse if path.answer else row.forward
            rows.append(PathFigures(*path, *p50_p99, row.bound_ns, row.lost, row.count))
        rows.sort(key=lambda row: (-(row.p99_ns or -1.0), row.nic, row.peer, row.path))
        return rows, None if delays else "the history has no newer delays of these paths"


def _sample(paths: Sequence[PathOnLink]) -> list[PathOnLink]:
    """Return every n-th path, with n such that at most `MAX_QUERIED` paths remain."""
    return list(paths[:: max(1, -(-len(paths) // MAX_QUERIED))])


def _history_key(path: PathOnLink) -> tuple[str, str, int]:
    """Return the key of a path in the history: (prober, peer, path). The path of an answer has the key of the
    answered probe, because the history stores it as the probe's `reverse` direction.
    """
    return (path.peer, path.nic, path.path) if path.answer else (path.nic, path.peer, path.path)
