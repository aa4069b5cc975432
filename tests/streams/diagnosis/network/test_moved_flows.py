"""Flows that left a link: by routes of successive intervals, after a restart, for a bounded time."""

from __future__ import annotations

from typing import Any

from streams.diagnosis.network.moved_flows import MovedFlows

S = 1_000_000_000
FIRST, SECOND = ("a>b", "b>c"), ("a>d", "d>c")


def flows(*names: str) -> dict[str, Any]:
    return {name: {"nic": "h0/n0", "peer": "h1/n0"} for name in names}


def test_a_flow_left_the_links_of_its_former_route() -> None:
    moved = MovedFlows(keep_ns=10 * S)
    moved.note(flows("f", "g"), {"f": FIRST, "g": FIRST}, 1 * S)
    now = {"f": SECOND, "g": FIRST}
    assert moved.links_left(flows("f", "g"), now) == {"a>b": {"f": S}, "b>c": {"f": S}}
    moved.note(flows("f", "g"), now, 2 * S)
    moved.note(flows("f", "g"), {"f": ("b>c",), "g": FIRST}, 3 * S)
    assert moved.links_left(flows("f", "g"), {"f": ("b>c",)})["a>b"] == {"f": S}
    assert not moved.links_left(flows("f", "g"), {"f": ("b>c",)}).get("b>c")


def test_a_flow_without_a_known_route_or_that_closed_left_nothing() -> None:
    moved = MovedFlows()
    moved.note(flows("f"), {"f": FIRST}, 1 * S)
    assert moved.links_left(flows("f"), {}) == {}
    moved.note(flows(), {}, 2 * S)
    assert moved.links_left(flows("f"), {"f": SECOND}) == {}


def test_links_that_flows_left_are_forgotten() -> None:
    moved = MovedFlows(keep_ns=10 * S)
    moved.note(flows("f"), {"f": FIRST}, 1 * S)
    moved.note(flows("f"), {"f": SECOND}, 2 * S)
    moved.note(flows("f"), {"f": SECOND}, 12 * S)
    assert moved.links_left(flows("f"), {"f": SECOND}) == {}


def test_a_verdict_of_before_a_restart_names_the_flows_that_left() -> None:
    moved = MovedFlows(keep_ns=10 * S)
    moved.restore(["a>b"], ["h0/n0", "h1/n0"], 1 * S)
    assert moved.links_left(flows("f", "g"), {"f": SECOND, "g": FIRST}) == {"a>b": {"f": S}}
    moved.note(flows("f"), {"f": SECOND}, 12 * S)
    assert moved.links_left(flows("f"), {"f": SECOND}) == {}
