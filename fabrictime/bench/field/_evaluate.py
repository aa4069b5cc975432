"""Runs cases of all kinds, and returns the failed cases with the reason."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from fabrictime.bench.field import _audit, _hosts, _imports
from fabrictime.bench.field._cases import Case

_FAULT_OF = {"audit": _audit.fault_of, "imports": _imports.fault_of, "hosts": _hosts.fault_of}


def fault_of(case: Case) -> str:
    """Return the error of a case in one line; empty if the case is right. An exception counts as an error."""
    try:
        return _FAULT_OF[case.kind](case)
    except Exception as error:  # noqa: BLE001  # a case must not hide the others
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {place.name}: {error}"


def wrong_cases(cases: Iterable[Case]) -> dict[str, str]:
    """Return the wrong cases by id, each with its error."""
    return {case.case_id: fault for case in cases if (fault := fault_of(case))}
