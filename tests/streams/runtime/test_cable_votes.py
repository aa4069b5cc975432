"""One port has one cable: a cable that one NIC names against several others is doubted."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import cable_ends, cable_id
from streams.runtime.cable_votes import CableVotes

RIGHT = cable_id("leaf1:9>spine1:1")
RENAMED = (cable_id("@eaf1:9>spine1:1"), cable_id("leaf1:9>spine1:q"))
NICS = tuple(f"h{n}/e" for n in range(1, 6))


def votes(*nics: str, cable: str = RIGHT) -> CableVotes:
    made = CableVotes()
    for nic in nics:
        made.replace(nic, (), {cable})
    return made


@pytest.mark.parametrize("wrong", RENAMED)
def test_a_cable_of_one_nic_loses_against_two_others_at_its_port(wrong: str) -> None:
    it = votes(*NICS[:2])
    assert it.replace(NICS[2], (), {wrong}) == {wrong}
    assert it.doubted == {wrong}
    assert it.replace(NICS[2], {wrong}, {RIGHT}) == {wrong}
    assert it.doubted == set()


@pytest.mark.parametrize("wrong", RENAMED)
def test_the_order_of_the_records_does_not_matter(wrong: str) -> None:
    it = votes(NICS[2], cable=wrong)
    assert it.doubted == set(), "nothing contradicts it yet"
    it.replace(NICS[0], (), {RIGHT})
    assert it.doubted == set(), "one NIC against one"
    assert it.replace(NICS[1], (), {RIGHT}) == {wrong}


def test_many_records_of_one_nic_count_once() -> None:
    it = votes(*NICS[:2])
    for _ in range(5):
        it.replace(NICS[2], (), {RENAMED[0]})
    assert it.doubted == {RENAMED[0]}
    for left in range(4, -1, -1):
        it.replace(NICS[2], {RENAMED[0]}, ())
        assert it.doubted == ({RENAMED[0]} if left else set())


def test_a_recabled_port_is_followed_from_the_second_nic_on() -> None:
    """The first NIC that retraces is doubted, the second confirms, and the last that is late is doubted."""
    it = votes(*NICS)
    new = cable_id("leaf1:9>spine2:7")
    it.replace(NICS[0], {RIGHT}, {new})
    assert it.doubted == {new}
    it.replace(NICS[1], {RIGHT}, {new})
    assert it.doubted == set()
    for nic in NICS[2:4]:
        it.replace(nic, {RIGHT}, {new})
    assert it.doubted == {RIGHT}
    it.replace(NICS[4], {RIGHT}, {new})
    assert it.doubted == set()
    assert not it.nics_of(RIGHT)
    assert set(it.nics_of(new)) == set(NICS)


def test_a_name_of_many_ports_makes_no_cable_doubtful() -> None:
    """A switch that answers from its loopback has one name for all of its ports."""
    it = CableVotes()
    for spine in ("10.255.0.11", "10.255.0.12"):
        for nic in NICS[:2]:
            it.replace(nic, (), {cable_id(f"10.255.0.1:ip>{spine}:ip")})
    it.replace(NICS[2], (), {cable_id("10.255.0.1:ip>10.255.0.13:ip")})
    assert it.doubted == set()


def test_an_unknown_port_contradicts_nothing() -> None:
    it = CableVotes()
    for nic in NICS[:2]:
        it.replace(nic, (), {cable_id("leaf1:?>spine1:1")})
    it.replace(NICS[2], (), {cable_id("leaf1:?>spine2:1")})
    assert it.doubted == set()


CABLES = st.sampled_from([cable_id(f"leaf1:{a}>spine{s}:{b}") for a in "12?" for s in "12" for b in "12"])
CHANGES = st.lists(st.tuples(st.sampled_from(NICS), st.integers(0, 2), st.frozensets(CABLES, max_size=4)))


@given(CHANGES)
def test_doubt_follows_from_the_present_records_alone(changes: list[tuple[str, int, frozenset[str]]]) -> None:
    """The counts equal those of all records counted afresh; the returned cables are those that changed."""
    it, records = CableVotes(), dict[tuple[str, int], frozenset[str]]()
    for nic, peer, cables in changes:
        before = set(it.doubted)
        changed = it.replace(nic, records.get((nic, peer), frozenset()), cables)
        records[nic, peer] = cables
        assert changed == before ^ it.doubted
        named = {cable for of in records.values() for cable in of}
        nics = {cable: {n for (n, _), of in records.items() if cable in of} for cable in named}
        confirmed = Counter(end for cable, of in nics.items() if len(of) > 1 for end in cable_ends(cable))
        assert it.doubted == {
            cable
            for cable, of in nics.items()
            if len(of) == 1
            and any(confirmed[end] == 1 for end in cable_ends(cable) if not end.endswith(":?"))
        }


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_the_mutations_of_one_nic_make_and_remove_no_cable(seed: int, mutations: int) -> None:
    """Whatever one NIC names, the believed cables of a fabric that the others see are the true ones."""
    rng = random.Random(seed)
    true = {cable_id(f"leaf{a}:{8 + s}>spine{s}:{a}") for a in range(1, 5) for s in range(1, 4)}
    it = CableVotes()
    for nic in NICS:
        it.replace(nic, (), true)
    wrong = set(true)
    for cable in rng.sample(sorted(true), mutations):
        near, far = cable_ends(cable)
        at = rng.randrange(len(near) - 2)
        wrong ^= {cable, cable_id(f"{near[:at]}@{near[at + 1 :]}>{far}")}
    it.replace(NICS[0], true, wrong)
    named = {cable for cable in true | wrong if it.nics_of(cable)}
    assert named - it.doubted == true
