"""A fleet audit as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from fabrictime.audit.junit import junit
from fabrictime.audit.report import AuditReport
from streams.audit.results import FLEET
from tests.fabrictime.audit.fleets import F, S, U, finding, fleet, report, result

MTU, NUMA = "backend.mtu", "software.numa-balancing"


def parsed(found: AuditReport) -> ElementTree.Element:
    return ElementTree.fromstring("".join(junit(found)).encode())


def test_each_host_is_a_suite_and_each_check_a_case() -> None:
    findings = [finding("1500", F, "eth1")]
    root = parsed(
        report(
            [
                result(MTU, "h1", F, "eth1: 1500", findings=findings),
                result(NUMA, "h1", F, "1"),
                result("node.ecc", "h1", U, "denied"),
                result("storage.nvme", "h1", S, "missing"),
                result("node.oom", "h1"),
            ],
            missing=["h2"],
        )
    )
    counts = {name: root.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "6", "failures": "1", "errors": "2", "skipped": "2", "time": "12.300"}
    first, second = root
    assert (first.get("name"), first.get("tests"), first.get("timestamp")) == (
        "h1",
        "5",
        "2026-11-18T11:06:40",
    )
    cases = {f"{case.get('classname')}.{case.get('name')}": case for case in first}
    failure = cases[MTU].find("failure")
    assert failure is not None
    assert (failure.get("message"), failure.get("type")) == ("eth1: 1500", "ERROR")
    assert "monitor: ip link set dev INTERFACE mtu MTU" in str(failure.text)
    assert "eth1 FAILED: 1500" in str(failure.text)
    assert [each.get("message") for each in cases[NUMA]] == ["warning: 1"]
    assert cases["node.ecc"].find("error") is not None
    assert cases["storage.nvme"].find("skipped") is not None
    assert len(cases["node.oom"]) == 0
    assert [case.get("name") for case in second] == ["answer"]


def test_the_document_is_valid_for_any_text_and_size() -> None:
    hostile = 'a\x00b\x1b[31m<&">]]>\ud800'
    root = parsed(report([result(MTU, "h1", F, hostile)]))
    assert root[0][0][0].get("message") == 'a?b?[31m<&">]]>?'
    assert parsed(report([])).get("tests") == "0"
    assert len(parsed(report(fleet(100)))) == 100


def test_results_of_the_whole_fleet_are_a_suite() -> None:
    root = parsed(report([result("node.oom", "h1")]).with_results([result(MTU, FLEET, F, "2 values")]))
    assert [(suite.get("name"), suite.get("failures")) for suite in root] == [("h1", "0"), (FLEET, "1")]
