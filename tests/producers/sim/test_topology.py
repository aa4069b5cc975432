"""The simulated fleet's wiring and ECMP: every path is walkable, evenly spread, and as the shape says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.sim.shape import Shape
from producers.sim.topology import PROBE_PORT, Fleet, LinkKind
from schemas.ids import cable_id, nic_parts
from tests.examples import examples

SHAPES = st.builds(
    lambda racks, per_rack, short, rails, per_rail, spines, cables, per_pod, cores: Shape(
        hosts=max(2, racks * per_rack - min(short, per_rack - 1)),
        hosts_per_rack=per_rack,
        spines=spines,
        nics_per_host=rails * per_rail,
        rails=rails,
        cables=cables,
        racks_per_pod=per_pod,
        cores=cores if per_pod else 0,
    ),
    *(st.integers(1, n) for n in (6, 5)),
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 4),
)


def some_flows(fleet, count, seed=0):
    rng = np.random.default_rng(seed)
    src = rng.integers(0, fleet.nics, count)
    dst = (src + rng.integers(1, fleet.nics, count)) % fleet.nics
    return src, dst, rng.integers(1024, 65536, count)


def assert_walkable(fleet, src, dst, paths):
    """Links follow each other from the source's host to the destination's, up the tiers and then down."""
    first, last = paths.start[:-1], paths.start[1:] - 1
    assert (paths.link[first] == 2 * src).all()
    assert (paths.link[last] == 2 * dst + 1).all()
    inner = np.ones(len(paths.link), bool)
    inner[first] = False
    at = np.flatnonzero(inner)
    assert (fleet.link_from[paths.link[at]] == fleet.link_to[paths.link[at - 1]]).all()
    order = np.array([0, 5, 1, 4, 2, 3])[fleet.kind[paths.link]]  # by LinkKind: the place in a longest path
    assert (order[at] > order[at - 1]).all()


@given(SHAPES, st.integers(0, 2**64 - 1))
@settings(max_examples=examples(60))
def test_any_shape_is_wired_and_every_path_leads_from_nic_to_nic(shape, seed):
    fleet = Fleet(shape, seed)
    ids = fleet.link_ids
    assert len(set(ids)) == fleet.links == len(fleet.kind)
    assert len({cable_id(link) for link in ids}) == fleet.links // 2
    ends = [tuple(link.split(">")) for link in ids]
    assert all(ends[i] == ends[i ^ 1][::-1] for i in range(fleet.links))
    assert len({near for near, _ in ends}) == fleet.links  # no port has two cables
    src, dst, port = some_flows(fleet, 200, 1)
    paths = fleet.paths(src, dst, port)
    assert paths.reached.all()
    assert_walkable(fleet, src, dst, paths)
    same_leaf = fleet.nic_leaf[src] == fleet.nic_leaf[dst]
    pod = fleet.nic_rack // (shape.racks_per_pod or shape.racks)
    same_pod = pod[src] == pod[dst]
    assert (paths.hops == np.where(same_leaf, 2, np.where(same_pod, 4, 6))).all()


@pytest.mark.parametrize("nics", [2, 8, 24, 64, 256, 1_000, 1_024, 2_048, 4_096, 10_000])
def test_fleet_of_a_size_has_that_many_nics_and_does_not_block(nics):
    fleet = Fleet(Shape.of(nics))
    assert fleet.nics == nics
    rate = fleet.rate_bps
    down = np.bincount(fleet.link_to[fleet.kind == LinkKind.HOST_UP], rate[fleet.kind == LinkKind.HOST_UP])
    up = np.bincount(fleet.link_from[fleet.kind == LinkKind.LEAF_UP], rate[fleet.kind == LinkKind.LEAF_UP])
    assert (down[fleet.first_leaf :] <= up[fleet.first_leaf : len(down)]).all()
    ports = np.bincount(fleet.link_from)
    assert ports[fleet.first_leaf :].max() <= 64


def test_a_thousand_nics_are_128_hosts_on_8_rails():
    fleet = Fleet(Shape.of(1_024))
    s = fleet.shape
    assert (s.hosts, s.nics_per_host, s.rails, s.racks, s.leaves, s.spines, s.pods, s.cores) == (
        128,
        8,
        8,
        4,
        32,
        32,
        1,
        0,
    )


def test_oversubscription_takes_uplinks_away():
    wide, narrow = Fleet(Shape.of(1_024)), Fleet(Shape.of(1_024, oversubscription=4))
    assert (wide.shape.spines, narrow.shape.spines) == (32, 8)
    faster = Fleet(Shape.of(1_024, rate_bps=200_000_000_000, fabric_rate_bps=400_000_000_000))
    assert faster.shape.spines == 16


def test_rails_join_the_same_device_of_every_host_in_a_rack():
    fleet = Fleet(Shape.of(1_024))
    for nic, name in enumerate(fleet.nic_ids):
        _, device = nic_parts(name)
        leaf = fleet.node_ids[fleet.link_to[2 * nic]]
        rack = int(fleet.nic_host[nic]) // fleet.shape.hosts_per_rack
        rail = int(device.removeprefix("eth")) - 1
        assert fleet.nic_rail[nic] == rail
        assert leaf == f"leaf{rack * 8 + rail + 1}"
    # two NICs of one rail and rack meet on their leaf; of two rails, over a spine
    assert fleet.paths([0, 0], [8, 9], 50_000).hops.tolist() == [2, 4]


def test_a_plain_clos_puts_all_nics_of_a_host_on_one_leaf():
    fleet = Fleet(Shape.of(256, nics_per_host=8, rails=1))
    assert all(len(set(fleet.nic_leaf[host * 8 : host * 8 + 8].tolist())) == 1 for host in range(32))


def spread(fleet, kind, paths):
    """How many of the paths cross each link of a kind."""
    return np.bincount(paths.link, minlength=fleet.links)[fleet.kind == kind]


@pytest.mark.parametrize(
    "kind", [LinkKind.LEAF_UP, LinkKind.SPINE_UP, LinkKind.CORE_DOWN, LinkKind.SPINE_DOWN]
)
def test_ecmp_spreads_evenly_on_every_tier(kind):
    """Chi-square over a tier's links of many random flows: tiers that polarise would leave links empty."""
    fleet = Fleet(Shape(hosts=64, hosts_per_rack=4, spines=4, cables=2, racks_per_pod=4, cores=4), 7)
    src = np.tile(np.arange(64), 2_000)
    dst = (src + 16 + 16 * (np.arange(len(src)) // 64 % 3)) % 64  # always another pod, each as often
    paths = fleet.paths(src, dst, 1_024 + np.arange(len(src)) // 64 * 13 % 60_000)
    counts = spread(fleet, kind, paths)
    mean = counts.mean()
    chi2 = ((counts - mean) ** 2).sum() / mean
    assert chi2 < len(counts) + 5 * np.sqrt(2 * len(counts))


def test_source_ports_of_one_pair_reach_every_spine_and_answers_have_their_own_routes():
    fleet = Fleet(Shape.of(64), 3)
    ports = np.arange(50_000, 50_256)
    there, back = fleet.round_trips(0, 63, ports)
    up = there.link[there.start[:-1] + 1]
    home = back.link[back.start[:-1] + 1]
    assert len(set(up.tolist())) == len(set(home.tolist())) == 8
    same = (fleet.link_to[up] == fleet.link_to[home]).mean()
    assert 0.05 < same < 0.25  # 1 of 8 by chance
    assert_walkable(fleet, np.full(256, 63), np.zeros(256, int), back)
    assert (back.link == fleet.paths(63, 0, PROBE_PORT, ports).link).all()


def test_paths_stay_for_a_seed_and_move_with_another():
    src, dst, port = some_flows(Fleet(Shape.of(256)), 1_000)
    one, again, other = (Fleet(Shape.of(256), seed).paths(src, dst, port).link for seed in (5, 5, 6))
    assert (one == again).all()
    assert (one != other).mean() > 0.2


def test_a_dead_uplink_is_left_out_by_its_own_leaf_alone():
    fleet = Fleet(Shape.of(64))
    src, dst, port = some_flows(fleet, 20_000)
    living = np.ones(fleet.links, bool)
    for converged in (False, True):
        same = fleet.paths(src, dst, port, living=living, converged=converged)
        assert (same.link == fleet.paths(src, dst, port).link).all()
    before = fleet.paths(src, dst, port)
    dead = before.link[before.start[np.flatnonzero(before.hops == 4)[0]] + 1]
    living[[dead, dead ^ 1]] = False
    after = fleet.paths(src, dst, port, living=living)
    assert dead not in after.link
    # the leaf that lost its uplink goes around it; the spine has no other way down, and others don't know
    stuck = ~after.reached
    assert stuck.any()
    assert (fleet.nic_leaf[dst[stuck]] + fleet.first_leaf == fleet.link_from[dead]).all()
    assert (after.hops[stuck] == 2).all()
    assert (fleet.link_to[after.link[after.start[1:][stuck] - 1]] == fleet.link_to[dead]).all()
    assert_walkable(
        fleet, src[~stuck], dst[~stuck], fleet.paths(src[~stuck], dst[~stuck], port[~stuck], living=living)
    )


@given(st.integers(0, 2**32), st.floats(0, 1))
@settings(max_examples=examples(30))
def test_no_path_crosses_a_link_that_the_switch_before_it_knows_dead(seed, share):
    fleet = Fleet(Shape(hosts=24, hosts_per_rack=2, spines=3, cables=2, racks_per_pod=4, cores=3), seed)
    living = np.random.default_rng(seed).random(fleet.links) < share
    src, dst, port = some_flows(fleet, 300, seed)
    paths = fleet.paths(src, dst, port, living=living)
    assert living[paths.link].all()
    there = np.flatnonzero(paths.reached)
    assert (paths.link[paths.start[1:][there] - 1] == 2 * dst[there] + 1).all()
    if share == 1:
        assert paths.reached.all()


@given(SHAPES, st.integers(0, 2**32), st.floats(0.3, 1))
@settings(max_examples=examples(60))
def test_converged_switches_find_every_possible_route(shape, seed, share):
    """Against a search over all living up-and-down ways."""
    fleet = Fleet(shape, seed)
    living = np.random.default_rng(seed).random(fleet.links) < share
    src, dst, port = some_flows(fleet, 60, seed)
    paths = fleet.paths(src, dst, port, living=living, converged=True)
    assert living[paths.link].all()
    out = [np.flatnonzero(living & (fleet.link_from == node)) for node in range(fleet.nodes)]
    hops = fleet.paths(src, dst, port).hops
    for flow, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        ends = {int(fleet.link_to[2 * a])} if living[2 * a] else set()
        for hop in range(int(hops[flow]) - 2):
            upwards = hop < (hops[flow] - 2) // 2
            ends = {
                int(fleet.link_to[link])
                for end in ends
                for link in out[end]
                if fleet.kind[link] != LinkKind.LEAF_DOWN and (fleet.kind[link] % 2 == 0) == upwards
            }
        there = fleet.first_leaf + fleet.nic_leaf[b] in ends and living[2 * b + 1]
        assert paths.reached[flow] == there
    whole = paths.reached.nonzero()[0]
    assert_walkable(
        fleet, src[whole], dst[whole], fleet.paths(src[whole], dst[whole], port[whole], 9319, living, True)
    )


def test_base_delay_adds_serialisation_cable_and_switches():
    shape = Shape(
        hosts=4,
        hosts_per_rack=2,
        spines=1,
        host_rate_bps=10**10,
        fabric_rate_bps=4 * 10**10,
        switching_ns=500,
        host_cable_ns=25,
        fabric_cable_ns=100,
    )
    fleet = Fleet(shape)
    delay = fleet.base_delay_ns(fleet.paths([0, 0], [1, 3], 50_000), 1_000)
    assert delay == pytest.approx([2 * 825 + 500, 2 * 825 + 500 + 2 * (200 + 600)])


def test_every_link_joins_two_nodes_of_a_known_kind():
    fleet = Fleet(Shape.of(256))
    assert list(fleet.node_kinds) == fleet.node_ids
    assert (fleet.node_kinds["h17"], fleet.node_kinds["leaf11"]) == ("host", "leaf")
    for link in fleet.link_ids:
        near, far = (end.split(":")[0] for end in link.split(">"))
        assert {near, far} <= set(fleet.node_kinds)


def test_index_finds_ids():
    fleet = Fleet(Shape.of(64))
    assert fleet.nic_index[fleet.nic_ids[17]] == 17
    assert fleet.link_index["leaf1:swp1>h1:eth1"] == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Shape.of(1), "nics 1: expected at least 2"),
        (lambda: Shape.of(100, nics_per_host=8), "nics_per_host 8: expected a divisor of 100 NICs"),
        (
            lambda: Shape.of(64, nics_per_host=8, rails=3),
            "rails 3: expected a divisor of 8 NICs a host",
        ),
        (lambda: Shape.of(64, oversubscription=0), "oversubscription 0: expected a number above 0"),
        (lambda: Shape.of(64, tiers=4), "tiers 4: expected 2 or 3"),
        (lambda: Shape(hosts=8, hosts_per_rack=2, spines=2, racks_per_pod=2), "cores 0: expected"),
        (lambda: Shape(hosts=8, hosts_per_rack=0, spines=2), "hosts_per_rack 0: expected at least 1"),
        (lambda: Fleet(Shape.of(8)).paths(0, 8, 1), "dst 8: expected 0 to 7"),
        (lambda: Fleet(Shape.of(8)).paths(0, 1, 65_536), "src_port 65536: expected 0 to 65535"),
        (lambda: Fleet(Shape.of(8)).paths([1, 2], [3, 2], 1), "src and dst are both NIC 2"),
        (lambda: Fleet(Shape.of(8)).paths([1, 2], [3, 4, 5], 1), "src, dst and ports: "),
        (lambda: Fleet(Shape.of(8)).paths(0, 1, 1, living=[True]), r"living: shape \(1,\), expected \(32,\)"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


@pytest.mark.parametrize(("nics", "tiers"), [(64, 2), (256, 2), (256, 3)])
def test_the_route_of_every_port_is_one_of_all_routes(nics, tiers):
    fleet = Fleet(Shape.of(nics, tiers=tiers))
    rng = np.random.default_rng(nics)
    for _ in range(5):
        a, b = rng.choice(nics, 2, replace=False).tolist()
        every = {tuple(links.tolist()) for links in fleet.routes(a, b)}
        ports = range(1, 2000)
        taken = fleet.paths(a, b, list(ports), 4791)
        seen = {tuple(taken.of(at).tolist()) for at in range(len(ports))}
        assert seen <= every
        assert len(seen) > 0.9 * len(every) or len(every) > 500
    living = np.ones(fleet.links, np.bool_)
    dead = fleet.routes(a, b)[0][len(fleet.routes(a, b)[0]) // 2]
    living[dead] = False
    assert all(dead not in links for links in fleet.routes(a, b, living))
