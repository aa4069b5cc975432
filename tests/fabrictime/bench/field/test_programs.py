"""Recordings of MPI programs are compared with the counts at their call sites."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fabrictime.bench.field._mpi_kinds import MPICH, OPEN_MPI, MpiKind
from fabrictime.bench.field.programs import call_counts, difference, programs, run_program
from tests.native.mpi_runs import require


def test_counts_of_ranks_are_summed(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("SEND 2 64\nBARRIER 1 0\n")
    (tmp_path / "1").write_text("SEND 1 32\n")
    counts = call_counts(tmp_path)
    assert (counts["SEND", "operations"], counts["SEND", "bytes"]) == (3, 96)


@pytest.mark.parametrize(
    ("recorded", "lost", "text"),
    [
        (Counter({("SEND", "operations"): 2, ("SEND", "bytes"): 64}), 0, ""),
        (Counter({("SEND", "operations"): 1}), 0, "SEND bytes: 0 recorded, 64 called"),
        (Counter({("SEND", "operations"): 2, ("SEND", "bytes"): 64}), 3, "3 events lost"),
        (
            Counter({("SEND", "operations"): 2, ("SEND", "bytes"): 64, ("SCAN", "operations"): 1}),
            0,
            "SCAN operations: 1 recorded, 0 called",
        ),
    ],
)
def test_a_difference_names_the_figure(recorded: Counter[tuple[str, str]], lost: int, text: str) -> None:
    expected = Counter({("SEND", "operations"): 2, ("SEND", "bytes"): 64})
    assert difference(expected, recorded, lost) == text


@pytest.mark.parametrize("kind", [OPEN_MPI, MPICH], ids=lambda kind: kind.name)
def test_programs_of_a_call_are_recorded_as_called(kind: MpiKind, tmp_path: Path) -> None:
    require(kind)
    by_name = {program.name: program for program in programs(tmp_path)}
    for name in ("gatherv", "waits", "matched"):
        assert run_program(by_name[f"{name} ({kind.name})"], tmp_path) == ""
