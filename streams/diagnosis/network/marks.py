"""Reads CE marks on the probes of a job's pairs: the marked class and path, and links that may queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

from streams.diagnosis.case import Case
from streams.diagnosis.network.delay_windows import PairDelay
from streams.diagnosis.network.traffic import NicPair
from streams.diagnosis.network.view import Links

MAX_PAIRS: Final = 256
"""Largest number of a job's pairs that are compared with a marked one."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Counts of requests of one traffic class between two NICs, and of those that arrived with a CE mark."""

    dscp: int
    path: int
    """Path with the largest share of marked probes."""
    probes: int
    marked: int

    @property
    def share(self) -> float:
        """Share of the path's probes, 0 to 1, that arrived with a CE mark."""
        return self.marked / self.probes

    @property
    def text(self) -> str:
        """Return a sentence with the share of marked probes and their traffic class."""
        return f"{self.share:.0%} of {self.probes} probes with DSCP {self.dscp} arrive marked CE"


def marks_of(case: Case, pair: NicPair) -> list[Marks]:
    """Return the most marked path of each traffic class of a pair; the class with most marks comes first.

    If probes use the source ports of the pair's flows, only the paths of these ports count.
    """
    ports = {flow["source_port"] for flow in pair.flows}
    delays = case.network.delays(pair.nic, pair.peer, case.begin_ns, case.end_ns)
    counts = _counts([delay for delay in delays if delay.path in ports] or delays)
    best: dict[int, Marks] = {}
    for (dscp, path), (probes, marked) in sorted(counts.items()):
        marks = Marks(dscp, path, probes, marked)
        if probes >= case.rules.min_marked and (dscp not in best or marks.share > best[dscp].share):
            best[dscp] = marks
    return sorted(best.values(), key=lambda item: (-item.share, item.dscp))


def usual_share(case: Case, pair: NicPair, dscp: int) -> float | None:
    """Return the median marked share of a class's probes over the job's other pairs; None without probes."""
    shares = [
        marks.share
        for key in sorted(case.traffic.pairs)[:MAX_PAIRS]
        if key != pair.key
        for marks in marks_of(case, case.traffic.pairs[key])
        if marks.dscp == dscp
    ]
    return median(shares) if shares else None


def links_of_marks(case: Case, pair: NicPair, marks: Marks) -> Links:
    """Return the links, in order, that the marked path crosses and no unmarked path of the job crosses."""
    route = case.network.routes.of_flow(pair.nic, pair.peer, marks.path, 0)
    unmarked: set[str] = set()
    for key in sorted(case.traffic.pairs)[:MAX_PAIRS]:
        delays = case.network.delays(*key, case.begin_ns, case.end_ns)
        for (dscp, path), (probes, marked) in _counts(delays).items():
            if dscp == marks.dscp and probes >= case.rules.min_marked and marked <= _few(case, probes):
                unmarked.update(case.network.routes.of_flow(*key, path, 0))
    return tuple(link for link in route if link not in unmarked)


def _few(case: Case, probes: int) -> float:
    """Return the number of marks up to which a path counts as unmarked: a tenth of the limit."""
    return case.rules.marked_share / 10 * probes


def _counts(delays: Iterable[PairDelay]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return, by traffic class and path, the numbers of all probes and of marked probes."""
    totals: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for delay in delays:
        counts = totals[delay.dscp, delay.path]
        counts[0] += delay.samples
        counts[1] += delay.marked
    return {key: (probes, marked) for key, (probes, marked) in totals.items()}
