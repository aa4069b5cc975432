"""Writes a fleet audit as JUnit XML, for CI systems: one test suite per host, one test case per check.

A failed check of severity ERROR is a failure, an UNKNOWN one an error. JUnit has no warnings: a failed check
of severity WARNING is a skipped case with its text, because it leaves the host fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final
from xml.etree import ElementTree

from fabrictime.audit.groups import Level, level_of
from fabrictime.audit.report import AuditReport
from schemas.records import AuditResult

__all__ = ["junit"]

_ELEMENTS: Final = {
    Level.ERROR: "failure",
    Level.WARNING: "skipped",
    Level.UNKNOWN: "error",
    Level.SKIPPED: "skipped",
}
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: AuditReport) -> str:
    """Return the report as JUnit XML."""
    root = ElementTree.Element("testsuites", name=_text(f"fabrictime audit {report.run}"))
    for host in report.hosts:
        root.append(_suite(host, report.results.get(host, {}).values()))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, 0)) for suite in root)))
    root.set("time", f"{report.took_s:.3f}")
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suite(host: str, results: Iterable[AuditResult]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_text(host), hostname=_text(host))
    counts = {"tests": 0, "failure": 0, "error": 0, "skipped": 0}
    took_ns = first_ns = 0
    for result in results:
        level = level_of(result)
        case = _case(result, level)
        suite.append(case)
        counts["tests"] += 1
        if level in _ELEMENTS:
            counts[_ELEMENTS[level]] += 1
        took_ns += result["took_ns"]
        first_ns = min(first_ns or result["checked_ns"], result["checked_ns"])
    suite.set("tests", str(counts["tests"]))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    suite.set("time", f"{took_ns / 1e9:.3f}")
    suite.set("timestamp", f"{datetime.fromtimestamp(first_ns // 10**9, tz=UTC):%Y-%m-%dT%H:%M:%S}")
    return suite


def _case(result: AuditResult, level: Level) -> ElementTree.Element:
    group, _, name = result["check"].partition(".")
    case = ElementTree.Element("testcase", classname=_text(group), name=_text(name or group))
    case.set("time", f"{result['took_ns'] / 1e9:.3f}")
    if level in _ELEMENTS:
        text = f"warning: {result['text']}" if level is Level.WARNING else result["text"]
        outcome = ElementTree.SubElement(case, _ELEMENTS[level], message=_text(text))
        if level in (Level.ERROR, Level.UNKNOWN):
            outcome.set("type", str(result["severity"]))
        lines = [f"expected: {result['title']}", f"{result['action'].lower()}: {result['remedy']}"]
        lines += [f"{each['subject']} {each['status']}: {each['text']}" for each in result["findings"]]
        outcome.text = _text("\n".join(lines)) if level is not Level.SKIPPED else None
    return case


def _text(text: str) -> str:
    """Return the text without the characters that XML cannot hold."""
    return _NOT_XML.sub("?", text)
