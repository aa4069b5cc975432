"""Wellness: what it says quickly of links and of all of them agrees with what it says of each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import cable_id
from streams.policy.path_health import HEALTHY, Grade, PathHealth

LINKS = [f"leaf{a}:u{b}>spine{b}:p{a}" for a in (1, 2) for b in (1, 2)]
LINKS += [">".join(reversed(link.split(">"))) for link in LINKS]
CABLES = sorted({cable_id(link) for link in LINKS})
NIC = "h1/eth1"
S = 1_000_000_000

said = st.tuples(
    st.sampled_from([*LINKS, NIC]),
    st.sampled_from(["DOWN", "GREY", "UP", "FLAPPING", None]),
    st.lists(st.sampled_from(CABLES), max_size=2, unique=True),
)


@given(st.lists(said, max_size=12))
def test_links_of_which_nothing_was_said_are_well_and_sound_means_that_nothing_is_bad(told):
    health_table = PathHealth(10 * S, 600 * S)
    for seq, (what, state, others) in enumerate(told):
        subject = what if what == NIC else cable_id(what)
        record = None if state is None else {
            "seq": seq, "state": state, "links": [] if what == NIC else [what], "candidates": others,
            "kind": "NIC" if what == NIC else "LINK", "flaps_hour": 0, "loss_rate": 0.1, "since_ns": seq * S,
        }  # fmt: skip
        was = {link: health_table.of_links([link], seq * S)[:2] for link in LINKS}
        health_table.take(subject, record)
        states = {link: health_table.of_links([link], seq * S) for link in LINKS}
        assert {link for link, found in states.items() if found[:2] != was[link]} <= health_table.pop_changed()
        assert {link for link, found in states.items() if found != HEALTHY} <= health_table.reported
        bad = any(found.grade >= Grade.LOSSY for found in (*states.values(), health_table.of_end(NIC)))
        assert not (health_table.all_good and bad)
