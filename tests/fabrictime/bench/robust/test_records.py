"""Evaluation of the hostile run: ended processes and impossible figures."""

from __future__ import annotations

from fabrictime.bench.robust.records import ended_processes, spoilt_figures
from fabrictime.state.live_figures import NicView, PathView, View


def test_a_restarted_or_missing_process_has_ended() -> None:
    before = {"links": 0, "map": 1, "prober h1/eth1": 0}
    assert ended_processes(before, dict(before)) == []
    assert ended_processes(before, {"links": 1, "map": 1}) == ["links", "prober h1/eth1"]


def test_strange_nics_losses_and_delays_are_spoilt_figures() -> None:
    view = View()
    view.nics = {"h1/eth1": NicView(samples=100, lost=3), "nobody/eth0": NicView()}
    view.worst = {"h1/eth1": PathView("h2/eth1", 9320, 5_000.0, 80.0, 0.0)}
    assert spoilt_figures(view, {"h1/eth1"}) == ["NIC nobody/eth0"]
    view.nics["h1/eth1"].lost = 1_795_632_065_339_913_141
    view.worst["h1/eth1"].p99_ns = 1.7e13
    assert len(spoilt_figures(view, {"h1/eth1"})) == 3
