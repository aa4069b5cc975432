"""Aims at live flows' ways: each at its pace, evenly, under the cap, nothing where probes cross anyway."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.probe.flow_targets import (
    MAX_ROUTES_PER_SLOT,
    NO_FLOW_TARGETS,
    PERIOD_S,
    PeerRoute,
    choose_spare_ports,
    max_min_rate_pps,
    plan_flow_targets,
    schedule_rates_pps,
)

PACE = 200.0


def route(peer: int, spine: int) -> PeerRoute:
    links = (
        "h0:e>l0:h",
        f"l0:s{spine}>s{spine}:l0",
        f"s{spine}:l{peer}>l{peer}:s{spine}",
        f"l{peer}:h>h{peer}:e",
    )
    return PeerRoute(f"h{peer}/e", links)


routes = st.builds(route, st.integers(1, 7), st.integers(1, 4))
known_ports = st.dictionaries(
    st.tuples(st.integers(1, 7), st.integers(9320, 9325)), st.integers(1, 4), min_size=1
).map(lambda found: {(f"h{peer}/e", port): route(peer, spine).links for (peer, port), spine in found.items()})


@given(
    st.lists(routes, max_size=40),
    known_ports,
    st.floats(0, 300),
    st.floats(20, 20_000),
    st.sampled_from([50.0, PACE]),
)
def test_every_route_gets_its_rate_evenly_and_under_the_cap(wanted, known, present_pps, cap_pps, wanted_pps):
    rates = {path: present_pps / (1 + at % 3) for at, path in enumerate(known)}
    targets = plan_flow_targets(wanted, known, rates, wanted_pps, cap_pps)
    assert targets == plan_flow_targets(list(reversed(wanted)) + wanted, known, rates, wanted_pps, cap_pps)
    assert targets.pps <= cap_pps * (1 + 1e-9)
    own = targets.rates_pps()
    assert len({(peer, known[peer, port]) for peer, port in own}) == len(own), "one port a way"
    reachable = [each for each in set(wanted) if each.links in [known[s] for s in known if s[0] == each.peer]]
    assert all(PeerRoute(peer, known[peer, port]) in reachable for peer, port in own), "nobody else's ways"
    pace = min(targets.rate_pps, wanted_pps)
    lost_to_rounding = 1 + len(own) / (PERIOD_S * cap_pps)
    for each in reachable:
        probes = [path for path in known if path[0] == each.peer and known[path] == each.links]
        present = sum(rates[path] for path in probes)
        added = sum(own.get(path, 0.0) for path in probes)
        assert added >= 0.97 * (pace - present) / lost_to_rounding - 0.021 * pace
        if present >= wanted_pps:
            assert added == 0, "it is crossed often enough anyway"
    if not targets.probes:
        return
    assert targets.per_slot <= MAX_ROUTES_PER_SLOT
    slots = [
        targets.probes[at : at + targets.per_slot] for at in range(0, len(targets.probes), targets.per_slot)
    ]
    for path, count in Counter(path for path in targets.probes if path).items():
        at = [number for number, slot in enumerate(slots) if path in slot]
        assert len(at) == count, "never twice in a turn"
        steps = [(b - a) % len(slots) for a, b in zip(at, at[1:] + at[:1], strict=True)] if count > 1 else []
        assert all(abs(step - len(slots) / count) < 1 for step in steps), "even steps"


def test_present_probes_count_and_the_rest_is_added_to_the_busiest_port():
    there = route(1, 2)
    known = {("h1/e", 9320): there.links, ("h1/e", 9321): there.links, ("h1/e", 9322): route(1, 3).links}
    rates = {("h1/e", 9320): 20.0, ("h1/e", 9321): 60.0, ("h1/e", 9322): 500.0}
    targets = plan_flow_targets([there, there], known, rates, PACE, 1000.0)
    assert targets.rates_pps() == {("h1/e", 9321): pytest.approx(PACE - 80)}
    assert plan_flow_targets([route(1, 3)], known, rates, PACE, 1000.0) == NO_FLOW_TARGETS
    assert plan_flow_targets([route(1, 4), route(2, 2)], known, rates, PACE, 1000.0) == NO_FLOW_TARGETS, (
        "no port goes there"
    )
    assert plan_flow_targets([], known, rates, PACE, 1000.0) == NO_FLOW_TARGETS


def test_routes_with_common_links_use_different_slots():
    wanted = [route(1, 1), route(2, 1), route(3, 2), route(4, 2)]
    known = {(each.peer, 9320): each.links for each in wanted}
    targets = plan_flow_targets(wanted, known, {}, PACE, 1000.0)
    slots = [
        targets.probes[at : at + targets.per_slot] for at in range(0, len(targets.probes), targets.per_slot)
    ]
    assert targets.pps == pytest.approx(4 * PACE)
    assert len(slots) == 50, "no more wakings than one way alone needs"
    assert all(len(set(slot)) == 4 for slot in slots), "and no other choice then"
    wanted = [route(peer, spine) for peer in range(1, 5) for spine in (1, 2)]
    known = {(each.peer, 9320 + at % 2): each.links for at, each in enumerate(wanted)}
    wide = plan_flow_targets(wanted, known, {}, PACE, 2000.0)
    slots = [wide.probes[at : at + wide.per_slot] for at in range(0, len(wide.probes), wide.per_slot)]
    by_spine = [Counter(known[path][1] for path in slot if path is not None) for slot in slots]
    assert max(max(counts.values()) for counts in by_spine) == 2, "four ways by each, over two turns"


@given(st.lists(st.floats(0, 400), min_size=1, max_size=20), st.floats(1, 5000))
def test_the_level_takes_the_whole_cap_and_no_more(looked, cap_pps):
    level = max_min_rate_pps(looked, PACE, cap_pps)
    poured = sum(max(0.0, level - present) for present in looked)
    assert poured <= cap_pps * (1 + 1e-9)
    assert level == PACE or math.isclose(poured, cap_pps, rel_tol=1e-6)


def test_schedule_rates():
    probes = [("a", 1), ("b", 1), ("a", 1), ("c", 1)]
    assert schedule_rates_pps(probes, 10e6, 2) == {("a", 1): 100.0, ("b", 1): 50.0, ("c", 1): 50.0}


def test_few_spare_ports_serve_the_routes_that_no_port_takes():
    known = {("h1/e", 9320): route(1, 1).links, ("h2/e", 9320): route(2, 1).links}
    candidates = {
        9320: {"h1/e": route(1, 2).links},
        9330: {"h1/e": route(1, 2).links, "h2/e": route(2, 1).links},
        9331: {"h1/e": route(1, 2).links, "h2/e": route(2, 3).links},
        9332: {"h1/e": route(1, 3).links},
    }
    served = [route(1, 1), route(2, 1)]
    assert choose_spare_ports(served, known, candidates, [50_001, 50_002], [9320]) == [50_001, 50_002]
    lacking = [*served, route(1, 2), route(2, 3)]
    assert choose_spare_ports(lacking, known, candidates, [50_001, 50_002], [9320]) == [9331, 50_002]
    assert choose_spare_ports([*lacking, route(1, 3)], known, candidates, [9330, 50_002], [9320]) == [
        9331,
        9332,
    ]
    assert choose_spare_ports([route(1, 2)], known, candidates, [50_001, 9330], [9320]) == [50_001, 9330], (
        "it stays"
    )
    assert choose_spare_ports([route(1, 3), route(1, 2)], known, candidates, [9330], [9320]) == [9330], (
        "no room"
    )


@given(
    st.lists(routes, max_size=12),
    known_ports,
    st.dictionaries(
        st.integers(9330, 9340), st.dictionaries(st.integers(1, 7), st.integers(1, 4)), max_size=8
    ),
)
def test_spare_ports_are_each_others_and_nobody_elses(wanted, known, found):
    candidates = {
        port: {f"h{peer}/e": route(peer, spine).links for peer, spine in of.items()}
        for port, of in found.items()
    }
    current = [9331, 50_001, 50_002]
    chosen = choose_spare_ports(wanted, known, candidates, current, [9330, 9320])
    assert len(chosen) == len(set(chosen)) == 3
    assert not {9330, 9320} & set(chosen)
    for at, port in enumerate(chosen):
        assert port == current[at] or port in candidates
    again = choose_spare_ports(wanted, known, candidates, chosen, [9330, 9320])
    assert again == chosen, "what was chosen stays"
