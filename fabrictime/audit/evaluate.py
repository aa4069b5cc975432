"""Evaluates a fleet's results: hosts against each other. Adds the results of the evaluation to the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fabrictime.audit.report import ANSWER, AuditReport
from producers.audit.base import category_name
from producers.audit.checks import CHECKS
from schemas.records import AuditCategory, AuditResult
from streams.audit.compare import compare

__all__ = ["evaluated", "for_agents", "is_wanted"]

COMPUTED: Final = ("fleet.", "fabric.", "baseline.", "sku.")
"""Beginnings of the ids of results that are computed from the hosts' results and from other topics."""
_CATEGORIES: Final = tuple(category_name(each) for each in AuditCategory if each is not AuditCategory.OTHER)


def for_agents(only: Sequence[str]) -> list[str]:
    """Return the names of `only` that agents are asked for; none stands for all checks.

    A computed result needs the facts of all checks. Raises ValueError for an unknown name.
    """
    for name in only:
        if name not in CHECKS and name not in _CATEGORIES and not name.startswith(COMPUTED):
            raise ValueError(f"--only {name}: expected {', '.join(_CATEGORIES)}, or an id from --list")
    return [] if any(name.startswith(COMPUTED) for name in only) else list(only)


def is_wanted(result: AuditResult, only: Sequence[str]) -> bool:
    """Return whether `only` names a result's check or category, or is empty. The agents' own always count."""
    names = (result["check"], category_name(result["category"]))
    return not only or result["check"] == ANSWER or any(name in only for name in names)


def evaluated(report: AuditReport, only: Sequence[str] = ()) -> AuditReport:
    """Return the report with the results of the evaluation, limited to `only`."""
    found = [each for each in report.all_results() if each["host"] not in report.missing]
    return report.with_results(compare(found)).limited_to(lambda each: is_wanted(each, only))
