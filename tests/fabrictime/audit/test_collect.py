"""The collector with duplicates, other runs, odd counts and hosts without an answer."""

from __future__ import annotations

import random

from fabrictime.audit.collect import Collector, Progress
from fabrictime.audit.report import ANSWER, AuditReport
from schemas.records import AuditStatus
from streams.audit.results import FLEET
from tests.fabrictime.audit.results import RUN, result


def collector(*expected: str) -> Collector:
    return Collector(RUN, expected, started_ns=10**18, nics={"h1": ("eth0",)})


def test_a_run_is_done_once_every_host_has_delivered_its_results() -> None:
    found = collector("h1", "h2")
    assert not found.is_done
    assert found.add(result("h1", "a.a"))
    assert found.add(result("h1", "a.b"))
    assert found.is_complete("h1")
    assert not found.is_done
    found.add(result("h2", "a.a", checks=1))
    assert found.is_done
    assert found.progress == Progress(2, 2, 3, 3)
    report = found.report(10**18 + 10**9, 60)
    assert (report.hosts, report.missing, report.took_s) == (("h1", "h2"), (), 1.0)
    assert report.nics == {"h1": ("eth0",)}


def test_other_runs_are_ignored() -> None:
    found = collector("h1")
    assert not found.add(result(run="audit-2"))
    assert found.progress.results == 0


def test_a_node_that_reports_twice_counts_once_and_its_newest_result_is_kept() -> None:
    found = collector("h1")
    assert found.add(result("h1", "a.a", text="new", checked_ns=20))
    assert not found.add(result("h1", "a.a", text="newer", checked_ns=30))
    assert not found.add(result("h1", "a.a", text="old", checked_ns=10))
    assert not found.is_done
    assert found.repeated == 2
    assert found.report(0, 1).results["h1"]["a.a"]["text"] == "newer"


def test_the_largest_announced_count_must_be_reached() -> None:
    found = collector("h1")
    found.add(result("h1", "a.a", checks=3))
    found.add(result("h1", "a.b", checks=1))
    assert not found.is_done
    found.add(result("h1", "a.c", checks=1))
    assert found.is_done
    found.add(result("h1", "a.d", checks=1))  # more than announced
    assert found.is_done


def test_a_host_that_was_not_expected_belongs_to_the_report() -> None:
    found = collector("h1")
    found.add(result("h1", checks=1))
    found.add(result("h9", checks=2))
    assert not found.is_done
    assert found.report(0, 1).hosts == ("h1", "h9")


def test_hosts_without_all_results_are_unknown() -> None:
    found = collector("h1", "h2", "h3")
    found.add(result("h1", checks=1))
    found.add(result("h2", "a.a", checks=40))
    report = found.report(10**18, 20)
    assert report.missing == ("h3",)
    assert ANSWER not in report.results["h1"]
    for host, text in (("h2", "1 of 40 results within 20 s"), ("h3", "did not answer within 20 s")):
        unanswered = report.results[host][ANSWER]
        assert (unanswered["status"], unanswered["text"]) == (AuditStatus.UNKNOWN, text)


def test_the_order_of_results_does_not_matter() -> None:
    results = [result(f"h{n % 4}", f"a.c{n % 5}", checks=5, checked_ns=n) for n in range(40)]
    reports: list[AuditReport] = []
    for seed in range(20):
        random.Random(seed).shuffle(results)
        found = collector("h0", "h1", "h2", "h3")
        for each in results:
            found.add(each)
        assert found.is_done
        reports.append(found.report(0, 1))
    assert all(each.results == reports[0].results for each in reports)


def test_results_of_the_whole_fleet_are_of_no_host() -> None:
    found = collector("h1")
    found.add(result("h1", checks=1))
    found.add(result(FLEET, "fleet.kernel", checks=1))
    assert found.is_done
    report = found.report(0, 1)
    assert report.hosts == ("h1",)
    assert [each["host"] for each in report.all_results()] == ["h1", FLEET]
