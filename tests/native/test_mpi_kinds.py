"""Programs whose MPI is of another kind, that is loaded late, or whose other ranks have no profiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fabrictime.bench.field._mpi_kinds import MPICH, OPEN_MPI, MpiKind
from native import mpi
from tests.native.mpi_runs import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, HERE, RECEIVE, SEND, require, start

KINDS = pytest.mark.parametrize("kind", [OPEN_MPI, MPICH], ids=lambda kind: kind.name)
OTHER = {OPEN_MPI: MPICH, MPICH: OPEN_MPI}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


@KINDS
def test_a_profiler_of_the_same_kind_records(kind: MpiKind, folder: Path, tmp_path: Path) -> None:
    require(kind)
    program = kind.build(folder, HERE / "program.c")
    done, processes = start(kind, tmp_path, 2, [program, "all"], LD_PRELOAD=kind.profiler(folder))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [process.rank for process in processes] == [0, 1]
    for process in processes:
        assert process.version.startswith(kind.name)
        assert [event[4] for event in process.ended(ALL_REDUCE)] == [256, 256]
        assert len(process.ended(SEND)) == len(process.ended(RECEIVE)) == 7


@KINDS
def test_matched_probes_are_receives(kind: MpiKind, folder: Path, tmp_path: Path) -> None:
    require(kind)
    program = kind.build(folder, HERE / "program.c")
    done, processes = start(kind, tmp_path, 3, [program, "matched"], LD_PRELOAD=kind.profiler(folder))
    assert done.returncode == 0, done.stderr
    for process in processes:
        before = (process.rank + 2) % 3
        received = [(event[12], event[5], event[3], event[4]) for event in process.ended(RECEIVE)]
        assert received == [(before, 7, number, 4 * (number + 1)) for number in range(3)]
        assert (process.dropped, process.misuse) == (0, 0)


@KINDS
def test_neighbourhood_collectives_have_the_bytes_to_all_neighbours(
    kind: MpiKind, folder: Path, tmp_path: Path
) -> None:
    require(kind)
    program = kind.build(folder, HERE / "program.c")
    done, processes = start(kind, tmp_path, 3, [program, "neighbours"], LD_PRELOAD=kind.profiler(folder))
    assert done.returncode == 0, done.stderr
    for process in processes:
        assert [event[4] for event in process.ended(ALL_GATHER)] == [256]
        assert [event[4] for event in process.ended(ALL_TO_ALL)] == [512, 12]


@KINDS
def test_functions_that_are_not_recorded_state_it_once(kind: MpiKind, folder: Path, tmp_path: Path) -> None:
    require(kind)
    program = kind.build(folder, HERE / "program.c")
    done, _ = start(kind, tmp_path, 2, [program, "window"], LD_PRELOAD=kind.profiler(folder))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "fabrictime: one-sided operations (MPI_Win_create) are not recorded\n"


def test_functions_with_large_counts_are_recorded(folder: Path, tmp_path: Path) -> None:
    require(MPICH)
    program = MPICH.build(folder, HERE / "program.c")
    done, processes = start(MPICH, tmp_path, 2, [program, "large"], LD_PRELOAD=MPICH.profiler(folder))
    assert done.returncode == 0, done.stderr
    for process in processes:
        for function, sizes in ((ALL_REDUCE, [256, 256]), (SEND, [256]), (RECEIVE, [256])):
            assert [event[4] for event in process.ended(function)] == sizes


@KINDS
def test_a_profiler_of_another_kind_records_nothing_and_states_it_once(
    kind: MpiKind, folder: Path, tmp_path: Path
) -> None:
    require(kind)
    require(OTHER[kind])
    program, profiler = kind.build(folder, HERE / "program.c"), OTHER[kind].profiler(folder)
    done, processes = start(kind, tmp_path, 2, [program, "all"], LD_PRELOAD=profiler)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"fabrictime: this program uses {kind.name} ")
    assert f"was built for {OTHER[kind].name}: nothing is recorded" in done.stderr
    assert done.stderr.count("\n") == 1
    assert processes == []


@KINDS
@pytest.mark.parametrize("variable", ["", "FABRICTIME_COLLECTIVES=/nowhere.sock"])
def test_ranks_with_and_without_the_profiler_are_one_program(
    kind: MpiKind, variable: str, folder: Path
) -> None:
    """No message is sent: a rank without the profiler would take it for one of the program."""
    require(kind)
    program, profiler = kind.build(folder, HERE / "program.c"), kind.profiler(folder)
    variables = [*filter(None, [variable]), f"LD_PRELOAD={profiler}"]
    command = [*kind.launcher, "-n", "1", "env", *variables, program, "all", ":", "-n", "1", program, "all"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_without_mpi_loads_none(folder: Path) -> None:
    require(OPEN_MPI)
    maps = subprocess.run(
        ["cat", "/proc/self/maps"],
        env={"LD_PRELOAD": str(mpi.library()), "FABRICTIME_COLLECTIVES": "/nowhere.sock"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "libfabrictime-mpi.so" in maps.stdout
    assert "libmpi.so" not in maps.stdout
    assert maps.stderr == ""


def test_mpi_of_a_python_module_is_recorded(tmp_path: Path) -> None:
    """Its libraries are loaded after the start, and their symbols are not global."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed (pip install mpi4py)")
    require(OPEN_MPI)
    code = "from mpi4py import MPI; c = MPI.COMM_WORLD; c.allreduce(c.rank); c.Barrier()"
    done, processes = start(OPEN_MPI, tmp_path, 2, [sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert [len(process.ended(ALL_REDUCE)) for process in processes] == [1, 1]


def test_mpi_by_dlsym_is_stated(tmp_path: Path) -> None:
    require(OPEN_MPI)
    code = "import ctypes; m = ctypes.CDLL('libmpi.so.40'); m.MPI_Init(None, None); m.MPI_Finalize()"
    done, processes = start(OPEN_MPI, tmp_path, 2, [sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    text = "fabrictime: this program takes the functions of MPI from dlsym: nothing is recorded\n"
    assert (done.stderr, processes) == (text, [])
