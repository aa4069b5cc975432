"""How often links and flows' ways are crossed, of probes whose times and routes are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fabrictime.bench.detect.probe_intervals import Flow, figures_of, times_of

MS = 1_000_000
BEGIN, END = 1000 * MS, 1100 * MS


def batch(nic: str, peer: str, path: int, at_ns: list[int], ahead_ns: int) -> dict[str, Any]:
    sent = np.diff([0, *(at + ahead_ns for at in at_ns)]).tolist()
    return {
        "nic": nic,
        "clock_ns": 5 * MS + ahead_ns,
        "system_ns": 5 * MS,
        "samples": [{"peer": peer, "path": path, "sent": sent}],
    }


def route(source: str, destination: str, sport: int, dport: int) -> tuple[str, ...]:
    """By spine 1 from even ports, by spine 2 from odd ones; answers likewise, by the asker's port."""
    spine = 1 + (sport if sport != 99 else dport) % 2
    return (f"{source}>s{spine}", f"s{spine}>{destination}")


def test_times_are_the_system_clocks_and_within_the_outage():
    batches = [
        batch("a", "b", 2, [BEGIN - 1, BEGIN, BEGIN + 5], 7_000_000_000),
        batch("a", "b", 2, [END - 1, END], -3),
    ]
    times = times_of(batches, BEGIN, END)
    assert times["a", "b", 2].tolist() == [BEGIN, BEGIN + 5, END - 1]


def test_links_count_requests_and_answers_and_flows_count_probes_of_their_route():
    every = {port: [BEGIN + step * MS for step in range(at, 100, 4)] for at, port in ((0, 2), (2, 4), (1, 3))}
    times = times_of([batch("a", "b", port, at_ns, 0) for port, at_ns in every.items()], BEGIN, END)
    links = ["a>s1", "s1>b", "b>s1", "s1>a", "a>s2", "s2>b"]
    flows = [Flow("a", "b", 1000, 5000), Flow("a", "b", 1001, 5000), Flow("b", "a", 1000, 5000)]
    figures: Any = figures_of(times, {"a": 99, "b": 99}, links, flows[:2], route, (BEGIN, END))
    assert figures["link_probed_every_ms"].value == pytest.approx(100 / 26), "the worst: by spine 2"
    assert figures["links_probed_in_time"].value == 1
    assert figures["flow_route_probed_every_ms"].value == pytest.approx(100 / 26)
    figures = figures_of(times, {"a": 99, "b": 99}, [*links, "b>s9"], flows, route, (BEGIN, END))
    assert figures["link_probed_every_ms"].value == 100, "one that nobody crosses"
    assert figures["links_probed_in_time"].value == pytest.approx(6 / 7)
    assert figures["flow_route_probed_every_ms"].value == 100, "what answers cross is not the flow's way"
    assert figures["flow_routes_probed_in_time"].value == pytest.approx(2 / 3)
