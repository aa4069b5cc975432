"""Measures simulated hosts of many kinds: false errors when healthy, faults found, open checks."""

from __future__ import annotations

from collections.abc import Mapping

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.field._cases import FOLDER, load
from fabrictime.bench.field._hosts import HostRun, run_host

UNANSWERED = FOLDER / "unanswered_at_89f413fc.txt"
"""Share of SKIPPED or UNKNOWN checks of each healthy host at commit 89f413fc, a line `id share` each."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Run the passive checks on each host, healthy and with its fault, and return the figures by key."""
    if not FOLDER.is_dir():
        return {"faults_found": Missing(f"no folder {FOLDER}: run it in a checkout")}
    cases = [case for case in load().values() if case.kind == "hosts"]
    progress(f"hosts: {len(cases)} hosts")
    if not cases:
        return {"faults_found": Missing("no hosts")}
    return figures({case.case_id: run_host(case) for case in cases}, progress) | {
        "kinds_of_hosts": float(len({case.check for case in cases}))
    }


def figures(runs: Mapping[str, HostRun], progress: Progress) -> dict[str, Value]:
    """Return the figures of the runs by host id, and report each wrong host as progress."""
    errors = [f"{name}: {result.check.check_id}" for name, run in runs.items() for result in run.errors]
    missed = [f"{name}: {run.missed}" for name, run in runs.items() if run.missed]
    for line in [*errors, *missed]:
        progress(f"hosts: {line}")
    return {
        "whole_hosts": float(len(runs)),
        "false_errors_on_healthy_hosts": Figure(len(errors), note="; ".join(errors)[:200] or None),
        "faults_found": Figure(1 - len(missed) / len(runs), note="; ".join(missed)[:200] or None),
        "skipped_over_89f413fc": _skipped({name: run.unanswered for name, run in runs.items()}),
    }


def _skipped(unanswered: Mapping[str, float]) -> Value:
    """Return the share of SKIPPED and UNKNOWN checks divided by that share at the first commit."""
    before = _unanswered_before()
    names = before.keys() & unanswered.keys()
    if not names:
        return Missing("no host was counted at 89f413fc")
    share = sum(unanswered[name] for name in names) / sum(before[name] for name in names)
    return Figure(share, note=f"{len(names)} hosts")


def _unanswered_before() -> dict[str, float]:
    if not UNANSWERED.is_file():
        return {}
    lines = UNANSWERED.read_text(encoding="utf-8").splitlines()
    counts = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {name: float(share) for name, share in counts}
