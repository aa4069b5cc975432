"""Rounds of traffic with planted faults: slow hosts and links, uneven rates, late round trips, stragglers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from schemas.ids import host_of
from schemas.records import (
    AuditAction,
    AuditCategory,
    AuditFact,
    AuditResult,
    AuditSeverity,
    AuditStatus,
)
from streams.audit.results import FLEET, Scope
from streams.audit.traffic.pairs import (
    TRAFFIC_RULES,
    Round,
    TrafficLimits,
    confirming_rounds,
    flows_of,
    traffic_results,
)
from streams.audit.traffic.rounds import across_leaves, order_of, pairs_of, rings, tournament, within_leaves

HOSTS = [f"h{number:02}" for number in range(16)]
LEAF = {host: f"leaf{number % 2}" for number, host in enumerate(HOSTS)}
NICS = {host: [f"{host}/eth0"] for host in HOSTS}
SCOPE = Scope("traffic-1", 10**18, {}, {})
Figures = Callable[[str, str, int], Mapping[str, float]]
"""Figures of a flow by client, server and round."""


def result(host: str, facts: Mapping[tuple[str, str], float]) -> AuditResult:
    rows: list[AuditFact] = [
        {"name": name, "subject": subject, "text": f"{value:g}", "number": value}
        for (subject, name), value in facts.items()
    ]
    return {
        "run": "r", "host": host, "shard": "", "sku": "", "check": "backend.pair-traffic",
        "category": AuditCategory.BACKEND, "title": "t", "status": AuditStatus.PASSED,
        "severity": AuditSeverity.ERROR, "action": AuditAction.MONITOR, "remedy": "", "text": "",
        "checked_ns": 1, "took_ns": 0, "checks": 1, "findings": [], "facts": rows,
    }  # fmt: skip


def rounds_of(kind: str, orders: Sequence[Sequence[str]], figures: Figures) -> list[Round]:
    found = []
    for number, order in enumerate(orders):
        flows = [(order[0], other) for other in order[1:]] if kind == "fan" else pairs_of(order)
        if kind == "ring":
            flows = list(zip(order, [*order[1:], order[0]], strict=True))
        results = [
            result(a, {(f"{a}/eth0>{b}/eth0", name): value for name, value in figures(a, b, number).items()})
            for a, b in flows
        ]
        found.append(Round(kind, order, results))
    return found


def healthy(a: str, b: str, number: int) -> dict[str, float]:
    noise = float(np.random.default_rng([int(a[1:]), int(b[1:]), number]).uniform(0.99, 1.01))
    return {
        "send_gbps": noise, "receive_gbps": 1 / noise, "idle_p99_us": 80.0 * noise,
        "loaded_p99_us": 900.0 * noise, "burned_mb": 100.0,
    }  # fmt: skip


def slow_at(*hosts: str) -> Figures:
    return lambda a, b, number: healthy(a, b, number) | ({"receive_gbps": 0.4} if {a, b} & {*hosts} else {})


def pairs(figures: Figures, passes: int = 2, kind: str = "pairs") -> list[Round]:
    return rounds_of(kind, [order_of(each) for each in tournament(HOSTS)[:passes]], figures)


def outcome(
    rounds: list[Round], routes: Mapping[tuple[str, str], Sequence[str]] | None = None
) -> dict[str, set[tuple[str, str]]]:
    """Return host and subject of what failed, by rule."""
    found: dict[str, set[tuple[str, str]]] = {}
    for each in traffic_results(rounds, SCOPE, TrafficLimits(), routes or {}, NICS):
        for finding in each["findings"]:
            if finding["status"] == AuditStatus.FAILED:
                found.setdefault(each["check"], set()).add((each["host"], finding["subject"]))
    return found


def statuses(rounds: list[Round]) -> dict[str, set[AuditStatus]]:
    found: dict[str, set[AuditStatus]] = {}
    for each in traffic_results(rounds, SCOPE, TrafficLimits(), {}, NICS):
        found.setdefault(each["check"], set()).add(AuditStatus(each["status"]))
    return found


def hop(a: str, b: str, number: int) -> dict[str, float]:
    return {"hop_p90_ms": 0.3 + 0.1 * (int(a[1:]) + number) % 0.2}


def bisection(across: float) -> list[Round]:
    def figures(a: str, b: str, number: int) -> dict[str, float]:
        share = 1.0 if LEAF[a] == LEAF[b] else across
        return {"send_gbps": share, "receive_gbps": share}

    return [
        *rounds_of("within", [order_of(within_leaves(HOSTS, LEAF))], figures),
        *rounds_of("across", [order_of(across_leaves(HOSTS, LEAF))], figures),
    ]


def test_every_rule_has_rows_and_passes_on_a_healthy_fleet() -> None:
    assert all(rule.rows for rule in TRAFFIC_RULES)
    rounds = [*pairs(healthy, kind="burn"), *bisection(1.0), *rounds_of("ring", rings(HOSTS, 2), hop)]
    assert outcome(rounds) == {}
    assert statuses(rounds) == {rule.check: {AuditStatus.PASSED} for rule in TRAFFIC_RULES}


def test_a_slow_host_is_named_and_its_partners_are_not() -> None:
    found = outcome(pairs(slow_at("h05")))
    assert found["fabric.traffic-hosts"] == {("h05", "")}
    assert "fabric.traffic-links" not in found
    assert found["fabric.traffic-variation"] == {(FLEET, "round 1"), (FLEET, "round 2")}


def test_one_pass_cannot_isolate_a_host() -> None:
    rounds = pairs(slow_at("h05"), passes=1)
    results = traffic_results(rounds, SCOPE, TrafficLimits(), {}, NICS)
    found = {each["host"] for each in results if each["status"] == AuditStatus.UNKNOWN}
    assert len(found) == 2
    assert "h05" in found
    assert "fabric.traffic-hosts" not in outcome(rounds)


def test_two_hosts_are_not_compared() -> None:
    rounds = rounds_of("pairs", [["h00", "h01"]], healthy)
    assert statuses(rounds)["fabric.traffic-hosts"] == {AuditStatus.UNKNOWN}


def test_slow_pairs_are_tied_to_the_link_of_their_routes() -> None:
    """All flows from the even hosts to the odd ones cross leaf0's uplink 1 or 2; uplink 1 is slow."""
    slow = {("h00", "h15"), ("h00", "h01"), ("h02", "h13"), ("h04", "h11")}
    rounds = pairs(
        lambda a, b, n: healthy(a, b, n) | ({"send_gbps": 0.3} if (a, b) in slow else {}), passes=6
    )
    flows = [(flow.client, flow.server) for flow in flows_of(rounds)]
    routes = {
        (a, b): [
            f"{host_of(a)}:eth0>leaf0:p",
            "leaf0:u1>spine:1" if (host_of(a), host_of(b)) in slow else "x>y",
        ]
        for a, b in flows
    }
    met = slow & {(host_of(a), host_of(b)) for a, b in flows}
    assert len(met) >= 2
    found = outcome(rounds, routes)
    assert found["fabric.traffic-links"] == {(FLEET, "leaf0:u1>spine:1")}
    assert "fabric.traffic-hosts" not in found
    untied = outcome(rounds)["fabric.traffic-links"]
    assert untied == {(a, f"{b}/eth0") for a, b in met}


