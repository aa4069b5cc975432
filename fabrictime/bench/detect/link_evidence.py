"""Simulates evidence about links, as probers would send it, over a fleet whose broken links are known.

Inputs are a `Fleet`, its probe settings and its faults over time. The result is `LinkEvent` records with
append times, in order, and the paths' links. For benches and tests of the evaluation alone: there are no
queues. Probes may leave in several traffic classes, and a link may lose packets of one of them only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from producers.ports.link_events import LinkEvents
from producers.sim.topology import Fleet
from schemas.records import ClassEvidence, EvidenceKind, HostEvidence, LinkEvent, PathEvidence, PathSize

MS: Final = 1_000_000
STEP_NS: Final = MS
FIRST_PORT: Final = 40_000
FULL_BYTES: Final = 9_000
"""MTU of all NICs."""
SIZE_CHECK_S: Final = 0.5
SIZE_SEARCH_NS: Final = 3_000 * MS
"""Time between two checks of a NIC's paths for large packets, and to find the largest size that passes."""
HOST_SILENT_NS: Final = 300 * MS
HOST_PROBE_NS: Final = 1000 * MS
"""Time without answers after which a peer's host is probed, and the interval between these probes."""


class FleetPaths:
    """The links of each probed path, in the interface of `streams.runtime.route_table.RouteTable`."""

    def __init__(self) -> None:
        self.version = 1
        self.moved: set[tuple[str, str]] | None = None
        self._forward: dict[tuple[str, str, int], tuple[str, ...]] = {}
        self._reverse: dict[tuple[str, str, int], tuple[str, ...]] = {}

    def add(self, nic: str, peer: str, path: int, forward: tuple[str, ...], reverse: tuple[str, ...]) -> None:
        """Add one path."""
        self._forward[nic, peer, path] = forward
        self._reverse[nic, peer, path] = reverse

    def requests(self) -> Iterable[tuple[tuple[str, str, int], tuple[str, ...]]]:
        """Return (nic, peer, path) and the links of the requests, for every path."""
        return self._forward.items()

    def answers(self) -> Iterable[tuple[tuple[str, str, int], tuple[str, ...]]]:
        """Return (nic, peer, path) and the links of the answers, for every path."""
        return self._reverse.items()

    def changed(self, since: int) -> set[tuple[str, str]] | None:
        """Return the pairs whose paths have changed, regardless of `since`; None if any may have."""
        return self.moved

    def forward(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        """Return the links of a path's requests, or an empty tuple if they are not known."""
        return self._forward.get((nic, peer, path), ())

    def reverse(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        """Return the links of a path's answers, or an empty tuple if they are not known."""
        return self._reverse.get((nic, peer, path), ())

    def known(self, nic: str, peer: str, path: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the links of requests and of answers; both are known completely or not at all."""
        return self.forward(nic, peer, path), self.reverse(nic, peer, path)


class ProbedFleet:
    """NICs that each probe `peers` random others over `paths` source ports, at `rate_hz` probes per second.

    `down` [L], `loss` [L] and `class_loss` [C, L] set the state of links from now on. NICs in `gone` [N]
    neither probe nor answer; agents in `stopped` [N] are silent while their hosts live; `starve` makes agents
    answer late. A NIC reports loss streaks and recoveries at once, but at most every `gather_ns`, and
    everything every `beat_ns`. A message takes some ms to the log.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        peers: int = 10,
        paths: int = 4,
        rate_hz: float = 1000.0,
        seed: int = 1,
        start_ns: int = 1_760_000_000_000_000_000,
        dscps: Sequence[int] = (0,),
    ) -> None:
        """Set up the fleet; the probes of a path take the traffic classes of `dscps` in turn."""
        self.fleet = fleet
        self.dscps = tuple(dscps)
        self.rng = np.random.default_rng(seed)
        n, rng = fleet.nics, self.rng
        peers = min(peers, n - 1)
        src = np.repeat(np.arange(n), peers * paths)
        ring = (
            np.argsort(rng.random((n, n - 1)), axis=1)[:, :peers]
            if n <= 2048
            else rng.integers(0, n - 1, (n, peers))
        )
        ring = ring + (ring >= np.arange(n)[:, None])
        dst = np.repeat(ring, paths, axis=1).reshape(-1)
        port = np.tile(np.arange(paths), n * peers) * 7 + FIRST_PORT + rng.integers(0, 7, len(src))
        self.src, self.dst, self.port = src, dst, port
        out, back = fleet.round_trips(src, dst, port)
        width = int((out.hops + back.hops).max())
        self.links = np.full((len(src), width), -1, np.int64)
        self.book = FleetPaths()
        names = fleet.link_ids
        for p in range(len(src)):
            forward, reverse = out.of(p), back.of(p)
            both = np.concatenate([forward, reverse])
            self.links[p, : len(both)] = both
            self.book.add(
                fleet.nic_ids[src[p]],
                fleet.nic_ids[dst[p]],
                int(port[p]),
                tuple(names[i] for i in forward),
                tuple(names[i] for i in reverse),
            )
        self.rate_hz = np.full(len(src), rate_hz / (peers * paths))
        self.down = np.zeros(fleet.links + 1, np.bool_)
        self.loss = np.zeros(fleet.links + 1)
        self.class_loss = np.zeros((len(self.dscps), fleet.links + 1))
        """Share of a class's packets that a link loses in addition to `loss`, [C, L]."""
        self.rewrites: dict[int, dict[int, int]] = {}
        """By link: the DSCP that packets have after it, by the DSCP that they had before it."""
        self.mtu_bytes = np.full(fleet.links + 1, FULL_BYTES)
        """Largest packet that each link passes, [L]; NICs report the limit if `size_probes` is set."""
        self.size_probes = False
        self.gone = np.zeros(n, np.bool_)
        self.stopped = np.zeros(n, np.bool_)
        self.host_probes = False
        """Whether agents probe the hosts of silent peers, each second."""
        self.muzzled = np.zeros(n, np.bool_)
        """Whether the reports of each agent fail to reach the log, [N]."""
        self.starvation_end_ns = np.zeros(n, np.int64)
        self.now_ns = start_ns
        self.timeout_ns = 2 * MS
        self.gather_ns = 10 * MS
        self.beat_ns = 1000 * MS
        self.confess = True
        """Whether an agent that gets no CPU time reports so."""

        size = len(src)
        self._next_class = np.zeros(size, np.int64)
        self._by_class = np.zeros((3, len(self.dscps), size), np.int64)
        """Numbers of lost probes, answers and late answers, for each class and path."""
        self._lost, self._answered, self._late_answers = self._by_class.reshape(3, -1)
        """The same, by class times the number of paths plus path."""
        self._row = np.zeros(size, np.int64)
        self._first = np.zeros(size, np.int64)
        self._last = np.zeros(size, np.int64)
        self._good = np.full(size, -1, np.int64)
        self._came = np.full(size, -1, np.int64)
        self._of_nic = [np.flatnonzero(src == i) for i in range(n)]
        self._urgent = np.zeros(n, np.bool_)
        self._sent_ns = np.full(n, start_ns) - rng.integers(0, self.beat_ns, n)
        self.events = [LinkEvents(nic, "fabric", 1) for nic in fleet.nic_ids]
        """The builder of each NIC's events."""
        self._clock = rng.integers(-(10**15), 10**15, n)
        self._trouble = np.zeros(n, np.int64)
        self._waiting: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []
        """Probes that got no answer: the time of sending, their paths, and their places in the counts."""
        self._late: list[tuple[int, int, int, int]] = []
        self._queue: list[tuple[int, int, LinkEvent]] = []
        self.forward_links = np.full((len(src), int(out.hops.max())), -1, np.int64)
        """Links of the requests only, padded with -1, [P, hops]."""
        for p in range(len(src)):
            self.forward_links[p, : len(out.of(p))] = out.of(p)
        self._size_path = 7 * np.arange(n) % (peers * paths)
        self._searched: list[tuple[int, int, int]] = []
        self._append_ns = np.zeros(n, np.int64)
        self._count = 0

    def starve(self, nic: int, for_ns: int) -> None:
        """Stop a NIC's agent for `for_ns`, so that it sends no probes and answers late."""
        self.starvation_end_ns[nic] = self.now_ns + for_ns
        self._trouble[nic] = for_ns

    def run(self, for_ns: int) -> Iterator[tuple[int, LinkEvent]]:
        """Advance the time by `for_ns`; yield (append time, event) in the log's order."""
        end_ns = self.now_ns + for_ns
        while self.now_ns < end_ns:
            self.now_ns += STEP_NS
            self._probe()
            self._report()
            while self._queue and self._queue[0][0] <= self.now_ns:
                append_ns, _, event = heapq.heappop(self._queue)
                yield append_ns, event

    @property
    def _absent(self) -> NDArray[np.bool_]:
        """Return which NICs have agents that neither probe nor answer, [N]."""
        return self.gone | self.stopped

    def _probe(self) -> None:
        now_ns, rng = self.now_ns, self.rng
        size = len(self.src)
        sends = (rng.random(size) < self.rate_hz * (STEP_NS / 1e9)).nonzero()[0]
        absent, cpu_starved = self._absent, self.starvation_end_ns > now_ns
        any_cpu_starved = np.count_nonzero(cpu_starved)
        if any_cpu_starved or np.count_nonzero(absent):
            sends = sends[~(absent | cpu_starved)[self.src[sends]]]
        if len(self.dscps) > 1:
            cells = sends + self._next_class[sends] % len(self.dscps) * size
            self._next_class[sends] += 1
        else:
            cells = sends
        is_open = _lost_on(self, sends, cells, absent)
        if any_cpu_starved:
            late = ~is_open & cpu_starved[self.dst[sends]]
            is_open |= late
            for p, cell in zip(sends[late].tolist(), cells[late].tolist(), strict=True):
                heapq.heappush(self._late, (int(self.starvation_end_ns[self.dst[p]]), p, now_ns, cell))
        if np.count_nonzero(is_open):
            self._waiting.append((now_ns, sends[is_open], cells[is_open]))
            is_answered = ~is_open
            sends, cells = sends[is_answered], cells[is_answered]
        self._answered[cells] += 1
        self._urgent[self.src[sends[self._row[sends] >= 3]]] = True
        self._row[sends] = 0
        self._good[sends] = now_ns
        self._came[sends] = now_ns + 12_000
        while self._late and self._late[0][0] <= now_ns:
            _, p, sent_ns, cell = heapq.heappop(self._late)
            self._came[p] = max(self._came[p], now_ns)
            self._answered[cell] += 1
            self._late_answers[cell] += sent_ns <= now_ns - self.timeout_ns
        while self._waiting and self._waiting[0][0] <= now_ns - self.timeout_ns:
            sent_ns, at, cells = self._waiting.pop(0)
            is_lost = self._good[at] < sent_ns
            at = at[is_lost]
            self._lost[cells[is_lost]] += 1
            begins = self._row[at] == 0
            self._first[at[begins]] = sent_ns
            self._row[at] += 1
            self._last[at] = sent_ns
            self._urgent[self.src[at]] = True

    def _report(self) -> None:
        now_ns = self.now_ns
        age_ns = now_ns - self._sent_ns
        woken = (self._trouble > 0) & (self.starvation_end_ns <= now_ns)
        due = (self._urgent & (age_ns >= self.gather_ns)) | (age_ns >= self.beat_ns) | woken
        due &= ~self._absent & (self.starvation_end_ns <= now_ns)
        for nic in due.nonzero()[0].tolist():
            self._send(nic, now_ns)
        if self.size_probes:
            self._check_sizes(now_ns)
        if self.host_probes:
            phase = np.arange(len(self.gone)) * 37 * MS
            is_due = ((now_ns + phase) % HOST_PROBE_NS < STEP_NS) & ~self._absent
            for nic in np.flatnonzero(is_due & (self.starvation_end_ns <= now_ns)).tolist():
                self._probe_hosts(nic, now_ns)

    def _probe_hosts(self, nic: int, now_ns: int) -> None:
        """Report the answers of hosts whose NICs, peers of `nic`, have been silent for a while."""
        own_paths = self._of_nic[nic]
        hosts: list[HostEvidence] = []
        for peer in np.unique(self.dst[own_paths]).tolist():
            paths = own_paths[self.dst[own_paths] == peer]
            if self._came[paths].max() > now_ns - HOST_SILENT_NS or not self._row[paths].all():
                continue
            answers = not self.gone[peer] and not self.down[self.links[paths[0]]].any()
            hosts.append(
                {
                    "peer": self.fleet.nic_ids[peer],
                    "requests": 1,
                    "answers": int(answers),
                    "answered_age_ns": MS if answers else -1,
                }
            )
        if hosts:
            self._publish(nic, self.events[nic].hosts(hosts, self.clock_ns(nic), now_ns, 0))

    def _check_sizes(self, now_ns: int) -> None:
        """Let each NIC check its next path for large packets, and publish the size limits that it found."""
        every_ns = round(SIZE_CHECK_S * 1e9)
        phase = np.arange(len(self.gone)) * 37 * MS
        for nic in np.flatnonzero(((now_ns + phase) % every_ns < STEP_NS) & ~self._absent).tolist():
            own_paths = self._of_nic[nic]
            self._size_path[nic] = (self._size_path[nic] + 1) % len(own_paths)
            path = int(own_paths[self._size_path[nic]])
            passed = int(self.mtu_bytes[self.forward_links[path]].min())
            if passed >= FULL_BYTES:
                self._report_size(path, FULL_BYTES, 0, now_ns)
            else:
                heapq.heappush(self._searched, (now_ns + SIZE_SEARCH_NS, path, passed))
        while self._searched and self._searched[0][0] <= now_ns:
            _, path, passed = heapq.heappop(self._searched)
            self._report_size(path, passed, SIZE_SEARCH_NS, now_ns)

    def _report_size(self, path: int, passed: int, age_ns: int, now_ns: int) -> None:
        nic = int(self.src[path])
        size: PathSize = {
            "peer": self.fleet.nic_ids[self.dst[path]],
            "path": int(self.port[path]),
            "probed_bytes": FULL_BYTES,
            "passed_bytes": passed,
            "router_mtu_bytes": 0,
            "checked_age_ns": age_ns,
            "dscp": None,
        }
        self._publish(nic, self.events[nic].sizes([size], self.clock_ns(nic), now_ns, 0))

    def clock_ns(self, nic: int) -> int:
        """Return the present reading of a NIC's clock."""
        return self.now_ns + int(self._clock[nic])

    def _send(self, nic: int, now_ns: int) -> None:
        own_paths = self._of_nic[nic]
        counts = self._by_class[:, :, own_paths].sum(axis=1)
        is_used = counts[:2].any(axis=0)
        at, counts = own_paths[is_used], counts[:, is_used]
        names = self.fleet.nic_ids
        columns = (self.dst[at], self.port[at], self._row[at], *counts)
        times = (self._first, self._last, self._good, self._came)
        first, last, good, came = (
            np.where(t[at] < 0, -1, np.maximum(0, now_ns - t[at])).tolist() for t in times
        )
        elements: list[PathEvidence] = [
            {
                "peer": names[peer],
                "path": port,
                "lost": lost,
                "answered": answered,
                "loss_streak": row,
                "first_lost_age_ns": first[i] if row else -1,
                "last_lost_age_ns": last[i] if self._last[p] else -1,
                "answered_age_ns": good[i],
                "arrived_age_ns": came[i],
                "timeout_ns": self.timeout_ns,
                "late": late,
                "delayed": 0,
                "classes": self._classes_of(p),
            }
            for i, (p, peer, port, row, lost, answered, late) in enumerate(
                zip(at.tolist(), *(column.tolist() for column in columns), strict=True)
            )
        ]
        late_ns = int(self._trouble[nic])
        interval_ns = int(now_ns - self._sent_ns[nic])
        event: LinkEvent = {
            **self.events[nic].event(EvidenceKind.PROBE, self.clock_ns(nic), now_ns, interval_ns),
            "trouble": ["STARVED"] if late_ns and self.confess else [],
            "late_ns": late_ns,
            "paths": elements,
        }
        self._trouble[nic] = 0
        self._sent_ns[nic] = now_ns
        self._urgent[nic] = False
        self._by_class[:, :, at] = 0
        self._publish(nic, event)

    def _classes_of(self, path: int) -> list[ClassEvidence]:
        if len(self.dscps) == 1 and not self.rewrites:
            return []
        counts = zip(self.dscps, *self._by_class[:, :, path].tolist(), strict=True)
        forward, links = self.forward_links[path], self.links[path]
        requests = forward[forward >= 0].tolist() if self.rewrites else []
        replies = links[links >= 0].tolist()[len(requests) :] if self.rewrites else []
        classes: list[ClassEvidence] = [
            {
                "dscp": dscp,
                "lost": lost,
                "answered": answered,
                "late": late,
                "forward_dscp": self._rewritten(dscp, requests),
                "reverse_dscp": self._rewritten(dscp, replies),
            }
            for dscp, lost, answered, late in counts
            if lost or answered
        ]
        is_changed = any(
            traffic_class["forward_dscp"] is not None or traffic_class["reverse_dscp"] is not None
            for traffic_class in classes
        )
        return classes if len(self.dscps) > 1 or is_changed else []

    def _rewritten(self, sent: int, links: Iterable[int]) -> int | None:
        """Return the DSCP with which packets arrive after the given links, or None if it is unchanged."""
        if not self.rewrites:
            return None
        now = sent
        for link in links:
            now = self.rewrites.get(link, {}).get(now, now)
        return None if now == sent else now

    def _publish(self, nic: int, event: LinkEvent) -> None:
        """Send an event to the log, where it arrives some ms later."""
        if self.muzzled[nic]:
            return
        now_ns = self.now_ns
        append_ns = now_ns + int(self.rng.integers(1, 6)) * MS
        append_ns = max(append_ns // MS * MS, int(self._append_ns[nic]))
        self._append_ns[nic] = append_ns
        self._count += 1
        heapq.heappush(self._queue, (append_ns, self._count, event))


def _lost_on(
    fleet: ProbedFleet, sends: NDArray[np.intp], cells: NDArray[np.intp], absent: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which of the probes on paths `sends` get lost, [len(sends)]; `cells` has each probe's class."""
    lost = np.zeros(len(sends), np.bool_)
    if np.count_nonzero(fleet.down):
        lost |= fleet.down[fleet.links[sends]].any(axis=1)
    if np.count_nonzero(absent):
        lost |= absent[fleet.dst[sends]]
    if np.count_nonzero(fleet.loss) or np.count_nonzero(fleet.class_loss):
        links = fleet.links[sends]
        keep = 1 - fleet.loss[links]
        if np.count_nonzero(fleet.class_loss):
            keep *= 1 - fleet.class_loss[(cells // len(fleet.src))[:, None], links]
        lost |= fleet.rng.random(len(sends)) > np.multiply.reduce(keep, axis=1)
    return lost
