"""What the probes of one shard have shown so far, by path, link and NIC, in arrays.

In: `LinkEvent` records in the log's order, and the `RouteTable`. Out: `Evidence`: when each link, NIC and
path last carried an answer, the losses in a row of each path, and settled losses and answers of a sliding
window. Links and NICs are both 'elements' of the paths that cross or end at them. Nothing is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from native.core import ClockLine
from schemas import codec
from schemas.sanity import MAX_NS

__all__ = ["BUCKETS", "NOTHING", "Evidence", "Left", "Links", "PathLinks", "sound_event"]

Int64s: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]
Bools: TypeAlias = NDArray[np.bool_]
Links: TypeAlias = tuple[str, ...]

NOTHING: Final = 0
"""The element that fills rows: it always lives, so that it explains nothing."""
FOREVER_NS: Final = 2**62
BUCKETS: Final = 16
"""Parts of the sliding window in which losses are counted."""
LAG_KEPT_NS: Final = 10_000_000_000
LAG_JUMP_NS: Final = 2_000_000_000
"""A message this much later than the quickest of its NIC: its clock was stepped, the filter begins anew."""
QUIET_NS: Final = 30_000_000
"""A NIC that lives again after this long may have answers on their way that others already call lost."""
RUN_SETTLED: Final = 3
"""A run of so many losses while its NIC was quiet to everyone is the NIC's, not a share that gets lost."""
SETTLE_NS: Final = 2_000_000_000
"""After a prober's start, until what it loses counts as a share: its time-outs are still learned."""
FEW_IN_ROW: Final = 2
HELD_KEPT_NS: Final = 3_000_000_000
STARVED_NS: Final = 20_000_000
"""An agent that came so late may have answered too late to be counted."""
CONGESTED_TIMES: Final = 2
"""A path whose time-out, which follows its p99, is so many times its least: its losses may be full queues."""
PATH_COLUMNS: Final = {
    "rows": NOTHING, "gap": 0, "booked": -1, "alive_ns": 0, "in_row": 0, "first_lost_ns": 0,
    "last_lost_ns": 0, "seen_ns": 0, "pending": 0, "timeout_base_ns": FOREVER_NS, "lost": 0, "answered": 0,
    "rate_hz": 0,
}  # fmt: skip
"""Arrays over paths, and what they hold of a path of which nothing is known."""
EXCUSES: Final = frozenset({"RX_OVERFLOW"})
"""Trouble of an agent that makes its losses, and its peers' to it, no evidence. The others leave an agent's
own verdicts standing; and a starved peer shows by answering nobody, on whichever path."""


def sound_event(event: codec.Record) -> codec.Record:
    """Return a `LinkEvent` as it may be used. Raises BadRecord where it tells of times that no prober has."""
    _expect(abs(event["clock_ns"]) <= MAX_NS, "clock_ns", event["clock_ns"], f"at most {MAX_NS} either way")
    nic = event["nic"]
    _expect("/" in nic and ">" not in nic, "nic", nic, "host/device")
    for path in event["paths"]:
        peer = path["peer"]
        _expect("/" in peer and ">" not in peer and peer != nic, "paths.peer", peer, "another NIC")
        for age in ("first_lost_age_ns", "last_lost_age_ns", "answered_age_ns", "arrived_age_ns"):
            _expect(-1 <= path[age] <= MAX_NS, f"paths.{age}", path[age], f"-1 to {MAX_NS}")
        _expect(path["timeout_ns"] <= MAX_NS, "paths.timeout_ns", path["timeout_ns"], f"at most {MAX_NS}")
    return event


def _expect(right: bool, field: str, value: object, expected: str) -> None:
    if not right:
        raise codec.BadRecord("OUT_OF_RANGE", f"LinkEvent.{field}: {value!r}, expected {expected}")


class PathLinks(Protocol):
    """Which links a path takes; `streams.runtime.route_table.RouteTable` is one."""

    @property
    def version(self) -> int:
        """Grows when any path is another than before."""

    def changed(self, since: int) -> Collection[tuple[str, str]] | None:
        """Return the directed pairs whose paths are others than at version `since`; None: it is too old to
        tell."""

    def forward(self, nic: str, peer: str, path: int) -> Links:
        """Return the links of the requests; empty where they are not known."""

    def reverse(self, nic: str, peer: str, path: int) -> Links:
        """Return the links of the answers; empty where they are not known."""