def test_flows_that_met_on_a_link_by_chance_are_measured_again_alone() -> None:
    """The pairs of h00 and h01 meet another flow in both passes; h02 meets one in the first pass."""
    met = {*tournament(HOSTS)[0][:2], *(pair for pair in tournament(HOSTS)[1] if set(pair) & {"h00", "h15"})}
    rounds = pairs(lambda a, b, n: healthy(a, b, n) | ({"send_gbps": 0.5} if (a, b) in met else {}))
    accused = outcome(rounds)
    assert accused["fabric.traffic-hosts"] | accused.get("fabric.traffic-links", set())
    while orders := [order_of(each) for each in confirming_rounds(rounds, TrafficLimits())]:
        assert all(len(order) == 2 for order in orders)
        rounds += rounds_of("pairs", orders, healthy)
    confirmed = outcome(rounds)
    assert "fabric.traffic-hosts" not in confirmed
    assert "fabric.traffic-links" not in confirmed
    assert confirming_rounds(rounds_of("pairs", [["h00", "h01"]], healthy), TrafficLimits()) == []


def test_a_fault_stays_when_it_is_measured_alone() -> None:
    rounds = pairs(slow_at("h05"))
    [[pair]] = confirming_rounds(rounds, TrafficLimits())
    assert "h05" in pair
    rounds += rounds_of("pairs", [order_of([pair])], slow_at("h05"))
    assert outcome(rounds)["fabric.traffic-hosts"] == {("h05", "")}
    assert confirming_rounds(rounds, TrafficLimits()) == []


