"""Measures correctness on field cases: files, hosts and programs of others, with independent expected values.

Each part is a module of this package. `fabrictime bench field corpus [--quick]` runs one part. The cases are
in `tests/field/`; CONTRIBUTING.md describes how to add one.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fabrictime.bench import Target
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "field"
PARTS: Final[Parts] = {
    "corpus": {
        "field_cases": Target("cases", ">=", 250),
        "field_cases_collected": Target("cases", ">=", 120),
        "field_right": Target("1", ">=", 1.0),
        "field_right_first_run": Target("1"),
        "fresh_right": Target("1", ">=", 0.95),
        "sources": Target("sources", ">=", 60),
        "max_cases_per_check": Target("cases", "<=", 3),
    },
    "hosts": {
        "whole_hosts": Target("hosts", ">=", 30),
        "kinds_of_hosts": Target("kinds", ">=", 10),
        "false_errors_on_healthy_hosts": Target("findings", "<=", 0),
        "faults_found": Target("1", ">=", 0.95),
        "skipped_over_89f413fc": Target("1", "<=", 1.0),
    },
    "imports": {
        "imports_right": Target("1", ">=", 1.0),
        "silent_empty_imports": Target("imports", "<=", 0),
    },
    "suite": {
        "suite_cases_right": Target("1", ">=", 1.0),
    },
    "programs": {
        "foreign_mpi_programs": Target("programs", ">=", 30),
        "foreign_mpi_programs_complete": Target("1", ">=", 1.0),
        "foreign_mpi_programs_stated": Target("programs", "<=", 3),
    },
    "foreign_code": {
        "foreign_code_run": Target("files", "<=", 0),
        "foreign_code_processes": Target("processes"),
    },
    "remade": {
        "remade_things": Target("things"),
        "remade_things_missing": Target("things", "<=", 0),
        "remade_things_recovered": Target("1", ">=", 1.0),
        "recovery_s": Target("s", "<=", 10),
        "false_alerts": Target("alerts", "<=", 0),
    },
    "elsewhere": {
        "commands_tried": Target("commands"),
        "commands_that_act_elsewhere": Target("commands", "<=", 0),
    },
}
TARGETS: Final = targets_of(PARTS)
run: Final = partial(measure_parts, NAME, PARTS)
