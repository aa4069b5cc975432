"""Measures the imports of the corpus: right topologies, and imports that silently give an empty topology."""

from __future__ import annotations

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.field._cases import FOLDER, load
from fabrictime.bench.field._evaluate import wrong_cases
from fabrictime.bench.field._imports import import_case


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Run `topology import` on each case, and return the figures by key, in some seconds."""
    if not FOLDER.is_dir():
        return {"imports_right": Missing(f"no folder {FOLDER}: run it in a checkout")}
    cases = [case for case in load().values() if case.kind == "imports"]
    progress(f"imports: {len(cases)} cases")
    wrong = wrong_cases(cases)
    for case_id, fault in wrong.items():
        progress(f"imports: {case_id}: {fault}")
    silent = [case.case_id for case in cases if import_case(case).is_silent_and_empty]
    note = f"{len(cases) - len(wrong)} of {len(cases)} files"
    return {
        "imports_right": Figure(1 - len(wrong) / len(cases), note=note),
        "silent_empty_imports": Figure(len(silent), note=", ".join(silent) or None),
    }