def test_many_slow_pairs_share_a_round() -> None:
    rounds = pairs(slow_at(*HOSTS[:7]), passes=4)
    for each in confirming_rounds(rounds, TrafficLimits()):
        hosts = order_of(each)
        assert len(hosts) == len(set(hosts))


@pytest.mark.parametrize("late_us", [4_000.0, 30_000.0])
def test_late_round_trips_under_load_are_found(late_us: float) -> None:
    def figures(a: str, b: str, number: int) -> dict[str, float]:
        return healthy(a, b, number) | ({"loaded_p99_us": late_us} if (a, number) == ("h03", 1) else {})

    client = [flow.client for flow in flows_of(pairs(figures)) if flow.figures["loaded_p99_us"] == late_us]
    found = outcome(pairs(figures))
    assert {host for host, _ in found["fabric.loaded-latency"]} == {host_of(each) for each in client}
    assert len(client) == 1


def test_load_that_delays_everybody_is_found_without_an_odd_one() -> None:
    found = outcome(pairs(lambda a, b, n: healthy(a, b, n) | {"loaded_p99_us": 25_000.0}))
    assert len(found["fabric.loaded-latency"]) == len(HOSTS)


def test_a_nic_without_load_is_named() -> None:
    def figures(a: str, b: str, number: int) -> Mapping[str, float]:
        return {} if "h09" in (a, b) else healthy(a, b, number)

    assert outcome(pairs(figures, kind="burn"))["fabric.burned-links"] == {("h09", "h09/eth0")}
    assert "fabric.burned-links" not in outcome(pairs(figures))


def test_narrow_uplinks_fail_the_bisection_and_no_host() -> None:
    found = outcome(bisection(0.5))
    assert found == {"fabric.bisection": {(FLEET, "")}}
    only = [each for each in bisection(0.5) if each.kind == "within"]
    assert statuses(only)["fabric.bisection"] == {AuditStatus.UNKNOWN}


def test_a_straggler_is_isolated_from_its_neighbours_and_drawn() -> None:
    rounds = rounds_of(
        "ring", rings(HOSTS, 2), lambda a, b, n: {"hop_p90_ms": 8.0} if "h07" in (a, b) else hop(a, b, n)
    )
    found = outcome(rounds)
    assert found == {"fabric.stragglers": {("h07", "")}}
    results = traffic_results(rounds, SCOPE, TrafficLimits(), {}, NICS)
    maps = [
        finding["text"]
        for each in results
        for finding in each["findings"]
        if finding["subject"].startswith("heat map")
    ]
    assert len(maps) == 2
    for text, order in zip(maps, rings(HOSTS, 2), strict=True):
        cells = text.split("|")[1]
        at = order.index("h07")
        assert {number for number, cell in enumerate(cells) if cell == "█"} == {at, (at + 1) % len(order)}


def test_a_hop_that_was_not_measured_is_marked() -> None:
    rounds = rounds_of("ring", [HOSTS], lambda a, b, n: {} if a == "h03" else hop(a, b, n))
    results = traffic_results(rounds, SCOPE, TrafficLimits(), {}, NICS)
    fleet = next(each for each in results if each["host"] == FLEET)
    assert fleet["findings"][0]["text"].split("|")[1].index("?") == 4


def test_receivers_of_a_fan_count_for_the_variation() -> None:
    rounds = rounds_of(
        "fan", [HOSTS], lambda a, b, n: healthy(a, b, n) | ({"send_gbps": 0.5} if b == "h04" else {})
    )
    assert outcome(rounds)["fabric.traffic-variation"] == {(FLEET, "round 1")}
