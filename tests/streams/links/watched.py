"""A probed fleet whose broken links are known, and the evaluation of its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.bench.networks.answers import Form, NamedFleet
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas import codec
from schemas.ids import cable_id
from schemas.topics import LINK_HEALTH
from streams.links.health.shard_health import Change, ShardHealth
from streams.runtime.thresholds import Thresholds

MS = 1_000_000
S = 1_000_000_000
WARM = 2200 * MS
"""By then every NIC has reported its living paths."""


class Watched:
    """A probed fleet and the verdicts on it. `form`: routes are records, whose links have such names."""

    def __init__(
        self,
        fleet: Fleet,
        seed: int = 1,
        rate_hz: float = 1000.0,
        *,
        form: Form | None = None,
        with_file: bool = True,
        **settings: Any,
    ) -> None:
        thresholds = Thresholds(settings.pop("thresholds", None))
        self.fleet = fleet
        self.probes = ProbedFleet(fleet, seed=seed, rate_hz=rate_hz, **settings)
        self.health = ShardHealth("fabric", thresholds, "links/0")
        self.book: Any = self.probes.book
        if form is not None:
            names = NamedFleet(self.probes, form, with_file=with_file)
            self.book, self.health.topology = names.book, names.topology
        self.changes: list[tuple[int, Change]] = []
        self.log: list[tuple[int, Mapping[str, Any]]] = []

    def run(self, for_ns: int, until: Callable[[], bool] | None = None) -> None:
        for _ in range(for_ns // (5 * MS)):
            for append_ns, event in self.probes.run(5 * MS):
                self.ingest(append_ns, event)
            self._keep(self.health.evaluate(self.probes.now_ns))
            if until is not None and until():
                return
        assert until is None, [c[1][1]["text"] for c in self.changes if c[1][1]]

    def ingest(self, append_ns: int, event: Mapping[str, Any]) -> None:
        self.log.append((append_ns, event))
        self._keep(self.health.ingest(event, append_ns, self.book, len(self.log) - 1))

    def _keep(self, changes: list[Change]) -> None:
        for subject, record in changes:
            if record is not None:
                codec.encode(LINK_HEALTH.record, record)
                assert record["subject"] == subject
            self.changes.append((self.probes.now_ns, (subject, record)))

    def ever_in(self, state: str) -> set[str]:
        """Subjects that were ever in a state."""
        return {s for _, (s, r) in self.changes if r is not None and r["state"] == state}

    def state(self, subject: str) -> str | None:
        return next((r["state"] if r else None for _, (s, r) in reversed(self.changes) if s == subject), None)

    def last(self, subject: str) -> dict[str, Any]:
        found = [r for _, (s, r) in self.changes if s == subject and r is not None]
        return found[-1]

    def link(self, near: str, far: str) -> int:
        """The directed link from node to node; the first of several."""
        return next(
            i
            for i, name in enumerate(self.fleet.link_ids)
            if name.startswith(f"{near}:") and f">{far}:" in name
        )

    def cable(self, near: str, far: str) -> str:
        return cable_id(self.fleet.link_ids[self.link(near, far)])

    def port(self, nic: str, up: bool) -> None:
        """Report the carrier of the NIC's port."""
        index = self.fleet.nic_index[nic]
        probes, now_ns = self.probes, self.probes.now_ns
        self.ingest(now_ns, probes.events[index].carrier(up, probes.clock_ns(index), now_ns))


def small(seed: int = 1, **settings: Any) -> Watched:
    """As the testbed: 8 hosts, 4 leaves, 4 spines."""
    fleet = Fleet(Shape(hosts=8, hosts_per_rack=2, spines=4), seed)
    return Watched(fleet, seed, peers=7, **settings)


def lead(it: Watched, spine: str, into: str | None) -> dict[tuple[str, str, int], tuple[str, ...]]:
    """Lead all ways over a spine by another one, or in turns by all others; return how they were."""
    book = it.probes.book
    before = dict(book._forward), dict(book._reverse)
    names = [name for name in ("spine1", "spine2", "spine3", "spine4") if name != spine]
    for links in (book._forward, book._reverse):
        for n, (key, route) in enumerate(sorted(links.items())):
            if len(route) == 4 and f">{spine}:" in route[1]:
                near, far = route[0].split(">")[1].split(":")[0], route[2].split(">")[1].split(":")[0]
                to = into or names[n % 3]
                ids = it.fleet.link_ids
                links[key] = (route[0], ids[it.link(near, to)], ids[it.link(to, far)], route[3])
    book.version += 1
    return before
