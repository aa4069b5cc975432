"""Queries about audits, on an embedded ClickHouse with known rows."""

from __future__ import annotations

from typing import Any

from fabrictime.audit.groups import Level
from fabrictime.web.history_reader import HistoryReader
from fabrictime.web.tabs.audit import queries
from fabrictime.web.tabs.audit.queries import Cell, Scope
from tests.fabrictime.audit.fleets import START_NS, F, P, U, finding, fleet, result

T = START_NS
MTU, NUMA = "backend.mtu", "software.numa-balancing"
ALL = Scope("", T - 10**9)


def fill(filled: Any) -> None:
    findings = [finding("9000", P, "eth0"), finding("1500", F, "eth1")]
    filled.audits(
        [
            result(MTU, "h1", F, "eth1: 1500", findings=findings),
            result(MTU, "h2", checked_ns=T + 1),
            result(MTU, "h2", F, "old", run="r0"),
            result(NUMA, "h1", F, "1"),
            result(NUMA, "h2", F, "1"),
            result("node.ecc", "h2", U, "denied"),
        ]
    )


def test_the_newest_result_of_each_host_and_check_counts(filled: Any) -> None:
    fill(filled)
    summary = queries.fleet(filled.history, ALL)
    assert summary.newest_ns == T + 1
    assert Cell("h1", "BACKEND", (1, 0, 0, 0, 0)) in summary.cells
    assert Cell("h2", "BACKEND", (0, 0, 0, 1, 0)) in summary.cells
    assert len(summary.cells) == 5
    assert [(row.check, row.level, row.hosts) for row in summary.checks] == [
        (MTU, Level.ERROR, 1),
        (NUMA, Level.WARNING, 2),
        ("node.ecc", Level.UNKNOWN, 1),
    ]
    assert summary.checks[0].remedy.startswith("ip link set")


def test_one_run_and_older_results_are_separate(filled: Any) -> None:
    fill(filled)
    (row,) = queries.fleet(filled.history, Scope("r0", 0)).checks
    assert (row.check, row.hosts) == (MTU, 1)
    assert queries.fleet(filled.history, Scope("", T + 10**9)).cells == []
    assert queries.fleet(filled.history, Scope("", T + 10**9)).newest_ns is None


def test_results_of_a_host_and_of_a_check_have_their_findings(filled: Any) -> None:
    fill(filled)
    first, second = queries.host_results(filled.history, ALL, "h1")
    assert (first.check, first.level, first.text, first.action) == (MTU, Level.ERROR, "eth1: 1500", "MONITOR")
    assert first.findings == (("eth0", "PASSED", "9000"), ("eth1", "FAILED", "1500"))
    assert (first.checked_ns, first.took_ns, first.run) == (T, 1_000_000, "r1")
    assert second.check == NUMA
    assert [row.host for row in queries.check_results(filled.history, ALL, MTU)] == ["h1", "h2"]
    assert queries.host_results(filled.history, ALL, "h9'; DROP TABLE audit") == []


def test_only_runs_of_several_hosts_are_listed(filled: Any) -> None:
    fill(filled)
    filled.audits([result(MTU, "h3", run="h3-1", checked_ns=T + 5)])
    runs = queries.runs(filled.history, T - 1, 8)
    assert [(row.run, row.hosts, row.errors) for row in runs] == [("r1", 2, 1)]


def test_the_state_changes_with_new_results(filled: Any) -> None:
    empty = queries.state(filled.history, ALL)
    fill(filled)
    assert queries.state(filled.history, ALL) != empty


def test_a_thousand_hosts_are_summed_up_once(filled: Any) -> None:
    filled.audits(result for result in fleet(1000) if result["category"] == "BACKEND")
    history = HistoryReader(filled.history, lambda: T + 10**9)
    results = queries.audited(history, queries.fleet, "")
    assert len({cell.host for cell in results.cells}) == 1000
    assert queries.audited(history, queries.fleet, "") is results, "kept until there is a new result"
    assert len(queries.audited(history, queries.host_results, "", "node007")) >= 10
    assert queries.audited(history, queries.check_results, "r1", MTU)[0].level is Level.ERROR
    assert queries.newest_runs(history)[0].hosts == 1000
