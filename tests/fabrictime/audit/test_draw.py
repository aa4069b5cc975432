"""The report on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from fabrictime.audit.collect import Collector
from fabrictime.audit.draw import MAX_CAUSES, draw
from fabrictime.audit.report import AuditReport
from schemas.records import AuditStatus
from tests.fabrictime.audit.results import RUN, result


def text_of(report: AuditReport, *, everything: bool = False) -> str:
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(draw(report, everything=everything), highlight=False)
    return console.export_text()


def test_failed_and_unknown_checks_are_drawn_with_hosts_and_remedy() -> None:
    collector = Collector(RUN, ["h1", "h2", "h3"], 0, {"h1": ("eth0", "eth1")})
    collector.add(result("h1", checks=1))
    collector.add(result("h2", checks=1, status=AuditStatus.FAILED, text="eth0: MTU 1500"))
    text = text_of(collector.report(2 * 10**9, 20))
    assert "Audit audit-1: 3 hosts, 2.0 s" in text
    assert "Back-end network  1 error  1 passed" in text
    assert "ERROR h2: eth0: MTU 1500" in text
    assert "MONITOR: ip link set dev INTERFACE mtu MTU" in text
    assert "UNKNOWN h3: did not answer within 20 s" in text
    assert "ERROR h1" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["h1", "PASSED", "answered", "2", "-", "-", "-", "-"] in rows
    assert ["h2", "FAILED", "answered", "-", "-", "-", "-", "-", "1", "error"] in rows
    assert ["h3", "UNKNOWN", "no", "answer", "-", "-", "-", "-", "-", "1", "unknown"] in rows
    assert text.rstrip().endswith("not fit: 1 errors, 0 warnings, 1 unknown, 1 passed, 0 skipped")


def test_a_check_that_passed_is_drawn_on_request() -> None:
    collector = Collector(RUN, ["h1"], 0, {})
    collector.add(result("h1", checks=1))
    report = collector.report(0, 20)
    assert "backend.mtu" not in text_of(report)
    assert "backend.mtu" in text_of(report, everything=True)


def test_hosts_with_one_text_share_a_line() -> None:
    collector = Collector(RUN, [], 0, {})
    for number in range(1, 41):
        text = f"MTU {number}" if number > 20 else "MTU 1500"
        collector.add(result(f"h{number}", checks=1, status=AuditStatus.FAILED, text=text))
    text = text_of(collector.report(0, 20))
    assert "ERROR h[1-20]: MTU 1500" in text
    assert "ERROR h21: MTU 21" in text
    assert f"{21 - MAX_CAUSES} other texts on h[{20 + MAX_CAUSES}-40]" in text


def test_a_host_has_a_remedy_of_its_own() -> None:
    collector = Collector(RUN, [], 0, {})
    for host in ("h1", "h2"):
        collector.add(result(host, checks=1, status=AuditStatus.FAILED, text="odd"))
    exact = {**result("h3", checks=1, status=AuditStatus.FAILED), "remedy": "swap leaf3 port 7 and port 8"}
    collector.add(exact)  # type: ignore[arg-type]
    text = text_of(collector.report(0, 20))
    assert text.count("MONITOR: ip link set dev INTERFACE mtu MTU") == 1
    assert "MONITOR: swap leaf3 port 7 and port 8" in text
