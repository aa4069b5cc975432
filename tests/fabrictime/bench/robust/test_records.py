"""Evaluation of the hostile run: ended processes and impossible figures."""

from __future__ import annotations

from pathlib import Path

from fabrictime.bench import Figure
from fabrictime.bench.robust.records import (
    CatchUp,
    Spoils,
    critical_line,
    ended_processes,
    figures_of,
    spoilt_figures,
)
from fabrictime.state.live_figures import NicView, PathView, View
from tests.fabrictime.evidence import clock_offsets


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
    view.late_ms = 101_987_563_165.0
    assert len(spoilt_figures(view, {"h1/eth1"})) == 4


def test_figures_wait_for_windows_and_verdicts_that_follow_from_later_evidence() -> None:
    """A restarted worker publishes the windows of its backlog first: they are late, and rightly shown so."""
    it = CatchUp(began_ns=100_000_000_000, link_events={"fabric.links/3": 70})
    for source, offset in (("fabric.links/3", 69), ("fabric.links/9", 70), ("", -1)):
        it.take("fabric.link-health", {"evidence_source": source, "evidence_offset": offset})
    for window in range(90, 100):
        it.take("fabric.clock.offsets", clock_offsets(window))
    assert it.behind == {"fabric.link-health", "fabric.clock.offsets"}
    it.take("fabric.link-health", {"evidence_source": "fabric.links/3", "evidence_offset": 70})
    assert it.behind == {"fabric.clock.offsets"}
    assert it.spoilt == ["fabric.clock.offsets: nothing new within 900 s"]
    it.take("fabric.clock.offsets", clock_offsets(100))
    assert it.behind == set()
    assert it.spoilt == []
    it.take("fabric.clock.offsets", clock_offsets(101) | {"log_offset_ns": 1_018_473_000_000})
    assert it.spoilt == ["fabric time +1018.473 s from log time"]


def test_figures_count_both_logs_and_name_the_log_of_a_finding() -> None:
    embedded = Spoils("embedded log", 1000, ["links"], [], [])
    kafka = Spoils("Apache Kafka", 200, [], ["h1:eth1<>leaf1:swp1"], [])
    figures = figures_of([embedded, kafka])
    assert figures["hostile_records"] == Figure(1200.0, note="1,000 embedded log, 200 Apache Kafka")
    assert figures["processes_ended"] == Figure(1.0, note="embedded log: links")
    assert figures["verdicts_changed"] == Figure(1.0, note="Apache Kafka: h1:eth1<>leaf1:swp1")
    assert figures["figures_spoilt"] == Figure(0.0)
    alone = figures_of([embedded], "Apache Kafka not tried: no java")
    assert alone["hostile_records"] == Figure(
        1000.0, note="1,000 embedded log, Apache Kafka not tried: no java"
    )


def test_the_reason_of_an_ended_process_is_in_its_log(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "prober h1-eth1.log").write_text(
        "a CRITICAL b: first\na CRITICAL b: newest\na INFO b: end\n"
    )
    assert critical_line(tmp_path, "prober h1/eth1") == ": a CRITICAL b: newest"
    assert critical_line(tmp_path, "worker-1") == ""
