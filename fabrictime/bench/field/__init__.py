"""Measures the field: files, hosts and programs of others, whose right value we did not take from our code.

Each part is a module of this package. `fabrictime bench field corpus [--quick]` runs one part. The cases are
in `tests/field/`; CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "field"
TARGETS: Final[Mapping[str, Target]] = {
    "field_cases": Target("cases", ">=", 250),
    "field_cases_collected": Target("cases", ">=", 120),
    "field_right": Target("1", ">=", 1.0),
    "field_right_first_run": Target("1"),
    "fresh_right": Target("1", ">=", 0.95),
    "sources": Target("sources", ">=", 60),
    "max_cases_per_check": Target("cases", "<=", 3),
    "whole_hosts": Target("hosts", ">=", 30),
    "kinds_of_hosts": Target("kinds", ">=", 10),
    "false_errors_on_healthy_hosts": Target("findings", "<=", 0),
    "faults_found": Target("1", ">=", 0.95),
    "skipped_over_89f413fc": Target("1", "<=", 1.0),
    "imports_right": Target("1", ">=", 1.0),
    "silent_empty_imports": Target("imports", "<=", 0),
    "suite_cases_right": Target("1", ">=", 1.0),
    "foreign_mpi_programs": Target("programs", ">=", 30),
    "foreign_mpi_programs_complete": Target("1", ">=", 1.0),
    "foreign_mpi_programs_stated": Target("programs", "<=", 3),
    "foreign_code_run": Target("files", "<=", 0),
    "foreign_code_processes": Target("processes"),
    "remade_things": Target("things"),
    "remade_things_missing": Target("things", "<=", 0),
    "remade_things_recovered": Target("1", ">=", 1.0),
    "recovery_s": Target("s", "<=", 10),
    "false_alerts": Target("alerts", "<=", 0),
    "commands_tried": Target("commands"),
    "commands_that_act_elsewhere": Target("commands", "<=", 0),
}

PARTS: Final = {
    "corpus": (
        "field_cases",
        "field_cases_collected",
        "field_right",
        "field_right_first_run",
        "fresh_right",
        "sources",
        "max_cases_per_check",
    ),
    "hosts": (
        "whole_hosts",
        "kinds_of_hosts",
        "false_errors_on_healthy_hosts",
        "faults_found",
        "skipped_over_89f413fc",
    ),
    "imports": ("imports_right", "silent_empty_imports"),
    "suite": ("suite_cases_right",),
    "programs": (
        "foreign_mpi_programs",
        "foreign_mpi_programs_complete",
        "foreign_mpi_programs_stated",
    ),
    "foreign_code": ("foreign_code_run", "foreign_code_processes"),
    "remade": (
        "remade_things",
        "remade_things_missing",
        "remade_things_recovered",
        "recovery_s",
        "false_alerts",
    ),
    "elsewhere": ("commands_tried", "commands_that_act_elsewhere"),
}
"""Keys of the figures that each part must return, by part; a part is a module with `measure(progress,
quick)`."""


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all if it is empty, one by one; return the figures by key."""
    return measure_parts(NAME, PARTS, parts, progress, quick)
