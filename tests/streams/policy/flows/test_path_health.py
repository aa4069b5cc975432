"""Path health: the summaries agree with the health of each link."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import cable_id
from streams.policy.flows.path_health import HEALTHY, Grade, PathHealth

LINKS = [f"leaf{a}:u{b}>spine{b}:p{a}" for a in (1, 2) for b in (1, 2)]
LINKS += [">".join(reversed(link.split(">"))) for link in LINKS]
CABLES = sorted({cable_id(link) for link in LINKS})
NIC = "h1/eth1"
S = 1_000_000_000

record_strategy = st.tuples(
    st.sampled_from([*LINKS, NIC]),
    st.sampled_from(["DOWN", "GREY", "UP", "FLAPPING", None]),
    st.lists(st.sampled_from(CABLES), max_size=2, unique=True),
)


@given(st.lists(record_strategy, max_size=12))
def test_unreported_links_are_healthy_and_all_good_means_no_bad_link(records):
    health = PathHealth(10 * S, 600 * S)
    for seq, (value, state, others) in enumerate(records):
        subject = value if value == NIC else cable_id(value)
        record = (
            None
            if state is None
            else {
                "seq": seq,
                "state": state,
                "links": [] if value == NIC else [value],
                "candidates": others,
                "kind": "NIC" if value == NIC else "LINK",
                "flaps_hour": 0,
                "loss_rate": 0.1,
                "classes": [],
                "max_packet_bytes": None,
                "since_ns": seq * S,
            }
        )
        was = {link: health.of_links([link], seq * S)[:2] for link in LINKS}
        health.take(subject, record)
        states = {link: health.of_links([link], seq * S) for link in LINKS}
        assert {link for link, found in states.items() if found[:2] != was[link]} <= health.pop_changed()
        assert {link for link, found in states.items() if found != HEALTHY} <= health.reported
        bad = any(found.grade >= Grade.LOSSY for found in (*states.values(), health.of_end(NIC)))
        assert not (health.all_good and bad)
