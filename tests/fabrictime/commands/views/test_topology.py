"""`topology`: the traced fabric, miswired rails, and the output for scripts."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from fabrictime.commands.views import topology_table
from fabrictime.state.traced_fabric import Picture, file_of, picture_of
from schemas import codec
from schemas.topology import Topology, TopologyFile
from streams.alerts.wiring import misfits_of
from streams.runtime.route_table import RouteTable
from streams.runtime.switch_names import by_name


def nic(name: str, rail: int | None = None, **more: Any) -> dict[str, Any]:
    return {"nic": name, "rail": rail, "speed_bps": 25_000, "probe_port": 1, **more}


def put(book: RouteTable, start: str, goal: str, *links_of_paths: tuple[str, ...], **more: Any) -> None:
    paths = [
        {
            "path": 9320 + at,
            "leg": "REQUEST",
            "links": list(route),
            "found": "TRACED",
            "complete": True,
            "since_ns": 1,
            "changes": 0,
            "contradiction": None,
            **more,
        }
        for at, route in enumerate(links_of_paths)
    ]
    record = {"nic": start, "peer": goal, "shard": "f", "run": 1, "traced_ns": 1, "paths": paths}
    book.take(f"{start}>{goal}".encode(), codec.encode("PathMaps", record))


def route(start: str, low: str, spine: str, far: str, goal: str) -> tuple[str, ...]:
    a, b = start.replace("/", ":"), goal.replace("/", ":")
    near, last = start.replace("/", "."), goal.replace("/", ".")
    return (
        f"{a}>{low}:{near}",
        f"{low}:{spine}>{spine}:{low}",
        f"{spine}:{far}>{far}:{spine}",
        f"{far}:{last}>{b}",
    )


def rails(wired: dict[str, str]) -> tuple[RouteTable, dict[str, dict[str, Any]]]:
    """Hosts h1.. with two rails, e0 on leaf l0 and e1 on l1 but for `wired`."""
    book, nics = RouteTable(), {}
    names = [f"h{host}/e{rail}" for host in range(1, 5) for rail in (0, 1)]
    leaf = {name: wired.get(name, f"l{name[-1]}") for name in names}
    for name in names:
        nics[name] = nic(name, int(name[-1]))
        for other in names:
            if other.partition("/")[0] != name.partition("/")[0] and leaf[name] != leaf[other]:
                put(
                    book, name, other, *(route(name, leaf[name], s, leaf[other], other) for s in ("s1", "s2"))
                )
    return book, nics


def shown(picture: Picture) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(topology_table.draw(picture), highlight=False)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_valid_fabric_is_drawn_tier_by_tier_and_nothing_is_wrong() -> None:
    found = picture_of(*rails({}))
    figures = found.summary()
    assert (figures["hosts"], figures["leaves"], figures["spines"], figures["cores"]) == (4, 2, 2, 0)
    assert (figures["cables"], figures["unseen"], figures["paths"], figures["complete"]) == (12, 0, 48, 48)
    assert figures["misfits"] == figures["contradictions"] == figures["silent"] == 0
    assert found.wrong() == []
    text = shown(found)
    assert "4 hosts, 2 leaves, 2 spines" in text
    assert "12 of 12 cables are crossed by paths" in text
    assert "h1/e0  h2/e0  h3/e0  h4/e0" in text
    assert {(node.node, node.rail) for node in found.nodes if node.tier == 1} == {("l0", 0), ("l1", 1)}
    assert {line.rate_bps for line in found.cables if line.lower == "h1"} == {25_000}


def test_swapped_rails_stand_out_and_the_evidence_is_named() -> None:
    found = picture_of(*rails({"h3/e0": "l1", "h3/e1": "l0"}))
    assert [(m.nic, m.leaf) for m in found.misfits] == [("h3/e0", "l1"), ("h3/e1", "l0")]
    assert found.misfits[0].evidence == "3 of 4 NICs there are of rail 1; the others of its rail are on l0"
    assert found.wrong()[0].startswith("h3/e0: rail 0 on l1: 3 of 4")
    assert "rails that are wired wrong" in shown(found)


def test_no_leaf_is_wrong_if_all_leaves_take_all_rails() -> None:
    nics = {f"h{host}/e{rail}": nic(f"h{host}/e{rail}", rail) for host in range(4) for rail in range(2)}
    assert misfits_of({name: f"l{name[1]}" for name in nics}, {n: nics[n]["rail"] for n in nics}) == []


def test_the_file_defines_the_rail_of_a_leaf_and_the_expected_cables() -> None:
    book, nics = rails({})
    spare = [{"ends": ["l0:9", "s3:1"]}, {"ends": ["l0:s1", "s1:l0"], "rate_bps": 400}]
    file = Topology(
        TopologyFile.model_validate(
            {
                "nodes": [{"name": "l0", "kind": "leaf", "rail": 1}],
                "links": spare,
            }
        )
    )
    found = picture_of(book, {**nics, "h9/e0": nic("h9/e0")}, file)
    assert [m.evidence for m in found.misfits] == ["the file has l0 in rail 1"] * 4
    assert [line.cable for line in found.unseen] == ["l0:9<>s3:1"]
    assert found.silent == ["h9/e0"]
    assert {line.rate_bps for line in found.cables if line.cable == "l0:s1<>s1:l0"} == {400}
    wrong = "\n".join(found.wrong())
    assert "l0:9<>s3:1: no path crosses it" in wrong
    assert "h9/e0: nothing is known of its paths" in wrong


def test_contradictions_and_gaps_are_shown_and_counted() -> None:
    book, nics = rails({})
    cut = ("h1:e0>l0:h1.e0", "l0:s1>s1:l0")
    put(book, "h1/e0", "h2/e1", cut, complete=False, contradiction="hop 2 is odd")
    found = picture_of(book, nics)
    assert found.contradictions == [("hop 2 is odd", 1)]
    assert found.wrong() == ["hop 2 is odd (1 paths)", "1 of 47 paths are not known from end to end"]
    assert "not known from end to end" in shown(found)
    assert picture_of(RouteTable(), {}).wrong() == ["no path in fabric.paths, expected at least one"]


def test_a_misplaced_cable_explains_the_contradictions() -> None:
    """The plan: each of four leaves has a cable to s1 and to s2; those of l4 are exchanged."""
    leaves = [f"l{number}" for number in range(1, 5)]
    ends = [[f"{leaf}:{spine}", f"{spine}:{leaf}"] for leaf in leaves for spine in ("s1", "s2")]
    plan = TopologyFile.model_validate({"links": [{"ends": each} for each in ends]})
    book = RouteTable()
    for spine, other in (("s1", "s2"), ("s2", "s1")):
        for far in leaves[:3]:
            up = f"l4:{other}>{other}:l4"
            links = ("h4:e>l4:h", up, f"{other}:?>{far}:{spine}", f"{far}:h>{far}h:e")
            text = f"hop 3 is {far}:{spine}, which the file wires to {spine}:{far}; before it: {other}"
            put(book, "h4/e", f"{far}h{spine}/e", links, complete=False, contradiction=text)
            near = next(leaf for leaf in leaves if leaf != far)
            put(book, f"{near}h{spine}/e", f"{far}h/e", route(f"{near}h/e", near, spine, far, f"{far}h/e"))
    found = picture_of(book, {}, Topology(plan))
    assert found.misplaced == [
        "l4:s1 is wired to s2, the file wires it to s1:l4",
        "l4:s2 is wired to s1, the file wires it to s2:l4",
    ]
    assert found.misplaced[0] in shown(found)
    assert found.wrong()[0] == found.misplaced[0]


ADDRESSES = (
    ("a:e>10.0.0.1:a.e", "10.9.0.0:ip>10.9.0.1:ip", "10.9.0.3:ip>10.9.0.2:ip", "10.0.1.1:b.e>b:e"),
    ("a:e>10.0.0.1:a.e", "10.9.0.4:ip>10.9.0.5:ip", "10.9.0.7:ip>10.9.0.6:ip", "10.0.1.1:b.e>b:e"),
)


def test_addresses_of_one_switch_are_one_switch_and_make_a_file() -> None:
    book = RouteTable()
    put(book, "a/e", "b/e", *ADDRESSES)
    put(
        book,
        "b/e",
        "a/e",
        *(tuple(">".join(reversed(link.split(">"))) for link in reversed(each)) for each in ADDRESSES),
    )
    found = picture_of(book, {"a/e": nic("a/e"), "b/e": nic("b/e")})
    assert {(node.tier, node.addresses) for node in found.nodes if node.tier} == {
        (1, ("10.0.0.1", "10.9.0.0", "10.9.0.4")),
        (1, ("10.0.1.1", "10.9.0.2", "10.9.0.6")),
        (2, ("10.9.0.1", "10.9.0.3")),
        (2, ("10.9.0.5", "10.9.0.7")),
    }
    assert (len(found.cables), found.complete) == (6, 4)
    file = Topology(file_of(found))
    assert file.at("10.9.0.6") == ("leaf-10.0.1.1", "10.9.0.6")
    assert file.at("10.0.1.1") == ("leaf-10.0.1.1", None)
    assert len(file.cable_ids()) == 6
    assert len(file.routes("a", "b")) == 2
    assert file.rate_bps("a:e>leaf-10.0.0.1:a.e") == 25_000


def test_json_holds_all_of_it() -> None:
    document = json.loads(topology_table.json_of(picture_of(*rails({"h3/e0": "l1", "h3/e1": "l0"}))))
    assert document["summary"]["misfits"] == len(document["misfits"]) == 2
    assert {node["tier"] for node in document["nodes"]} == {0, 1, 2}
    assert all(line["seen"] for line in document["cables"])


def test_a_large_fabric_is_drawn_in_few_lines() -> None:
    book, nics = RouteTable(), {}
    for leaf in range(64):
        a, b = f"h{leaf}/e", f"g{leaf}/e"
        nics[a], nics[b] = nic(a), nic(b)
        put(book, a, b, *(route(a, f"l{leaf}", f"s{s}", f"l{(leaf + 1) % 64}", b) for s in range(32)))
    text = shown(picture_of(book, nics))
    assert len(text.splitlines()) < 70
    assert "and 16 more" in text


@pytest.mark.parametrize("name", ["10.9.0.1", "fd00--1"])
def test_addresses_sort_by_value_behind_names(name: str) -> None:
    assert by_name("spine10") < by_name(name)
    assert by_name("leaf2") < by_name("leaf10")
    assert by_name("10.9.0.9") < by_name("10.9.0.10")
