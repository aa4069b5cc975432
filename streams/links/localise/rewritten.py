"""Localises where the network changes the DSCP of probes, so that they use another class's queues.

Each prober reports the DSCP with which its requests and the replies arrive, by path and class. Only a link or
switch that lies on changed routes, and on no unchanged one, may be the place. The fewest places that explain
all changed routes are published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.ids import cable_id, end_parts, link_ends, natural
from schemas.records import LinkEvent
from streams.links.evidence.path_table import Links, Routes
from streams.links.evidence.probe_evidence import Evidence
from streams.links.health.text import count_text
from streams.runtime.units import NS_PER_S

LASTING_NS: Final = 2 * NS_PER_S
"""Time for which a DSCP must stay changed: a route may just have moved to links that are unknown yet."""
FRESH_NS: Final = 5 * NS_PER_S
"""Age up to which an answer makes its path evidence; paths with answers are reported each second."""
MIN_ROUTES: Final = 2
"""Changed routes needed to publish a change, unless only one route is probed in that class."""
MAX_NAMED: Final = 3
SEARCH_GAP_NS_PER_PATH: Final = 50_000
"""Time between two searches, per path of the shard, so that searches take little CPU time."""

_Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class RewrittenClass:
    """A DSCP that arrives as another DSCP. `places`: cables and switches that explain the change."""

    sent: int
    arrived: int
    routes: int
    all_routes: int
    places: tuple[tuple[str, ...], ...]
    """Each place is a group of cables and switches that cannot be told apart."""
    since_ns: int

    def text(self, since: str) -> str:
        """Return a readable line with the DSCPs, the number of routes, and the place of the change."""
        named = [" or ".join(place[:MAX_NAMED]) for place in self.places[:MAX_NAMED]]
        more = len(self.places) - len(named)
        where = ", ".join(named) + (f" and {count_text(more, 'more place')}" if more > 0 else "")
        routes = f"{self.routes:,} of {count_text(self.all_routes, 'route')}"
        return f"DSCP {self.sent} arrives as DSCP {self.arrived} on {routes} since {since}; " + (
            f"changed at {where}" if named else "the place is not known"
        )


@dataclass(slots=True)
class _Change:
    """The DSCPs with which requests and replies of one class arrive; None where the DSCP is unchanged."""

    arrived: tuple[int | None, int | None]
    since_ns: int
    at_ns: int


UNCHANGED: Final = _Change((None, None), 0, 0)


class DscpChanges:
    """The paths of a shard on which the network changes a DSCP. Times are ns of log append time."""

    def __init__(self) -> None:
        self._paths: dict[_Key, dict[int, _Change]] = {}
        self._due_ns = 0

    @property
    def is_empty(self) -> bool:
        """Whether no path has a changed DSCP."""
        return not self._paths

    def ingest(self, event: LinkEvent, now_ns: int) -> None:
        """Ingest one event's reports of the DSCPs with which packets arrive; `now_ns`: time of the event."""
        for row in event["paths"]:
            key = (event["nic"], row["peer"], row["path"])
            if not row["classes"]:  # one class, which keeps its DSCP
                if row["answered"] and self._paths:
                    self._paths.pop(key, None)
                continue
            for class_report in row["classes"]:
                if class_report["answered"]:
                    self._note(
                        key,
                        class_report["dscp"],
                        (class_report["forward_dscp"], class_report["reverse_dscp"]),
                        now_ns,
                    )

    def _note(self, key: _Key, sent: int, arrived: tuple[int | None, int | None], now_ns: int) -> None:
        previous = self._paths.get(key, {}).get(sent)
        if arrived == (None, None):
            if previous is not None:
                del self._paths[key][sent]
                if not self._paths[key]:
                    del self._paths[key]
        elif previous is not None and previous.arrived == arrived:
            previous.at_ns = now_ns
        else:
            self._paths.setdefault(key, {})[sent] = _Change(arrived, now_ns, now_ns)

    def is_due(self, paths: int, now_ns: int) -> bool:
        """Return whether a search is due; if so, schedule the next one: the more `paths`, the later."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + paths * SEARCH_GAP_NS_PER_PATH
        return True

    def find(self, evidence: Evidence, routes: Routes, now_ns: int) -> list[RewrittenClass]:
        """Return the DSCPs that the network changes now, and where it changes them."""
        self._forget(now_ns - 4 * FRESH_NS)
        rewritten: list[RewrittenClass] = []
        for sent in sorted({sent for classes in self._paths.values() for sent in classes}):
            changed, unchanged = self._routes_of(sent, evidence, routes, now_ns)
            total = len(unchanged) + sum(len(changed_routes) for changed_routes in changed.values())
            for arrived, group in sorted(changed.items()):
                if len(group) >= min(MIN_ROUTES, total):
                    since_ns = min(since_ns for _, since_ns in group)
                    places = _places([links for links, _ in group], unchanged)
                    rewritten.append(RewrittenClass(sent, arrived, len(group), total, places, since_ns))
        return rewritten

    def _forget(self, before_ns: int) -> None:
        for key, classes in list(self._paths.items()):
            for sent in [sent for sent, change in classes.items() if change.at_ns < before_ns]:
                del classes[sent]
            if not classes:
                del self._paths[key]

    def _routes_of(
        self, sent: int, evidence: Evidence, routes: Routes, now_ns: int
    ) -> tuple[Mapping[int, list[tuple[Links, int]]], list[Links]]:
        """Return the routes that change DSCP `sent`, by the DSCP that arrives, and the routes that keep it.

        Routes are directed. Each changed route is paired with the start of the change, ns. A route whose
        links are unknown is empty.
        """
        changed: dict[int, list[tuple[Links, int]]] = defaultdict(list)
        unchanged: list[Links] = []
        is_split = len(evidence.dscps) > 1 and sent in evidence.dscps
        column = evidence.dscps.index(sent) if is_split else 0
        for nic, state in evidence.nics.items():
            for (peer, path), at in state.paths.items():
                if evidence.path_answer_ns[at] < now_ns - FRESH_NS:
                    continue
                change = self._paths.get((nic, peer, path), {}).get(sent, UNCHANGED)
                if change is UNCHANGED and is_split and not evidence.class_answered[at, column].any():
                    continue  # no packet of the class arrives there
                legs = routes.forward(nic, peer, path), routes.reverse(nic, peer, path)
                for links, arrived in zip(legs, change.arrived, strict=True):
                    if arrived is None:
                        unchanged.append(links)
                    elif change.since_ns <= now_ns - LASTING_NS:
                        changed[arrived].append((links, change.since_ns))
        return changed, unchanged


def _places(changed: Iterable[Links], unchanged: Iterable[Links]) -> tuple[tuple[str, ...], ...]:
    """Return the fewest places that explain the changed routes, each with its equally good alternatives."""
    innocent = set(_of_route(tuple(set().union(*unchanged))))
    over: dict[str, set[int]] = defaultdict(set)
    left: set[int] = set()
    for number, links in enumerate(changed):
        for place in _of_route(links):
            if place not in innocent:
                over[place].add(number)
                left.add(number)
    places: list[tuple[str, ...]] = []
    while left:
        rank = {
            place: (-len(crossing & left), ">" not in place, natural(place))
            for place, crossing in over.items()
        }
        best = min(rank, key=rank.__getitem__)
        explained = over[best] & left
        # A switch beside the link explains the same where all its probed traffic crosses that link.
        same = [place for place in sorted(over, key=natural) if over[place] & left == explained]
        places.append(tuple(dict.fromkeys(_name(place) for place in same)))
        left -= explained
    return tuple(places)


def _of_route(links: Links) -> list[str]:
    """Return the names of a route's links, and of the nodes at their ends."""
    return list(dict.fromkeys([*links, *(end_parts(end).node for link in links for end in link_ends(link))]))


def _name(place: str) -> str:
    return cable_id(place) if ">" in place else place
