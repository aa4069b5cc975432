"""Writes a fleet audit as JUnit XML, for CI systems: one test suite per host, one test case per check.

A failed check of severity ERROR is a failure, an UNKNOWN check is an error. JUnit has no warnings: a failed
check of severity WARNING becomes a skipped case with its text, because the host stays fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final
from xml.etree import ElementTree

from fabrictime.audit.groups import Level, level_of
from fabrictime.audit.report import AuditReport
from schemas.records import AuditResult
from streams.audit.results import FLEET

_ELEMENTS: Final = {
    Level.ERROR: "failure",
    Level.WARNING: "skipped",
    Level.UNKNOWN: "error",
    Level.SKIPPED: "skipped",
}
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: AuditReport) -> Iterator[str]:
    """Yield the parts of the JUnit XML text of a report."""
    suites = {
        host: report.results[host].values() for host in (*report.hosts, FLEET) if host in report.results
    }
    root = ElementTree.Element("testsuites", name=_text(f"fabrictime audit {report.run}"))
    _set_counts(root, (result for of_host in suites.values() for result in of_host))
    root.set("time", f"{report.took_s:.3f}")
    head, end = ElementTree.tostring(root, "unicode", short_empty_elements=False).split("</", 1)
    yield f'<?xml version="1.0" encoding="utf-8"?>\n{head}\n'
    for host, results in suites.items():
        suite = _suite(host, results)
        ElementTree.indent(suite, level=1)
        yield f"  {ElementTree.tostring(suite, 'unicode')}\n"
    yield f"</{end}\n"


def _suite(host: str, results: Collection[AuditResult]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_text(host), hostname=_text(host))
    suite.extend(map(_case, results))
    _set_counts(suite, results)
    suite.set("time", f"{sum(result['took_ns'] for result in results) / 1e9:.3f}")
    first_ns = min((result["checked_ns"] for result in results), default=0)
    suite.set("timestamp", f"{datetime.fromtimestamp(first_ns // 10**9, tz=UTC):%Y-%m-%dT%H:%M:%S}")
    return suite


def _set_counts(element: ElementTree.Element, results: Iterable[AuditResult]) -> None:
    """Set the XML attributes with the numbers of cases of a suite, or of all suites."""
    levels = Counter(map(level_of, results))
    element.set("tests", str(levels.total()))
    for name, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(levels[level] for level, of in _ELEMENTS.items() if of == outcome)))


def _case(result: AuditResult) -> ElementTree.Element:
    level = level_of(result)
    group, _, name = result["check"].partition(".")
    case = ElementTree.Element("testcase", classname=_text(group), name=_text(name or group))
    case.set("time", f"{result['took_ns'] / 1e9:.3f}")
    if level in _ELEMENTS:
        text = f"warning: {result['text']}" if level is Level.WARNING else result["text"]
        outcome = ElementTree.SubElement(case, _ELEMENTS[level], message=_text(text))
        if level in (Level.ERROR, Level.UNKNOWN):
            outcome.set("type", str(result["severity"]))
        lines = [f"expected: {result['title']}", f"{result['action'].lower()}: {result['remedy']}"]
        lines += [
            f"{finding['subject']} {finding['status']}: {finding['text']}" for finding in result["findings"]
        ]
        outcome.text = _text("\n".join(lines)) if level is not Level.SKIPPED else None
    return case


def _text(text: str) -> str:
    """Return the text without the characters that XML does not allow."""
    return _NOT_XML.sub("?", text)
