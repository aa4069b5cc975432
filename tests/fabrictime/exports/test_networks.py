"""Trees of hosts for schedulers: Clos fabrics, rails, pods, separate networks."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import example, given
from hypothesis import strategies as st

from fabrictime.exports.networks import Network, networks_of
from schemas.topology import CableEntry, Kind, NodeEntry, Topology, TopologyFile

KINDS: dict[str, Kind] = {"l": "leaf", "s": "spine", "c": "core"}


def fabric(*cables: str) -> Topology:
    """Return a fabric of cables such as `h1-l1`: hosts are h, leaves l, spines s, cores c."""
    names = dict.fromkeys(name for cable in cables for name in cable.split("-"))
    nodes = tuple(NodeEntry(name=name, kind=KINDS.get(name[0], "host")) for name in names)
    ends = [cable.split("-") for cable in cables]
    links = tuple(CableEntry(ends=(f"{a}:{b}", f"{b}:{a}")) for a, b in ends)
    return Topology(TopologyFile(nodes=nodes, links=links))


def clos(hosts: int, leaves: Iterable[str], spines: Iterable[str], first: int = 1) -> list[str]:
    """Return the cables of a pod: each leaf with `hosts` hosts of its own, and all spines."""
    cables = []
    for number, leaf in enumerate(leaves):
        cables += [f"h{first + number * hosts + at}-{leaf}" for at in range(hosts)]
        cables += [f"{leaf}-{spine}" for spine in spines]
    return cables


def groups(network: Network) -> list[dict[str, tuple[str, ...]]]:
    return [{group.name: group.hosts for group in level} for level in network.levels]


def test_hosts_of_a_leaf_are_a_group_below_the_spines() -> None:
    (network,) = networks_of(fabric(*clos(2, ["l1", "l2"], ["s1", "s2"])))
    assert groups(network) == [
        {"l1": ("h1", "h2"), "l2": ("h3", "h4")},
        {"s1": ("h1", "h2", "h3", "h4")},
    ]
    assert [child.name for child in network.levels[1][0].children] == ["l1", "l2"]


def test_the_rails_of_a_pod_are_one_group() -> None:
    pods = [f"h{host}-l{rail + 4 * (host > 3)}" for host in range(1, 7) for rail in range(1, 5)]
    (network,) = networks_of(
        fabric(*pods, *(f"l{leaf}-s{spine}" for leaf in range(1, 9) for spine in (1, 2)))
    )
    assert groups(network)[0] == {"l1": ("h1", "h2", "h3"), "l5": ("h4", "h5", "h6")}
    assert network.levels[0][1].switches == ("l5", "l6", "l7", "l8")


def test_rails_that_no_switch_joins_are_one_network() -> None:
    (network,) = networks_of(fabric(*(f"h{host}-l{rail}" for host in range(1, 5) for rail in range(1, 9))))
    assert groups(network) == [{"l1": ("h1", "h2", "h3", "h4")}]


def test_a_storage_network_is_a_network_of_its_own() -> None:
    compute = clos(2, ["l1", "l2"], ["s1"])
    storage = [f"h{host}-l9" for host in (1, 2, 3, 4, 5)]
    first, second = networks_of(fabric(*compute, *storage))
    assert (first.name, first.hosts) == ("l9", ("h1", "h2", "h3", "h4", "h5"))
    assert (second.name, second.hosts) == ("s1", ("h1", "h2", "h3", "h4"))


def test_pods_join_at_the_cores() -> None:
    pods = [*clos(1, ["l1", "l2"], ["s1", "s2"]), *clos(1, ["l3", "l4"], ["s3", "s4"], first=3)]
    (network,) = networks_of(fabric(*pods, *(f"s{spine}-c1" for spine in range(1, 5))))
    assert groups(network)[1] == {"s1": ("h1", "h2"), "s3": ("h3", "h4")}
    assert groups(network)[2] == {"c1": ("h1", "h2", "h3", "h4")}


def test_a_storage_server_at_two_pods_is_in_one_and_does_not_join_them() -> None:
    pods = [f"h{host}-l{rail + 2 * (host > 4)}" for host in range(1, 8) for rail in (1, 2)]
    spines = [f"l{leaf}-s1" for leaf in range(1, 5)]
    (network,) = networks_of(fabric(*pods, "h9-l1", "h9-l3", *spines))
    assert groups(network)[0] == {"l1": ("h1", "h2", "h3", "h4", "h9"), "l3": ("h5", "h6", "h7")}
    assert network.hosts == ("h1", "h2", "h3", "h4", "h5", "h6", "h7", "h9")
    assert network.multihomed == ("h9",)


@given(st.integers(3, 9), st.integers(3, 9), st.integers(1, 4), st.data())
def test_pods_stay_apart_whatever_few_hosts_join_them(
    a: int, b: int, rails: int, data: st.DataObject
) -> None:
    few = range(100, 100 + data.draw(st.integers(0, min(a, b) - 1)))
    pods = [f"h{host}-l{rail + rails * (host > a)}" for host in range(1, a + b + 1) for rail in range(rails)]
    joins = [
        f"h{host}-l{data.draw(st.integers(0, rails - 1)) + rails * pod}" for host in few for pod in (0, 1)
    ]
    drawn = data.draw(st.permutations([*pods, *joins, *(f"l{leaf}-s1" for leaf in range(2 * rails))]))
    (network,) = networks_of(fabric(*drawn))
    first, second = (set(group.hosts) for group in network.levels[0])
    shared = {f"h{host}" for host in few}
    assert first - shared == {f"h{host}" for host in range(1, a + 1)}
    assert second - shared == {f"h{host}" for host in range(a + 1, a + b + 1)}
    assert shared == set(network.multihomed)
    assert shared <= (first if a >= b else second)


def test_a_host_at_a_spine_is_in_a_group_beside_the_leaves() -> None:
    (network,) = networks_of(fabric(*clos(2, ["l1", "l2"], ["s1"]), "h9-s1"))
    (top,) = network.levels[1]
    assert [(child.name, child.hosts) for child in top.children] == [
        ("l1", ("h1", "h2")), ("l2", ("h3", "h4")), ("s1-hosts", ("h9",)),
    ]  # fmt: skip


def test_a_fabric_without_hosts_has_no_network() -> None:
    assert networks_of(fabric("l1-s1")) == ()
    assert networks_of(fabric()) == ()


SWITCHES = ["l1", "l2", "l3", "s1", "s2", "c1", "c2"]
ENDS = st.tuples(st.sampled_from(["h1", "h2", "h3", "h4", *SWITCHES]), st.sampled_from(SWITCHES))
cables = st.lists(
    ENDS.filter(lambda ends: ends[0] != ends[1]).map("-".join),
    max_size=16,
    unique_by=lambda cable: frozenset(cable.split("-")),
)


@given(cables)
@example(["h1-s2", "h2-l1", "l1-c2", "s2-l2", "c2-l2"])  # no spine above l1: its group stays on two levels
def test_each_group_holds_its_childrens_hosts_once_and_the_top_holds_all(drawn: list[str]) -> None:
    for network in networks_of(fabric(*drawn)):
        groups_of_network = {group for level in network.levels for group in level}
        assert len({group.name for group in groups_of_network}) == len(groups_of_network)
        assert all(len({group.name for group in level}) == len(level) for level in network.levels)
        assert len(network.levels[-1]) == 1
        for level in network.levels:
            hosts = [host for group in level for host in group.hosts]
            assert len(hosts) == len(set(hosts))
            for group in level:
                assert group.switches
                children = [host for child in group.children for host in child.hosts]
                assert not children or sorted(children) == sorted(group.hosts)


def test_a_switch_of_no_stated_tier_is_never_a_host() -> None:
    names = {"h1": "host", "h2": "host", "l1": "leaf", "x": "switch", "y": "switch"}
    ends = (("h1:e", "l1:1"), ("l1:9", "y:1"), ("h2:e", "x:1"), ("x:9", "y:2"))
    nodes = tuple(NodeEntry.model_validate({"name": name, "kind": kind}) for name, kind in names.items())
    file = TopologyFile(nodes=nodes, links=tuple(CableEntry(ends=pair) for pair in ends))
    (network,) = networks_of(Topology(file))
    assert groups(network) == [{"l1": ("h1",), "x": ("h2",)}, {"y": ("h1", "h2")}]


def test_a_host_at_a_spine_is_in_the_network_of_a_single_leaf() -> None:
    (network,) = networks_of(fabric("h1-l1", "h2-l1", "l1-s1", "h9-s1"))
    assert network.hosts == ("h1", "h2", "h9")
    assert [group.hosts for group in network.lowest] == [("h1", "h2"), ("h9",)]


def test_a_dead_nic_does_not_make_its_rail_a_network_and_no_name_changes() -> None:
    rails = [f"h{host}-l{rail}" for host in range(1, 5) for rail in range(1, 9)]
    for dead in ("h4-l1", "h2-l8"):
        (network,) = networks_of(fabric(*(cable for cable in rails if cable != dead)))
        assert groups(network) == [{"l1": ("h1", "h2", "h3", "h4")}]
        assert len(network.levels[0][0].switches) == 8


def test_islands_below_a_common_management_switch_stay_networks() -> None:
    islands = ["h1-l1", "h2-l1", "h3-l2", "h4-l2"]
    networks = networks_of(fabric(*islands, *(f"h{host}-l9" for host in range(1, 5))))
    assert [network.name for network in networks] == ["l9", "l1", "l2"]
