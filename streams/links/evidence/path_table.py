"""Probed paths of one shard, their routes and their losses, as array columns.

A path is a pair of prober and peer with an entropy value. Its row holds the elements that it crosses: prober,
peer, then the links of both directions. The rows of forgotten paths are reused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streams.links.evidence.elements import ElementTable, grown
from streams.links.rules import FEW_IN_STREAK, MAX_CLASSES, NEVER_NS, QUIET_NS, WINDOW_PARTS
from streams.runtime.loss_rates import NOTHING, Bools, Int32s, Int64s

Links: TypeAlias = tuple[str, ...]

FIRST_CAPACITY: Final = 256
FIRST_WIDTH: Final = 16
PATH_COLUMNS: Final = {
    "rows": NOTHING,
    "former": NOTHING,
    "incomplete": 0,
    "route_version": -1,
    "path_answer_ns": 0,
    "loss_streak": 0,
    "first_lost_ns": 0,
    "last_lost_ns": 0,
    "path_event_ns": 0,
    "unsettled": 0,
    "min_timeout_ns": NEVER_NS,
    "lost": 0,
    "answered": 0,
    "rate_hz": 0,
    "class_unsettled": 0,
    "class_lost": 0,
    "class_answered": 0,
}
"""Names of the columns over paths; each maps to its value for a path without data."""


class Routes(Protocol):
    """Source of the links that a path crosses; the route table implements it."""

    @property
    def version(self) -> int:
        """A number that grows with every change of a route."""

    def changed(self, since: int) -> Collection[tuple[str, str]] | None:
        """Return the directed NIC pairs rerouted after version `since`; None if `since` is too old."""

    def forward(self, nic: str, peer: str, path: int) -> Links:
        """Return the links that a path's requests cross; empty if the route is not known from end to end."""

    def reverse(self, nic: str, peer: str, path: int) -> Links:
        """Return the links that a path's answers cross; empty if the route is not known from end to end."""

    def known(self, nic: str, peer: str, path: int) -> tuple[Links, Links]:
        """Return the known links of a path's requests, and of its answers; both lists may have gaps."""


class NicState:
    """The reports, clock offset and paths of one NIC that sends probe results."""

    __slots__ = (
        "counts_from_ns",
        "event",
        "lag",
        "lag_before",
        "lag_from",
        "now_ns",
        "offset_ns",
        "paths",
        "run",
    )

    def __init__(self) -> None:
        self.run: int | None = None
        self.event = -1
        self.now_ns = 0
        self.offset_ns: int | None = None
        """The log's clock minus the NIC's, by the newest event; None before the first one."""
        self.counts_from_ns = 0
        self.lag = self.lag_before = NEVER_NS
        self.lag_from = 0
        self.paths: dict[tuple[str, int], int] = {}
        """Row of each path, by (peer, entropy value)."""


@dataclass(slots=True)
class Departures:
    """Paths that no longer cross a link, and the times of the first and the newest such change of a path."""

    since_ns: int
    paths: set[int] = field(default_factory=set)
    newest_ns: int = 0


