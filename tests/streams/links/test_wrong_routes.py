"""Verdicts while some records of routes are wrong: no cable is made, renamed or retired by one record."""

from __future__ import annotations

import contextlib
import random

import pytest

from fabrictime.bench.networks.answers import Form
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from producers.trace.route_names import NamedPath
from schemas import codec
from schemas.ids import cable_id
from schemas.records import LinkHealth, PathMaps, PathSource
from schemas.topics import PATHS
from tests.examples import draws
from tests.records import make
from tests.streams.links.watched import WARM, Watched

MS = 1_000_000
S = 1_000 * MS
FLEET = Fleet(Shape(hosts=8, hosts_per_rack=2, spines=4), 1)


class Traced(Watched):
    """A fleet as the testbed, with its routes as records, and the verdicts of its shard."""

    def __init__(self, form: Form = Form.PORTS) -> None:
        super().__init__(FLEET, 3, 500.0, form=form, peers=7, paths=4)
        self.run(WARM)

    @property
    def records(self) -> dict[str, LinkHealth | None]:
        """The last record of each subject."""
        return {subject: record for _, (subject, record) in self.changes}

    @property
    def seen(self) -> set[str]:
        """Subjects that were ever not UP."""
        return {s for _, (s, record) in self.changes if record is None or record["state"] != "UP"}

    def not_up(self) -> set[str]:
        return {s for s, record in self.records.items() if record is not None and record["state"] != "UP"}

    def pairs_over(self, link: str) -> list[tuple[str, str]]:
        book = self.book
        return [
            pair for pair in sorted(book.pairs()) if any(link in r.links for r in book.paths(*pair).values())
        ]

    def publish(self, pair: tuple[str, str], renamed: dict[str, str]) -> None:
        """Publish a pair's record with other names of some links."""
        paths = []
        for (leg, port), route in self.book.paths(*pair).items():
            links = tuple(renamed.get(link, link) for link in route.links)
            paths.append(NamedPath(links, route.complete, PathSource.TRACED).row(port, leg))
        record = make(PathMaps, nic=pair[0], peer=pair[1], shard="fabric", run=1, paths=paths)
        with contextlib.suppress(codec.BadRecord):  # a name without node or port
            self.book.take(f"{pair[0]}>{pair[1]}".encode(), codec.encode(PATHS.type, record))


def mutations(link: str) -> list[str]:
    """Return names that differ from a link's in one end."""
    near, far = link.split(">")
    return [f"@{near[1:]}>{far}", f"{near}>@{far[1:]}", f"{near}>{far}1"]


@pytest.mark.parametrize(
    ("wrong", "when"), [(0, "before"), (1, "before"), (0, "after"), (1, "after"), (2, "after")]
)
def test_a_dead_cable_keeps_its_name_if_one_record_has_another(wrong: int, when: str) -> None:
    it = Traced()
    number = it.link("leaf1", "spine2")
    link = FLEET.link_ids[number]
    pair = it.pairs_over(link)[0]
    phantom = mutations(link)[wrong]
    if when == "before":
        it.publish(pair, {link: phantom})
        it.run(500 * MS)
    it.probes.down[number] = True
    it.run(2 * S)
    assert it.not_up() == {cable_id(link)}
    if when == "after":
        it.publish(pair, {link: phantom})
    it.run(3 * S)
    assert it.seen == {cable_id(link)}
    assert it.not_up() == {cable_id(link)}
    it.probes.down[number] = False
    it.run(3 * S)
    assert it.not_up() == set()


@pytest.mark.parametrize("seed", draws(range(2)))
def test_many_wrong_records_of_many_nics_change_no_verdict(seed: int) -> None:
    """Each wrong name is of its own; most NICs still name the true cables."""
    rng = random.Random(seed)
    it = Traced()
    number = it.link("leaf1", "spine2")
    it.probes.down[number] = True
    it.run(2 * S)
    pairs = sorted(it.book.pairs())
    for pair in rng.sample(pairs, len(pairs) // 4):
        links = sorted({link for route in it.book.paths(*pair).values() for link in route.links})
        link = rng.choice(links)
        at = rng.randrange(3)
        name = f"{link[:at]}{chr(rng.randrange(0x40, 0x7E))}{link[at + 1 :]}"
        it.publish(pair, {link: rng.choice([name, *mutations(link)])})
        it.run(20 * MS)
    it.run(3 * S)
    assert it.seen == {cable_id(FLEET.link_ids[number])}
    assert it.not_up() == it.seen


def test_a_dead_cable_that_is_moved_to_another_port_is_retired() -> None:
    """All NICs see the new cable, so the old one is no more, and the new one lives."""
    it = Traced()
    number, back = it.link("leaf1", "spine2"), it.link("spine2", "leaf1")
    link, reverse = FLEET.link_ids[number], FLEET.link_ids[back]
    near, far = link.split(">")
    it.probes.down[[number, back]] = True
    it.run(2 * S)
    assert it.not_up() == {cable_id(link)}
    moved = {link: f"{near}>{far}9", reverse: f"{far}9>{near}"}
    it.probes.down[[number, back]] = False
    for pair in sorted({*it.pairs_over(link), *it.pairs_over(reverse)}):
        it.publish(pair, moved)
        it.run(20 * MS)
    it.run(3 * S)
    assert it.not_up() == set()
    assert link not in it.book.links()
    assert moved[link] in it.book.links()
    it.probes.down[number] = True
    it.run(2 * S)
    assert it.not_up() == {cable_id(moved[link])}
