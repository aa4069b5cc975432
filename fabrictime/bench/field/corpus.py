"""Measures the corpus of field cases: how many there are, from how many sources, and how many are right.

It needs a checkout, because an installed package has no tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.field._cases import FOLDER, FRESH, WRONG_AT_FIRST, Case, ids, load
from fabrictime.bench.field._evaluate import wrong_cases

NAMED = 8
"""Maximum number of wrong cases that a note names."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Run all cases once, and return the figures by key, in about half a minute."""
    if not FOLDER.is_dir():
        return {"field_cases": Missing(f"no folder {FOLDER}: run it in a checkout")}
    return figures(load(), progress)


def figures(cases: Mapping[str, Case], progress: Progress) -> dict[str, Value]:
    """Run the cases, report each wrong case as progress, and return the figures by key."""
    progress(f"corpus: {len(cases)} cases")
    wrong = wrong_cases(cases.values())
    for case_id, fault in wrong.items():
        progress(f"corpus: {case_id}: {fault}")
    wrong_at_first = ids(WRONG_AT_FIRST)
    fresh = [case.case_id for case in cases.values() if case.batch == FRESH]
    checks = Counter(case.check for case in cases.values())
    check, count = checks.most_common(1)[0]
    return {
        "field_cases": float(len(cases)),
        "field_cases_collected": float(sum(case.is_collected for case in cases.values())),
        "field_right": _right(cases, wrong.keys()),
        "field_right_first_run": _right(cases, wrong_at_first),
        "fresh_right": _right(fresh, wrong_at_first) if fresh else Missing("no fresh batch"),
        "sources": float(len({_place(case) for case in cases.values()})),
        "max_cases_per_check": Figure(count, note=f"{check}, of {len(checks)} checks, formats and kinds"),
    }


def _right(cases: Collection[str], wrong: Collection[str]) -> Figure:
    bad = sorted(set(cases) & set(wrong))
    named = ", ".join(bad[:NAMED]) + (f" and {len(bad) - NAMED} more" if len(bad) > NAMED else "")
    note = f"{len(cases) - len(bad)} of {len(cases)} cases" + (f"; wrong: {named}" if bad else "")
    return Figure(1 - len(bad) / len(cases), note=note)


def _place(case: Case) -> str:
    """Return the first source of a case, without the line or section within the source."""
    return case.source.split(",")[0].split()[0].partition("#L")[0]
