"""Losses that no known link explains: the stated set, its end, and blind tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fabrictime.bench.networks.answers import Form
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from producers.trace.route_names import NamedPath
from schemas import codec
from schemas.records import EvidenceKind, Leg, LinkEvent, LinkHealth, PathEvidence, PathSource
from schemas.topics import PATHS
from schemas.topology import Topology
from streams.links.evidence.probe_evidence import Evidence
from streams.links.localise.unexplained import Unexplained, find_unexplained
from streams.links.rules import BLIND_AFTER_NS, STALE_NS
from streams.runtime.route_table import RouteTable
from tests.streams.links.watched import Watched

MS = 1_000_000
S = 1_000 * MS
WARM_NS = 1_500 * MS
FLEET = Fleet(Shape(hosts=4, hosts_per_rack=2, spines=2), 1)


class Hidden(Watched):
    """A fleet in which some links have no name, and the records of its shard."""

    def __init__(
        self, form: Form, with_file: bool, *, paths: int = 8, rate_hz: float = 400.0, sizes: bool = False
    ) -> None:
        super().__init__(FLEET, 3, rate_hz, form=form, with_file=with_file, peers=3, paths=paths)
        self.probes.size_probes = sizes
        self.run(WARM_NS)

    @property
    def records(self) -> dict[str, list[LinkHealth]]:
        """All records of each subject, in order."""
        records: dict[str, list[LinkHealth]] = {}
        for _, (subject, record) in self.changes:
            assert record is not None
            records.setdefault(subject, []).append(record)
        return records

    def kill(self, near: str, far: str) -> int:
        link = self.link(near, far)
        self.probes.down[link] = True
        return link


@pytest.mark.parametrize(
    ("form", "with_file", "candidates"),
    [
        (Form.SILENT, True, ["leaf1:swp3<>spine1:swp1", "leaf1:swp4<>spine2:swp1"]),
        (Form.SILENT, False, ["h1/eth1", "h2/eth1"]),
        (Form.TUNNEL, False, ["10.255.0.1", "10.255.0.2"]),
    ],
)
def test_a_hidden_dead_link_is_in_the_stated_set_until_it_lives(
    form: Form, with_file: bool, candidates: list[str]
) -> None:
    it = Hidden(form, with_file)
    link = it.kill("leaf1", "spine2")
    it.run(3 * S)
    (record,) = it.records["losses@fabric"][:1]
    assert (record["kind"], record["state"]) == ("PATHS", "GREY")
    assert "no known link explains" in record["text"]
    assert set(candidates) & set(record["candidates"])
    if with_file:  # with two leaves, the cables of the other one explain as much
        assert all("<>" in each for each in record["candidates"])
    assert [s for s, each in it.records.items() if each[-1]["state"] == "DOWN"] == []
    it.probes.down[link] = False
    it.run(2 * S)
    assert it.records["losses@fabric"][-1]["state"] == "UP"


def test_a_link_with_a_name_leaves_nothing_unexplained() -> None:
    it = Hidden(Form.LOOPBACK, with_file=False)
    it.kill("leaf1", "spine2")
    it.run(3 * S)
    assert [s for s, each in it.records.items() if each[-1]["state"] == "DOWN"] == [
        "10.255.0.12:ip<>10.255.0.1:ip"
    ]
    assert "losses@fabric" not in it.records


def test_blind_tracing_is_reported_once_all_paths_have_been_traced() -> None:
    it = Hidden(Form.SILENT, with_file=False)
    it.run(BLIND_AFTER_NS - WARM_NS - S)
    assert it.records == {}
    it.run(3 * S)
    (record,) = it.records["traces@fabric"]
    assert (record["kind"], record["state"]) == ("TRACES", "GREY")
    assert "96 of 96 paths are not known" in record["text"]


A, B = "a/e", "b/e"
OUT = ("a:e>leaf1:1", "leaf1:9>spine1:1", "spine1:2>leaf2:9", "leaf2:1>b:e")
BACK = ("b:e>leaf2:1", "leaf2:8>spine2:2", "spine2:1>leaf1:8", "leaf1:1>a:e")
ELSEWHERE = ("a:e>leaf1:1", "leaf1:7>spine3:1", "spine3:2>leaf2:7", "leaf2:1>b:e")
GAP = (OUT[0], OUT[-1])
"""A route whose trace shows no spine."""
DEAD_PORTS, LIVING_PORT = (1, 2), 3
START_NS = 1_000 * S


class LosingPaths:
    """Paths from one NIC to another: two lose every probe since `START_NS`, a third one lives."""

    def __init__(self, dead: Sequence[str], *, complete: bool = True, back: Sequence[str] = BACK) -> None:
        self.evidence, self.routes = Evidence(), RouteTable()
        self._events = 0
        routes = {**dict.fromkeys(DEAD_PORTS, (dead, complete)), LIVING_PORT: (ELSEWHERE, True)}
        self._publish(A, B, {port: (Leg.REQUEST, *route) for port, route in routes.items()})
        answers = {port: (Leg.ANSWER, back, bool(back)) for port in DEAD_PORTS}
        self._publish(B, A, {**answers, LIVING_PORT: (Leg.ANSWER, BACK, True)})

    def _publish(self, nic: str, peer: str, routes: dict[int, tuple[Leg, Sequence[str], bool]]) -> None:
        paths = [
            NamedPath(tuple(links), complete, PathSource.TRACED).row(port, leg)
            for port, (leg, links, complete) in routes.items()
        ]
        record: Any = {"nic": nic, "peer": peer, "shard": "s", "run": 1, "traced_ns": 0, "paths": paths}
        self.routes.take(f"{nic}>{peer}".encode(), codec.encode(PATHS.type, record))

    def found_at(self, now_ns: int) -> Unexplained | None:
        """Report all paths as of `now_ns`; return the losses that nothing explains."""
        lost, age_ns = 40, now_ns - START_NS
        paths = [self._path(port, lost, age_ns) for port in DEAD_PORTS] + [self._path(LIVING_PORT, 0, -1)]
        event: LinkEvent = {
            "nic": A,
            "shard": "s",
            "run": 1,
            "event": self._events,
            "kind": EvidenceKind.PROBE,
            "clock_ns": now_ns,
            "system_ns": now_ns,
            "interval_ns": S,
            "trouble": [],
            "late_ns": 0,
            "paths": paths,
            "carrier": None,
            "speed_bps": None,
            "counters": [],
            "verbs": None,
            "hosts": [],
        }
        self._events += 1
        self.evidence.ingest(event, now_ns, self.routes)
        suspects = self.evidence.suspect_paths(now_ns, STALE_NS)
        assert len(suspects) == len(DEAD_PORTS)
        return find_unexplained(self.evidence, self.routes, Topology(), suspects, now_ns)

    def _path(self, port: int, streak: int, first_lost_age_ns: int) -> PathEvidence:
        answered_age_ns = -1 if streak else MS
        return {
            "peer": B,
            "path": port,
            "lost": streak,
            "answered": int(not streak),
            "loss_streak": streak,
            "first_lost_age_ns": first_lost_age_ns,
            "last_lost_age_ns": MS if streak else -1,
            "answered_age_ns": answered_age_ns,
            "arrived_age_ns": answered_age_ns,
            "timeout_ns": 2 * MS,
            "late": 0,
            "delayed": 0,
            "classes": [],
        }

    def element(self, link: str) -> int:
        return self.evidence.index[link]


def test_losses_are_unexplained_once_they_have_lasted() -> None:
    it = LosingPaths(OUT)
    assert it.found_at(START_NS + 1900 * MS) is None
    found = it.found_at(START_NS + 2100 * MS)
    assert found is not None
    assert (found.paths, found.nics, found.since_ns) == (2, 1, START_NS)
    assert found.candidates == ("leaf1", "leaf2", "spine1", "spine2")


def test_the_text_counts_untraced_routes_while_first_traces_are_expected() -> None:
    it = LosingPaths((), complete=False, back=())
    early = it.found_at(START_NS + 3 * S)
    assert early is not None
    assert early.untraced == 2
    assert "the routes of 2 of them are not traced yet (probes.trace_pps limits the pace)" in early.text("x")
    late = it.found_at(START_NS + 3 * S + BLIND_AFTER_NS)
    assert late is not None
    assert (late.untraced, "not traced yet" in late.text("x")) == (0, False)


@pytest.mark.parametrize("place", [A, B, OUT[1], BACK[2]])
def test_losses_count_only_from_the_recovery_of_a_link_or_nic_on(place: str) -> None:
    """A path is not yet alive just because its link is: its next probe is still to come."""
    it = LosingPaths(OUT)
    assert it.found_at(START_NS + 3 * S) is not None
    recovered_ns = START_NS + 4 * S
    it.evidence.recovered_ns[it.element(place)] = recovered_ns
    assert it.found_at(recovered_ns + 1900 * MS) is None
    found = it.found_at(recovered_ns + 2100 * MS)
    assert found is not None, "the link lives, and these paths still lose every probe"
    assert found.paths == 2


def test_the_recovery_of_a_link_elsewhere_hides_no_loss() -> None:
    it = LosingPaths(OUT)
    assert it.found_at(START_NS + 3 * S) is not None
    it.evidence.recovered_ns[it.element(ELSEWHERE[1])] = START_NS + 4 * S
    assert it.found_at(START_NS + 4100 * MS) is not None


@pytest.mark.parametrize("link", [OUT[1], BACK[2]])
def test_a_known_dead_link_explains_the_paths_over_it(link: str) -> None:
    it = LosingPaths(OUT)
    assert it.found_at(START_NS + 3 * S) is not None
    it.evidence.down[it.element(link)] = True
    assert it.found_at(START_NS + 4 * S) is None
    it.evidence.down[it.element(link)] = False
    assert it.found_at(START_NS + 5 * S) is not None


def test_a_trace_that_ends_beside_a_known_dead_link_is_explained_by_it() -> None:
    """Behind a dead link no hop answers, so such a path is known only up to the switch before the link."""
    it = LosingPaths(GAP, complete=False)
    found = it.found_at(START_NS + 3 * S)
    assert found is not None
    assert found.candidates == ("leaf1", "leaf2", "spine2")
    dead = it.evidence.element("leaf2:5>spine9:2", START_NS)
    it.evidence.down[dead] = True
    assert it.found_at(START_NS + 4 * S) is None


def test_a_dead_link_elsewhere_explains_no_gap() -> None:
    it = LosingPaths(GAP, complete=False)
    assert it.found_at(START_NS + 3 * S) is not None
    dead = it.evidence.element("leaf8:5>spine9:2", START_NS)
    it.evidence.down[dead] = True
    assert it.found_at(START_NS + 4 * S) is not None
    assert np.flatnonzero(it.evidence.down).tolist() == [dead]
