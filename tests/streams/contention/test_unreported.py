"""The kind of contention without flow reports: position, wait, neighbours and marks."""

from __future__ import annotations

from typing import Any

import pytest

from streams.contention.rules import UNREPORTED_TRUST
from tests.streams.contention.test_detector import (
    GBIT,
    LAST,
    LAST6,
    RULES,
    SPINE,
    T0,
    UP1,
    Shard,
    flow,
    marked,
    queue,
)

TEN_GBIT = 10 * GBIT
DOWNS = [f"spine{n}:swp2>leaf2:swp{10 + n}" for n in range(1, 5)]
UPS = [f"leaf1:swp{10 + n}>spine{n}:swp1" for n in range(1, 5)]


def deep(link: str, depth: float, **more: Any) -> dict[str, Any]:
    return queue(link, depth, **({"rate_bps": TEN_GBIT} | more))


def summary(*links: str) -> dict[str, Any]:
    """A record of a whole second, which names all links that probes cross."""
    return {
        "shard": "fabric", "window": T0 // 10**9, "part": 0, "parts": 1, "window_start_ns": T0,
        "slot_ns": 10**9, "slots": 1, "links": [queue(link, 0.0, utilisation=0.1) for link in links],
    }  # fmt: skip


def kinds_of(*links: dict[str, Any], windows: int = 6, shard: Shard | None = None) -> dict[str, str]:
    shard = shard or Shard()
    shard.watch.ingest(summary(*DOWNS, *UPS, LAST, LAST6), RULES)
    for _ in range(windows):
        shard.step(*links)
    assert all(0 < each["confidence"] <= UNREPORTED_TRUST for each in shard.made if each["kind"] != "UNKNOWN")
    return {each["link"]: each["kind"] for each in shard.made}


@pytest.mark.parametrize(
    ("link", "kind"), [(UPS[0], "COLLISION"), (DOWNS[0], "COLLISION"), (LAST, "INCAST"), (LAST6, "INCAST")]
)
def test_the_position_of_a_single_queue_names_its_kind(link: str, kind: str) -> None:
    assert kinds_of(deep(link, 250e3)) == {link: kind}
    assert kinds_of(marked(link, 0.5)) == {link: kind}, "marks show it as well"


def test_a_wait_that_no_buffer_holds_is_a_port_that_may_not_send() -> None:
    assert kinds_of(deep(LAST, 4e6)) == {LAST: "SLOW_RECEIVER"}
    assert kinds_of(deep(UPS[0], 4e6)) == {UPS[0]: "PAUSE_STORM"}
    assert kinds_of(deep(LAST, 400e3, rate_bps=GBIT)) == {LAST: "INCAST"}, "slow ports have buffers too"


def test_queues_on_all_links_into_a_switch_are_a_pause_storm() -> None:
    assert set(kinds_of(*(deep(each, 250e3) for each in DOWNS)).values()) == {"PAUSE_STORM"}
    with_root = kinds_of(*(deep(each, 250e3) for each in DOWNS), deep(LAST, 5e6))
    assert set(with_root.values()) == {"PAUSE_STORM"}
    two = kinds_of(deep(DOWNS[0], 250e3), deep(DOWNS[1], 250e3))
    assert set(two.values()) == {"COLLISION"}, "two of four may be there by chance"
    beside = kinds_of(deep(DOWNS[0], 250e3), deep(LAST, 250e3))
    assert beside == {DOWNS[0]: "COLLISION", LAST: "INCAST"}


def test_queues_on_all_links_before_an_incast_are_part_of_it() -> None:
    found = kinds_of(*(deep(each, 250e3) for each in DOWNS), deep(LAST, 300e3))
    assert set(found.values()) == {"INCAST"}


def test_a_deep_queue_without_the_marks_of_its_class_is_paused() -> None:
    shard = Shard()
    for _ in range(40):
        shard.step(marked(UPS[0], 0.5, 100e3, rate_bps=TEN_GBIT))
    kinds_of(marked(UPS[0], 0.5, 100e3, rate_bps=TEN_GBIT), deep(LAST, 400e3), shard=shard)
    kinds = {each["link"]: each["kind"] for each in shard.made}
    assert kinds == {UPS[0]: "COLLISION", LAST: "SLOW_RECEIVER"}
    assert kinds_of(deep(LAST, 400e3)) == {LAST: "INCAST"}, "where nothing is marked, marks show nothing"


def test_a_queue_on_one_of_two_positions_has_no_known_kind() -> None:
    shard = Shard()
    for _ in range(4):
        shard.step(deep(DOWNS[0], 250e3, group=3), deep(LAST, 240e3, group=3))
    assert {each["kind"] for each in shard.made} == {"UNKNOWN"}
    one_position = Shard()
    for _ in range(4):
        one_position.step(deep(UPS[0], 250e3, group=3), deep(DOWNS[0], 240e3, group=3))
    assert {each["kind"] for each in one_position.made} == {"COLLISION"}


def test_reported_flows_decide_as_far_as_they_are_all() -> None:
    few = Shard()
    few.report(flow(1, 1, 5, 100, [UP1, SPINE, LAST]), whole=False)
    nearly_all = Shard()
    nearly_all.report(flow(1, 1, 5, 100, [UP1, SPINE, LAST]))
    full = Shard()
    full.report(*(flow(n, n, 5, 400, [SPINE, LAST]) for n in (1, 2)), whole=False)
    for shard in (few, nearly_all, full):
        for _ in range(40):
            shard.step(queue(LAST, 150e3))
    assert few.made[-1]["kind"] == "INCAST", "seven of eight hosts may send the rest"
    assert few.made[-1]["confidence"] <= UNREPORTED_TRUST
    assert nearly_all.made[-1]["kind"] == "SLOW_RECEIVER", (
        "its flows send a tenth of its rate, and all report"
    )
    assert full.made[-1]["kind"] == "INCAST"
    assert full.made[-1]["confidence"] > UNREPORTED_TRUST, "the reported flows explain the queue"


def test_a_queue_that_no_flow_explains_stays_unknown_if_all_hosts_report() -> None:
    shard = Shard()
    shard.report()
    (opened,) = shard.step(queue(LAST6, 80e3))
    assert opened["kind"] == "UNKNOWN"
