"""Measures the checks of one host against a recorded host: rows covered, planted faults, refused reads."""

from __future__ import annotations

from typing import Final

import numpy as np

from fabrictime.audit.rows import COMPUTED, ROWS, covered
from fabrictime.bench import Figure, Progress, Value
from fabrictime.testbed.audit import faults, faults_network
from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditSeverity, AuditStatus

FAULTS: Final = faults.FAULTS | faults_network.FAULTS

DRAWS, QUICK_DRAWS = 1_000, 100
CHECKS_PER_DRAW: Final = 8
MAX_REFUSED: Final = 20
"""Maximum number of files and commands that one draw makes unreadable."""
NAMED: Final = 8
"""Maximum number of faults that a note lists by name."""
SEED: Final = 26


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in some seconds."""
    progress(f"hosts: {len(CHECKS)} checks, {len(FAULTS)} planted faults")
    rows = covered([*((check.check_id, check.rows) for check in CHECKS.values()), *COMPUTED.items()])
    without = [f"{row} {ROWS[row]}" for row, checks in rows.items() if not checks]
    beyond = [check.check_id for check in CHECKS.values() if not check.rows]
    beyond += [check_id for check_id, of_check in COMPUTED.items() if not of_check]
    missed = [name for name in FAULTS if not _is_found(name)]
    false = _errors(HEALTHY)
    return {
        "rows_covered": Figure(len(ROWS) - len(without), note=_first("without a check: ", without)),
        "rows_beyond": Figure(len(beyond), note=_first("", beyond)),
        "planted_faults_found": Figure(1 - len(missed) / len(FAULTS), note=_first("missed: ", missed)),
        "planted_fault_kinds": float(len(FAULTS)),
        "healthy_fleet_false_errors": Figure(len(false), note=_first("", sorted(false))),
        "unknown_reported_as_passed": _refused(QUICK_DRAWS if quick else DRAWS),
    }


def _first(label: str, names: list[str]) -> str | None:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return label + ", ".join(names[:NAMED]) + more if names else None


def _is_found(name: str) -> bool:
    """Return whether, with the planted fault `name`, exactly the right check fails."""
    check_id, plant = FAULTS[name]
    host = HEALTHY.copy()
    plant(host)
    return _failed(host) == {check_id}


def _failed(host: RecordedHost) -> set[str]:
    """Return the ids of the checks that fail. Each check gets a copy of the host, as some change it."""
    return {
        check.check_id
        for check in CHECKS.values()
        if run_check(check, host.copy()).status is AuditStatus.FAILED
    }


def _errors(host: RecordedHost) -> set[str]:
    """Return the ids of the checks with severity ERROR, active ones included, that fail on a host."""
    return {check for check in _failed(host) if CHECKS[check].severity is AuditSeverity.ERROR}


def _refused(draws: int) -> Figure:
    """Remove files, commands and permissions at random; count the checks that pass although a read failed."""
    chance = np.random.default_rng(SEED)
    names = HEALTHY.readable()
    reads = {check_id: _touched(check_id) for check_id in CHECKS}
    passed = refused = 0
    for _ in range(draws):
        host = HEALTHY.copy()
        host.denied = set(chance.choice(names, int(chance.integers(1, MAX_REFUSED)), replace=False).tolist())
        readers = [check_id for check_id, read in reads.items() if read & host.denied]
        for check_id in chance.permutation(readers)[:CHECKS_PER_DRAW].tolist():
            host.refusals = 0
            status = run_check(CHECKS[check_id], host).status
            if host.refusals:
                refused += 1
                passed += status is AuditStatus.PASSED
    return Figure(passed, note=f"{refused:,} checks met a refused read in {draws:,} draws")


def _touched(check_id: str) -> set[str]:
    host = HEALTHY.copy()
    run_check(CHECKS[check_id], host)
    return host.touched