class _Nic:
    """One NIC that reports."""

    __slots__ = ("counts_from_ns", "event", "lag", "lag_before", "lag_from", "now_ns", "paths", "run")

    def __init__(self) -> None:
        self.run: int | None = None
        self.event = -1
        self.now_ns = 0
        self.counts_from_ns = 0
        self.lag = self.lag_before = FOREVER_NS
        self.lag_from = 0
        self.paths: dict[tuple[str, int], int] = {}


@dataclass(slots=True)
class Left:
    """Paths that a link lost to others, and when it first and last lost one."""

    since_ns: int
    paths: set[int] = field(default_factory=set)
    newest_ns: int = 0


class Evidence:
    """Arrays over paths [P] and elements [E]; indices never change, those of forgotten paths are used again.

    Times are ns of log append time: an event's own time is its clock's, moved to the log's clock, so that a
    message that was slow to arrive does not make old answers look young.
    """

    def __init__(self) -> None:
        self.nics: dict[str, _Nic] = {}
        self.index: dict[str, int] = {}
        """Name of a link or NIC to element."""
        self.names: list[str] = [""]
        self.ends: list[tuple[str, str]] = [("", "")]
        """Element to the nodes that a link leads from and to."""
        self.paths = 0
        self.lines: Mapping[str, ClockLine] = {}
        """NIC to its clock's line in fabric time, of those whose clock can be used."""
        self.log_offset_ns = 0
        """Fabric time minus log append time."""
        self.alike: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """(node, node), sorted, to the ports of the cables between them."""
        self.of_node: dict[str, set[int]] = {}
        """Node to the links that begin or end there."""

        self.life_ns: Int64s = np.full(64, 0, np.int64)
        """[E] newest answer that crossed it or came of it; when it was first heard of, before the first."""
        self.answers: Bools = np.zeros(64, np.bool_)
        """[E] whether any answer was ever seen."""
        self.met_ns: Int64s = np.full(64, 0, np.int64)
        """[E] when it was first heard of."""
        self.is_nic: Bools = np.zeros(64, np.bool_)
        self.revived_ns: Int64s = np.zeros(64, np.int64)
        """[E] NICs: first answer after `QUIET_NS` without one."""
        self.excused_ns: Int64s = np.zeros(64, np.int64)
        """[E] NICs: end of the newest trouble that its agent told of."""
        self.starved_ns: Int64s = np.zeros(64, np.int64)
        """[E] NICs: end of the newest time in which its agent came late by `STARVED_NS`."""
        self.starved: Bools = np.zeros((64, BUCKETS), np.bool_)
        """[E, part] NICs: whether that was in this part of the window, or next to it."""
        self._starved_next: Bools = np.zeros(64, np.bool_)
        """[E] the same of the part that is to come."""
        self.heard_ns: Int64s = np.zeros(64, np.int64)
        """[E] NICs: its newest event."""
        self.held_ns: Int64s = np.zeros(64, np.int64)
        """[E] newest answer over it, or of it, that the network held up for longer than requests are waited
        for: what crosses it waits for so long at times."""
        self.out: Int32s = np.zeros(64, np.int32)
        self.into: Int32s = np.zeros(64, np.int32)
        """[E] NICs: the link that leaves it and the one that leads to it, NOTHING where unknown."""
        self.down: Bools = np.zeros(64, np.bool_)
        """[E] known to be dead, as whoever judges says: losses behind it are explained."""
        self.muted_ns: Int64s = np.zeros(64, np.int64)
        """[E] until when losses behind it are waited for: its port has just come up."""
        self.healed_ns: Int64s = np.zeros(64, np.int64)
        """[E] end of its last death: losses that began before it are explained."""
        self.life_ns[NOTHING] = FOREVER_NS

        self.rows: Int32s = np.zeros((256, 16), np.int32)
        """[P, width] elements: prober, peer, then the links; NOTHING fills the rest."""
        self.gap: Bools = np.zeros(256, np.bool_)
        """[P] whether links of one direction are unknown."""
        self.booked: Int64s = np.full(256, -1, np.int64)
        self.alive_ns: Int64s = np.zeros(256, np.int64)
        """[P] newest answer."""
        self.in_row: Int64s = np.zeros(256, np.int64)
        self.first_lost_ns: Int64s = np.zeros(256, np.int64)
        self.last_lost_ns: Int64s = np.zeros(256, np.int64)
        self.seen_ns: Int64s = np.zeros(256, np.int64)
        """[P] newest event that told of it."""
        self.pending: Int64s = np.zeros(256, np.int64)
        """[P] losses that no answer followed yet: part of a death, or of a loss rate once it does."""
        self.timeout_base_ns: Int64s = np.full(256, FOREVER_NS, np.int64)
        self.lost: Int64s = np.zeros((256, BUCKETS), np.int64)
        self.answered: Int64s = np.zeros((256, BUCKETS), np.int64)
        self.rate_hz: NDArray[np.float64] = np.zeros(256)
        """[P] requests a second, smoothed."""
        self._held, self._held_at_ns = 0.0, 0
        """Answers that the network held up, older ones for less, and when they were counted."""
        self.began_ns = 0
        """The first event's time."""
        self.moved = False
        """Whether a path took another way since whoever looks for links that were left looked last."""
        self._free: list[int] = []
        """Rows of paths that were forgotten, for new ones."""
        self.left: dict[int, Left] = {}
        """Link to the paths that crossed it and take another way now."""
        self.recabled: dict[int, int] = {}
        """Link to the one that has a port of it now, as paths that went from one to the other tell."""
        self._way_before: dict[int, frozenset[int]] = {}
        """Path of which not all is known now to the links that it crossed."""
        self._followed = self._booked_from = 0
        """Versions of the paths' links: up to which all are followed; before which all are looked up anew."""
        self._bucket = -1
        self.bucket_ns = 125_000_000
        self.any_lost = False
        """Whether the window holds a settled loss."""

    # ------------------------------------------------------------------------------------ elements

    def element(self, name: str, now_ns: int, *, nic: bool = False) -> int:
        """Return the element of a link or NIC, new where it is not known yet."""
        found = self.index.get(name)
        if found is not None:
            return found
        made = self.index[name] = len(self.names)
        self.names.append(name)
        near, _, far = name.partition(">")
        self.ends.append(("", "") if nic else (_end(near)[0], _end(far)[0]))
        if made >= len(self.life_ns):
            for field in (
                "life_ns", "answers", "is_nic", "revived_ns", "excused_ns", "heard_ns", "out", "into", "down",
                "muted_ns", "healed_ns", "starved_ns", "starved", "_starved_next", "met_ns", "held_ns",
            ):  # fmt: skip
                setattr(self, field, _grown(getattr(self, field), 0))
        self.life_ns[made] = self.met_ns[made] = now_ns
        self.is_nic[made] = nic
        if not nic:
            (a, p), (b, q) = sorted((_end(near), _end(far)))
            self.alike.setdefault((a, b), set()).add((p, q))
            for node in (a, b):
                self.of_node.setdefault(node, set()).add(made)
        return made

    def nodes_of(self, link: int) -> tuple[str, str]:
        """Return the nodes that a link leads from and to."""
        return self.ends[link]

    def links_of(self, nic: int) -> list[int]:
        """Return the known links between a NIC and its switch."""
        return [int(link) for link in (self.out[nic], self.into[nic]) if link != NOTHING]

    def among(self, elements: Sequence[int] | NDArray[Any]) -> Bools:
        """Return [E] whether each element is one of these."""
        found = np.zeros(len(self.life_ns), np.bool_)
        found[elements] = True
        return found

    def crossing(self, element: int) -> NDArray[np.intp]:
        """Return the paths that cross a link or end at a NIC."""
        return np.flatnonzero((self.rows[: self.paths] == element).any(axis=1))

    def crossed(self, since_ns: int) -> Bools:
        """Return [E] whether any path that was told of since then crosses an element, or may."""
        recent = self.seen_ns[: self.paths] > since_ns
        found = np.zeros(len(self.life_ns), np.bool_)
        found[self.rows[: self.paths][recent]] = True
        for at, way in self._way_before.items():
            if recent[at]:
                found[list(way)] = True
        return found

    # ------------------------------------------------------------------------------------ events

    def take(self, event: Mapping[str, Any], append_ns: int, book: PathLinks) -> int | None:
        """Take one event; return its time, None where it was taken before."""
        name = event["nic"]
        nic = self.nics.get(name)
        if nic is None:
            nic = self.nics[name] = _Nic()
        if event["run"] != nic.run:
            self._restart(nic, event["run"])
            nic.counts_from_ns = append_ns + SETTLE_NS
        elif event["event"] <= nic.event:
            return None
        nic.event = event["event"]
        now_ns = self._time_of(nic, name, event["clock_ns"], append_ns)
        self.began_ns = self.began_ns or now_ns
        me = self.element(name, now_ns, nic=True)
        self.heard_ns[me] = now_ns
        excused = not EXCUSES.isdisjoint(event["trouble"])
        if excused:
            self.excused_ns[me] = now_ns
        if event["late_ns"] >= STARVED_NS:
            self.starved_ns[me] = now_ns
            bucket = self._roll(now_ns)
            parts = min(int((event["late_ns"] + event["interval_ns"]) // self.bucket_ns) + 2, BUCKETS)
            self.starved[me, [(bucket - back) % BUCKETS for back in range(parts)]] = True
            self._starved_next[me] = True
        self._follow(now_ns, book)
        if event["paths"]:
            self._take_paths(nic, name, me, event, now_ns, book, excused)
        return now_ns

    def _restart(self, nic: _Nic, run: int) -> None:
        nic.run, nic.event = run, -1
        nic.lag = nic.lag_before = FOREVER_NS
        nic.lag_from = 0
        at = np.fromiter(nic.paths.values(), np.intp, len(nic.paths))
        self.in_row[at] = 0
        self.pending[at] = 0
        self.timeout_base_ns[at] = FOREVER_NS

    def _time_of(self, nic: _Nic, name: str, clock_ns: int, append_ns: int) -> int:
        """Return when an event was, on the log's clock: by fabric time where the NIC's clock is in it, else
        by the least lag between its clock and the log of late."""
        line = self.lines.get(name)
        if line is not None:
            off_ns = line.offset_ns + line.drift_ppb * 1e-9 * (clock_ns - line.at_ns)
            at_ns = clock_ns + round(off_ns) - self.log_offset_ns
            if abs(append_ns - at_ns) < LAG_JUMP_NS:
                nic.now_ns = max(nic.now_ns, at_ns)
                return nic.now_ns
        lag = append_ns - clock_ns
        best = min(nic.lag, nic.lag_before)
        if lag - best > LAG_JUMP_NS and best != FOREVER_NS:
            nic.lag = nic.lag_before = FOREVER_NS
        if append_ns - nic.lag_from > LAG_KEPT_NS:
            nic.lag_before, nic.lag, nic.lag_from = nic.lag, FOREVER_NS, append_ns
        nic.lag = min(nic.lag, lag)
        nic.now_ns = max(nic.now_ns, clock_ns + min(nic.lag, nic.lag_before))
        return min(nic.now_ns, append_ns)

    def _take_paths(
        self, nic: _Nic, name: str, me: int, event: Mapping[str, Any], now_ns: int, book: PathLinks,
        excused: bool,
    ) -> None:  # fmt: skip
        at = np.array([self._path(nic, name, me, each, now_ns, book) for each in event["paths"]], np.intp)
        columns = np.array(
            [
                (
                    each["lost"], each["answered"], each["loss_streak"], each["first_lost_age_ns"],
                    each["last_lost_age_ns"], each["arrived_age_ns"], each["answered_age_ns"],
                    each["timeout_ns"], each["late"], each["delayed"],
                )
                for each in event["paths"]
            ],
            np.int64,
        ).T  # fmt: skip
        lost, answered, in_row, first_age, last_age, arrived_age, answered_age, timeout, came_late, held = (
            columns
        )
        newest = np.where(answered_age >= 0, now_ns - answered_age, 0)
        arrived = np.where(arrived_age >= 0, now_ns - arrived_age, newest)
        self.alive_ns[at] = np.maximum(self.alive_ns[at], arrived)
        began = np.where(self.pending[at] > 0, self.first_lost_ns[at], now_ns)
        self.first_lost_ns[at] = np.where(first_age >= 0, now_ns - first_age, now_ns)
        self.last_lost_ns[at] = np.where(last_age >= 0, now_ns - last_age, now_ns)
        self.in_row[at] = in_row
        self.seen_ns[at] = now_ns
        self._live(at, arrived)

        if held.any():
            crossed = self.rows[at[held > 0]]
            self.held_ns[crossed] = np.maximum(self.held_ns[crossed], now_ns)
            self._held = self.held_answers(now_ns) + int(held.sum())
            self._held_at_ns = max(self._held_at_ns, now_ns)
        base = np.minimum(self.timeout_base_ns[at], timeout)
        self.timeout_base_ns[at] = base
        congested = timeout > CONGESTED_TIMES * base
        unsettled = self.pending[at] + lost
        settled = np.maximum(unsettled - in_row, 0)
        rows = self.rows[at]
        known = self.down[rows] | (self.muted_ns[rows] > 0) | (self.healed_ns[rows] > began[:, None])
        behind = known.any(axis=1)
        quiet = (self.pending[at] >= RUN_SETTLED) & (self.revived_ns[rows[:, :2]].max(axis=1) > began)
        settled = np.where(behind, 0, np.where(quiet, np.maximum(lost - in_row, 0), settled))
        self.pending[at] = 0 if excused else np.where(congested, 0, np.minimum(in_row, unsettled))
        if not excused and now_ns >= nic.counts_from_ns:
            counted = ~congested
            bucket = self._roll(now_ns)
            self.lost[at, bucket] += np.where(counted, settled - came_late, 0)
            self.answered[at, bucket] += np.where(counted, answered, 0)
            self.any_lost = self.any_lost or bool((settled * counted).any())
        interval_s = event["interval_ns"] / 1e9
        if interval_s > 0.02:
            rate = (lost + answered) / interval_s
            before = self.rate_hz[at]
            self.rate_hz[at] = np.where(before > 0, 0.7 * before + 0.3 * rate, rate)

    def held_answers(self, now_ns: int) -> float:
        """Return the answers of the past seconds, of all NICs, that the network held up for longer than
        requests are waited for; each counts for less as time goes by, for 1/e after `HELD_KEPT_NS`."""
        return self._held * math.exp(min(0.0, (self._held_at_ns - now_ns) / HELD_KEPT_NS))

    def speaking(self, now_ns: int) -> int:
        """Return how many NICs told of anything within the past seconds; each does once a second."""
        return int(np.count_nonzero(self.heard_ns > now_ns - HELD_KEPT_NS))

    def _live(self, at: NDArray[np.intp], arrived: Int64s) -> None:
        """Note answers at `arrived` (0: none) on everything that they crossed."""
        answers = arrived > 0
        if not answers.any():
            return
        at, arrived = at[answers], arrived[answers]
        rows = self.rows[at]
        before = self.life_ns[rows[:, :2]]
        width = rows.shape[1]
        flat = rows.reshape(-1)
        np.maximum.at(self.life_ns, flat, np.repeat(arrived, width))
        self.answers[flat] = True
        after = self.life_ns[rows[:, :2]]
        revived = after - before > QUIET_NS
        if revived.any():
            self.revived_ns[rows[:, :2][revived]] = after[revived]

    def _path(
        self, nic: _Nic, name: str, me: int, each: Mapping[str, Any], now_ns: int, book: PathLinks
    ) -> int:
        key = (each["peer"], each["path"])
        at = nic.paths.get(key)
        if at is None:
            at = nic.paths[key] = self._free.pop() if self._free else self._new_row()
            self.rows[at, 0] = me
            self.rows[at, 1] = self.element(each["peer"], now_ns, nic=True)
        if self.booked[at] < self._booked_from:
            self._book(at, name, key, now_ns, book)
        return at

    def _follow(self, now_ns: int, book: PathLinks) -> None:
        """Look up again the paths of pairs that are others now, as soon as that is known: a path that lives
        is told of once a second only."""
        if book.version == self._followed:
            return
        pairs = book.changed(self._followed)
        self._followed = book.version
        if pairs is None:
            self._booked_from = book.version
            return
        for pair in pairs:
            for name, peer in (pair, pair[::-1]):  # its requests, and its answers to the other's
                nic = self.nics.get(name)
                for key, at in nic.paths.items() if nic is not None else ():
                    if key[0] == peer:
                        self._book(at, name, key, now_ns, book)

    def _new_row(self) -> int:
        at = self.paths
        self.paths += 1
        if at >= len(self.rows):
            for name, fill in PATH_COLUMNS.items():
                setattr(self, name, _grown(getattr(self, name), fill))
        return at

    def forget_paths(self, before_ns: int) -> None:
        """Let go of paths that nobody told of since then: flows end, and those that follow them with them."""
        old = (self.seen_ns[: self.paths] < before_ns) & (self.rows[: self.paths, 0] != NOTHING)
        if not old.any():
            return
        for nic in self.nics.values():
            for key, at in list(nic.paths.items()):
                if old[at]:
                    del nic.paths[key]
                    self._way_before.pop(at, None)
        gone = np.flatnonzero(old).tolist()
        for left in self.left.values():
            left.paths.difference_update(gone)
        for name, fill in PATH_COLUMNS.items():
            getattr(self, name)[gone] = fill
        self._free += gone

    def _book(self, at: int, name: str, key: tuple[str, int], now_ns: int, book: PathLinks) -> None:
        """Look the path's links up again."""
        peer, path = key
        before = self._way_before.pop(at, None)
        if before is None and self.booked[at] >= 0 and not self.gap[at]:
            before = frozenset(self.rows[at, 2:].tolist()) - {NOTHING}
        forward, reverse = book.forward(name, peer, path), book.reverse(name, peer, path)
        self.booked[at] = book.version
        self.gap[at] = not forward or not reverse
        me, other = int(self.rows[at, 0]), int(self.rows[at, 1])
        links = list(dict.fromkeys(self.element(link, now_ns) for link in (*forward, *reverse)))
        if forward:
            self.out[me], self.into[other] = self.index[forward[0]], self.index[forward[-1]]
        if reverse:
            self.out[other], self.into[me] = self.index[reverse[0]], self.index[reverse[-1]]
        width = self.rows.shape[1]
        if len(links) + 2 > width:
            self.rows = np.pad(self.rows, ((0, 0), (0, len(links) + 2 - width)))
        self.rows[at, 2:] = NOTHING
        self.rows[at, 2 : 2 + len(links)] = links
        if before is not None and self.gap[at]:
            self._way_before[at] = before
        elif before is not None:
            gone, new = before - set(links), set(links) - before
            self.moved = self.moved or bool(gone)
            for link in gone:
                self.left.setdefault(link, Left(now_ns)).paths.add(at)
                self.left[link].newest_ns = now_ns
                instead = next((other for other in new if self._has_port_of(other, link)), None)
                if instead is not None:
                    self.recabled[link] = instead
            for link in self.left.keys() & new:
                self.left[link].paths.discard(at)
        if self.recabled:
            for link in links:
                self.recabled.pop(link, None)

    def _has_port_of(self, new: int, old: int) -> bool:
        """Return whether a link begins or ends at a port at which another did until now.

        What was crossed while the other one was, too, shares no port with it: where switches do not say their
        ports, several links may be told by one name for their end.
        """
        (near, _, far), (a, _, b) = self.names[new].partition(">"), self.names[old].partition(">")
        if (near == a) == (far == b):
            return False
        apart = self.life_ns[new] < self.life_ns[old] - QUIET_NS or self.met_ns[new] > self.life_ns[old]
        return bool(apart)

    def _roll(self, now_ns: int) -> int:
        """Return the column of the window to count in, emptied where it was of long ago."""
        bucket = now_ns // self.bucket_ns
        if self._bucket < 0:
            self._bucket = bucket
        for passed in range(max(self._bucket + 1, bucket - BUCKETS + 1), bucket + 1):
            self.lost[:, passed % BUCKETS] = 0
            self.answered[:, passed % BUCKETS] = 0
            self.starved[:, passed % BUCKETS] = self._starved_next & (passed == self._bucket + 1)
        if bucket > self._bucket:
            self._starved_next[:] = False
        self._bucket = max(self._bucket, bucket)
        return int(self._bucket % BUCKETS)

    def set_window(self, window_ns: int) -> None:
        """Set how long losses are counted; a change empties the window."""
        bucket_ns = max(1, window_ns // BUCKETS)
        if bucket_ns != self.bucket_ns:
            self.bucket_ns, self._bucket = bucket_ns, -1
            self.lost[:] = 0
            self.answered[:] = 0

    def forget_losses(self) -> None:
        """Begin to count losses anew: what was counted may lie behind deaths that were not known."""
        self.lost[:] = 0
        self.answered[:] = 0
        self.pending[:] = 0

    def counts(self, now_ns: int, parts: int = BUCKETS) -> tuple[Int64s, Int64s]:
        """Return [P] settled losses and answers within so many parts of the window up to now, but for those
        in which one of a path's ends was starved."""
        newest = self._roll(now_ns)
        fit = ~self.starved[self.rows[: self.paths, :2]].any(axis=1)
        fit &= (newest - np.arange(BUCKETS)) % BUCKETS < parts
        lost: Int64s = np.maximum((self.lost[: self.paths] * fit).sum(axis=1), 0)
        answered: Int64s = (self.answered[: self.paths] * fit).sum(axis=1)
        if parts == BUCKETS:
            self.any_lost = bool(lost.any())
        return lost, answered

    def across(self, element: int, parts: int) -> tuple[int, int]:
        """Return settled losses and answers of all that crosses an element, within so many parts of the
        window up to what was taken last."""
        newest = self._bucket % BUCKETS
        fit = (newest - np.arange(BUCKETS)) % BUCKETS < parts
        crossing = self.crossing(element)
        return int(self.lost[crossing][:, fit].sum()), int(self.answered[crossing][:, fit].sum())

    def unsettled(self, now_ns: int, parts: int = BUCKETS) -> NDArray[np.intp]:
        """Return the paths with a loss or two within so many parts of the window that no answer followed yet:
        part of a share, it seems."""
        n = self.paths
        window_ns = self.bucket_ns * BUCKETS
        few = (self.pending[:n] > 0) & (self.in_row[:n] <= FEW_IN_ROW)
        few &= self.first_lost_ns[:n] > now_ns - self.bucket_ns * parts
        rows = self.rows[:n]
        few &= ((self.healed_ns[rows] <= self.first_lost_ns[:n, None]) & (self.muted_ns[rows] == 0)).all(
            axis=1
        )
        ends = rows[:, :2]
        few &= self.starved_ns[ends].max(axis=1) < now_ns - window_ns
        return np.flatnonzero(few)

    # ------------------------------------------------------------------------------------ losses in a row

    def suspects(self, now_ns: int, stale_ns: int) -> NDArray[np.intp]:
        """Return the paths whose newest verdict is a loss, as far as that is news."""
        n = self.paths
        return np.flatnonzero((self.in_row[:n] > 0) & (self.seen_ns[:n] > now_ns - stale_ns))

    def losses_within(self, at: NDArray[np.intp], after_ns: Int64s, upto_ns: Int64s) -> Int64s:
        """Return how many of the losses in a row of paths `at` were sent within (after_ns, upto_ns].

        Between the first and the last, whose times are known, they are taken to be evenly spaced. Shapes
        broadcast against [len(at), 1] where two-dimensional.
        """
        first, last, n = self.first_lost_ns[at], self.last_lost_ns[at], self.in_row[at]
        if after_ns.ndim == 2:
            first, last, n = first[:, None], last[:, None], n[:, None]
            upto_ns = upto_ns[:, None] if upto_ns.ndim == 1 else upto_ns
        step = np.maximum((last - first) // np.maximum(n - 1, 1), 1)
        before = np.where(after_ns < first, 0, np.where(after_ns >= last, n, (after_ns - first) // step + 1))
        until = np.where(upto_ns >= last, n, np.where(upto_ns < first, 0, (upto_ns - first) // step + 1))
        found: Int64s = np.maximum(np.minimum(until, n) - before, 0)
        return found


def _grown(array: NDArray[Any], fill: int) -> NDArray[Any]:
    more = np.full_like(array, fill)
    return np.concatenate([array, more])


def _end(text: str) -> tuple[str, str]:
    node, _, port = text.rpartition(":")
    return node, port