class PathTable(ElementTable):
    """Properties of all paths, one array [P] each, in addition to the arrays [E] of the elements."""

    def __init__(self) -> None:
        super().__init__()
        size = FIRST_CAPACITY
        self.nics: dict[str, NicState] = {}
        self.paths = 0
        """Number of rows in use, including those of forgotten paths."""
        self.rows: Int32s = np.zeros((size, FIRST_WIDTH), np.int32)
        """[P, width] elements: prober, peer, then the links; NOTHING fills the rest."""
        self.former: Int32s = np.zeros((size, FIRST_WIDTH), np.int32)
        """[P, width] links of the last complete route, for paths whose present route is incomplete."""
        self.incomplete: Bools = np.zeros(size, np.bool_)
        """[P] whether the links of at least one direction are unknown."""
        self.route_version: Int64s = np.full(size, -1, np.int64)
        self.path_answer_ns: Int64s = np.zeros(size, np.int64)
        """[P] time of the newest answer."""
        self.loss_streak: Int64s = np.zeros(size, np.int64)
        self.first_lost_ns: Int64s = np.zeros(size, np.int64)
        self.last_lost_ns: Int64s = np.zeros(size, np.int64)
        self.path_event_ns: Int64s = np.zeros(size, np.int64)
        """[P] time of the newest event about the path."""
        self.unsettled: Int64s = np.zeros(size, np.int64)
        """[P] losses without a later answer: those of an outage, or of a loss rate if an answer follows."""
        self.min_timeout_ns: Int64s = np.full(size, NEVER_NS, np.int64)
        self.lost: Int64s = np.zeros((size, WINDOW_PARTS), np.int64)
        self.answered: Int64s = np.zeros((size, WINDOW_PARTS), np.int64)
        self.rate_hz: NDArray[np.float64] = np.zeros(size)
        """[P] requests per second, smoothed."""
        self.dscps: list[int] = []
        """[C] DSCPs of the traffic classes; empty if each NIC probes only one class."""
        self.class_unsettled: NDArray[np.float64] = np.zeros((size, 0))
        """[P, C] `unsettled` by class."""
        self.class_lost: NDArray[np.float64] = np.zeros((size, 0, WINDOW_PARTS))
        self.class_answered: NDArray[np.float64] = np.zeros((size, 0, WINDOW_PARTS))
        self.routes_changed = False
        """Whether a route has departed from a link since the last search for bypassed links."""
        self.departures: dict[int, Departures] = {}
        self._free: list[int] = []
        self._followed = self._routes_from = 0
        """Two versions of the routes: changes up to the first are applied; routes read before the second
        are read again."""

    # --------------------------------------------------------------------------------------- queries

    def paths_over(self, element: int) -> NDArray[np.intp]:
        """Return the paths that cross a link or end at a NIC."""
        return np.flatnonzero((self.rows[: self.paths] == element).any(axis=1))

    def in_use(self, since_ns: int) -> Bools:
        """Return a mask [E] of elements that paths with an event after `since_ns` cross or may cross."""
        recent = self.path_event_ns[: self.paths] > since_ns
        is_in_use = np.zeros(len(self.last_answer_ns), np.bool_)
        is_in_use[self.rows[: self.paths][recent]] = True
        is_in_use[self.former[: self.paths][recent]] = True
        return is_in_use

    def possible_elements(self, at: NDArray[np.intp]) -> Int32s:
        """Return [len(at), ...] the elements that paths may cross; if routes have gaps, former links as well.

        A trace ends at a link that is down, so the link may be missing from routes that cross it.
        """
        rows: Int32s = self.rows[at]
        return np.hstack((rows, self.former[at])) if self.incomplete[at].any() else rows

    def suspect_paths(self, now_ns: int, stale_ns: int) -> NDArray[np.intp]:
        """Return the paths whose newest result is a loss, reported within `stale_ns`."""
        n = self.paths
        return np.flatnonzero((self.loss_streak[:n] > 0) & (self.path_event_ns[:n] > now_ns - stale_ns))

    def losses_within(self, at: NDArray[np.intp], after_ns: Int64s, upto_ns: Int64s) -> Int64s:
        """Return how many losses of each path's current streak were sent within (after_ns, upto_ns].

        Losses between the first and the last of a streak are assumed to be evenly spaced. Both limits have
        shape [len(at)], or a shape that broadcasts against [len(at), 1].
        """
        first, last, n = self.first_lost_ns[at], self.last_lost_ns[at], self.loss_streak[at]
        if after_ns.ndim == 2:
            first, last, n = first[:, None], last[:, None], n[:, None]
            upto_ns = upto_ns[:, None] if upto_ns.ndim == 1 else upto_ns
        step = np.maximum((last - first) // np.maximum(n - 1, 1), 1)
        before = np.where(after_ns < first, 0, np.where(after_ns >= last, n, (after_ns - first) // step + 1))
        until = np.where(upto_ns >= last, n, np.where(upto_ns < first, 0, (upto_ns - first) // step + 1))
        losses: Int64s = np.maximum(np.minimum(until, n) - before, 0)
        return losses

    def short_streaks(self, since_ns: int) -> Bools:
        """Return a mask [P] of the paths with a short, unexplained loss streak begun after `since_ns`."""
        n = self.paths
        rows = self.possible_elements(np.arange(n))
        short = (self.unsettled[:n] > 0) & (self.loss_streak[:n] <= FEW_IN_STREAK)
        short &= self.first_lost_ns[:n] > since_ns
        began_ns = self.first_lost_ns[:n, None]
        unexplained = (self.recovered_ns[rows] <= began_ns) & (self.suppressed_ns[rows] == 0)
        has_short_streak: Bools = short & unexplained.all(axis=1)
        return has_short_streak

    # --------------------------------------------------------------------------------------- rows

    def _path(self, nic: NicState, me: int, key: tuple[str, int], now_ns: int, routes: Routes) -> int:
        """Return the row of a path; if the path is new, add its row, and read its route if needed."""
        at = nic.paths.get(key)
        if at is None:
            at = nic.paths[key] = self._free.pop() if self._free else self._new_row()
            self.rows[at, 0] = me
            self.rows[at, 1] = self.element(key[0], now_ns, nic=True)
        if self.route_version[at] < self._routes_from:
            self._read_route(at, self.names[me], key, now_ns, routes)
        return at

    def _new_row(self) -> int:
        at = self.paths
        self.paths += 1
        if at >= len(self.rows):
            for name, fill in PATH_COLUMNS.items():
                setattr(self, name, grown(getattr(self, name), fill))
        return at

    def _class(self, dscp: int) -> int | None:
        """Return the column of a traffic class, added if it is new; None if there are too many classes."""
        if dscp not in self.dscps:
            if len(self.dscps) == MAX_CLASSES:
                return None
            self.dscps.append(dscp)
            more = ((0, 0), (0, 1), (0, 0))
            self.class_lost, self.class_answered = (
                np.pad(self.class_lost, more),
                np.pad(self.class_answered, more),
            )
            self.class_unsettled = np.pad(self.class_unsettled, more[:2])
        return self.dscps.index(dscp)

    def forget_paths(self, before_ns: int) -> None:
        """Forget paths without an event since `before_ns`, such as the paths of flows that have ended."""
        old = (self.path_event_ns[: self.paths] < before_ns) & (self.rows[: self.paths, 0] != NOTHING)
        if not old.any():
            return
        for nic in self.nics.values():
            for key, at in list(nic.paths.items()):
                if old[at]:
                    del nic.paths[key]
        freed_rows = np.flatnonzero(old).tolist()
        for departures in self.departures.values():
            departures.paths.difference_update(freed_rows)
        for name, fill in PATH_COLUMNS.items():
            getattr(self, name)[freed_rows] = fill
        self._free += freed_rows

    # --------------------------------------------------------------------------------------- routes

    def _follow(self, now_ns: int, routes: Routes) -> None:
        """Read changed routes at once, instead of waiting for the next report about their paths."""
        if routes.version == self._followed:
            return
        pairs = routes.changed(self._followed)
        self._followed = routes.version
        if pairs is None:
            self._routes_from = routes.version
            return
        for pair in pairs:
            for name, peer in (pair, pair[::-1]):  # its requests, and its answers to the other NIC's
                nic = self.nics.get(name)
                for key, at in nic.paths.items() if nic is not None else ():
                    if key[0] == peer:
                        self._read_route(at, name, key, now_ns, routes)

    def _read_route(self, at: int, name: str, key: tuple[str, int], now_ns: int, routes: Routes) -> None:
        """Read the links of a path, and note which links its route no longer uses."""
        peer, path = key
        is_known = self.route_version[at] >= 0 and not self.incomplete[at]
        before = set((self.rows[at, 2:] if is_known else self.former[at]).tolist()) - {NOTHING}
        forward, reverse = routes.forward(name, peer, path), routes.reverse(name, peer, path)
        self.route_version[at] = routes.version
        self.incomplete[at] = not forward or not reverse
        links = list(dict.fromkeys(self.element(link, now_ns) for link in (*forward, *reverse)))
        self._note_nic_links(int(self.rows[at, 0]), int(self.rows[at, 1]), forward, reverse)
        width = self.rows.shape[1]
        if len(links) + 2 > width:
            more = ((0, 0), (0, len(links) + 2 - width))
            self.rows, self.former = np.pad(self.rows, more), np.pad(self.former, more)
        self.rows[at, 2:] = self.former[at] = NOTHING
        self.rows[at, 2 : 2 + len(links)] = links
        if self.incomplete[at]:
            self.former[at, : len(before)] = sorted(before)
        elif before:
            self._note_departures(at, before, set(links), now_ns)
        if self.recabled:
            for link in links:
                self.recabled.pop(link, None)

    def _note_nic_links(self, me: int, peer: int, forward: Links, reverse: Links) -> None:
        for links, (first, last) in ((forward, (me, peer)), (reverse, (peer, me))):
            for name, nic in ((links[0], first), (links[-1], last)) if links else ():
                self.attach(self.index[name], nic)

    def _note_departures(self, at: int, before: set[int], links: set[int], now_ns: int) -> None:
        former_links, new = before - links, links - before
        self.routes_changed = self.routes_changed or bool(former_links)
        for link in former_links:
            self.departures.setdefault(link, Departures(now_ns)).paths.add(at)
            self.departures[link].newest_ns = now_ns
            instead = next((other for other in new if self._has_port_of(other, link)), None)
            if instead is not None:
                self.recabled[link] = instead
        for link in self.departures.keys() & new:
            self.departures[link].paths.discard(at)

    def _has_port_of(self, new: int, old: int) -> bool:
        """Return whether the link `new` uses a port that the link `old` used until now.

        Two links in use at the same time share no port, even if their ends have the same name. If switches do
        not report their ports, several links have one name.
        """
        (near, _, far), (a, _, b) = self.names[new].partition(">"), self.names[old].partition(">")
        if (near == a) == (far == b):
            return False
        old_answer_ns = self.last_answer_ns[old]
        apart = self.last_answer_ns[new] < old_answer_ns - QUIET_NS or self.first_seen_ns[new] > old_answer_ns
        return bool(apart)
