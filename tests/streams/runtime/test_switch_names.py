"""Names of one switch, and addresses that several switches have."""

from __future__ import annotations

from streams.runtime.switch_names import Groups, SwitchNames, by_name, is_address, leaf_name, names_of

GATEWAY = "10.99.0.1"


def route(nic: str, peer: str, first: str, last: str, spine: str = "10.9.0") -> tuple[str, ...]:
    a, b = (name.replace("/", ".") for name in (nic, peer))
    return (
        f"{nic.replace('/', ':')}>{first}:{a}",
        f"{spine}.0:ip>{spine}.1:ip",
        f"{spine}.3:ip>{spine}.2:ip",
        f"{last}:{b}>{peer.replace('/', ':')}",
    )


def switches(*routes: tuple[str, str, tuple[str, ...]]) -> tuple[Groups, SwitchNames]:
    names = SwitchNames()
    for nic, peer, links in routes:
        names = names.union(names_of(nic, peer, links, True))
    groups = Groups()
    groups.add(*names)
    return groups, names


def test_a_path_joins_the_names_by_which_it_enters_and_leaves() -> None:
    groups, names = switches(("h1/e", "h2/e", route("h1/e", "h2/e", "10.0.1.0", "10.0.2.0")))
    assert groups.find("10.9.0.1") == groups.find("10.9.0.3")
    assert groups.find("10.0.1.0") == groups.find("10.9.0.0")
    assert groups.find("10.0.1.0") != groups.find("10.0.2.0")
    assert not names.anycast


def test_leaves_with_one_gateway_address_stay_apart() -> None:
    groups, names = switches(("h1/e", "h2/e", route("h1/e", "h2/e", GATEWAY, GATEWAY)))
    assert names.anycast == {GATEWAY}
    first, second = leaf_name(GATEWAY, "h1/e"), leaf_name(GATEWAY, "h2/e")
    assert groups.find(first) == groups.find("10.9.0.0") == "10.9.0.0"
    assert groups.find(second) == groups.find("10.9.0.2") != groups.find(first)


def test_paths_with_gaps_and_within_a_subnet_join_nothing() -> None:
    links = route("h1/e", "h2/e", "10.0.1.0", "10.0.2.0")
    assert names_of("h1/e", "h2/e", links, False) == SwitchNames()
    assert names_of("h1/e", "h2/e", ("h1:e>layer-2:h1.e", "layer-2:h2.e>h2:e"), True) == SwitchNames()


def test_a_switch_goes_by_its_proper_name_then_by_an_address() -> None:
    names = ["10.9.0.10@h1.e", "10.9.0.9", "leaf10", "leaf2"]
    assert sorted(names, key=by_name) == ["leaf2", "leaf10", "10.9.0.9", "10.9.0.10@h1.e"]
    assert is_address("fd09--1")
    assert not is_address("10.9.0.10@h1.e")
