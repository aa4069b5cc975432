"""The profiler of MPI programs with a real MPI: operations, communicators, and the death of processes."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from native import mpi
from tests.native.mpi_runs import (
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BEGIN,
    END,
    GATHERV,
    HERE,
    RANKS,
    RECEIVE,
    RUN,
    SCATTERV,
    SEND,
    Process,
    run,
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("mpicc"):
        pytest.skip("no MPI (Debian: apt-get install openmpi-bin libopenmpi-dev)")
    built = tmp_path_factory.mktemp("mpi") / "program"
    subprocess.run(["mpicc", "-O1", "-g", "-o", built, HERE / "program.c", "-lpthread"], check=True)
    return built


@pytest.fixture(scope="module")
def whole(program: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Process]:
    return run(program, tmp_path_factory.mktemp("run"), "all")


def test_each_rank_records_all_operations_and_their_ends(whole: list[Process]) -> None:
    for rank, process in enumerate(whole):
        assert process.rank == rank
        assert process.closed
        assert process.version.startswith("Open MPI v")
        assert (process.dropped, process.misuse) == (0, 0)
        ends = {event[2] for event in process.events if event[6] == END}
        begun = {event[2] for event in process.events if event[6] == BEGIN}
        assert begun <= ends
        assert all(event[0] <= event[1] for event in process.events if event[6] == END)


def test_collectives_have_one_number_at_all_ranks(whole: list[Process]) -> None:
    kinds = [
        [
            (event[3], event[7], event[4], event[12])
            for event in process.events
            if event[6] == END and event[10] == 0 and event[7] not in (SEND, RECEIVE)
        ]
        for process in whole
    ]
    assert [number for number, *_ in kinds[0]] == list(range(17))
    assert all(each == kinds[0] for each in kinds[1:])
    assert [event[4] for event in whole[0].ended(ALL_REDUCE)] == [256, 256]
    assert [event[4] for event in whole[0].ended(ALL_TO_ALL)] == [1024, 1024]
    assert [event[4] for event in whole[0].ended(GATHERV)] == [256]
    assert [event[4] for event in whole[0].ended(SCATTERV)] == [1024]


def test_both_ends_of_a_message_have_one_number(whole: list[Process]) -> None:
    def messages(function: int) -> Counter[tuple[int, ...]]:
        found: Counter[tuple[int, ...]] = Counter()
        for process in whole:
            for event in process.ended(function):
                ends = (process.rank, event[12]) if function == SEND else (event[12], process.rank)
                found[(*ends, event[5], event[3], event[4])] += 1
        return found

    assert messages(SEND) == messages(RECEIVE)
    assert messages(SEND).total() == RANKS * 7
    assert set(messages(SEND).values()) == {1}


def test_communicators_have_one_id_at_their_ranks_and_another_elsewhere(whole: list[Process]) -> None:
    ids = [[row[0] for row in process.communicators.values()] for process in whole]
    assert [len(each) for each in ids] == [4] * RANKS
    assert len({each[0] for each in ids}) == 1
    assert ids[0] == ids[2]
    assert ids[1] == ids[3]
    assert len({identity for each in ids for identity in each}) == 7
    assert {row[2] for row in list(whole[0].communicators.values())[1:]} == {2}
    barriers = [event[10] for event in whole[0].ended(BARRIER)]
    assert barriers == [0, 0, 1, 2, 3]


def test_threads_of_one_process(program: Path, tmp_path: Path) -> None:
    for process in run(program, tmp_path, "threads"):
        assert (process.dropped, process.misuse) == (0, 0)
        for function in (SEND, RECEIVE):
            numbers = Counter((event[5], event[3]) for event in process.ended(function))
            assert set(numbers) == {(tag, number) for tag in range(4) for number in range(500)}
            assert set(numbers.values()) == {1}


def test_a_request_open_at_the_end_is_counted(program: Path, tmp_path: Path) -> None:
    for process in run(program, tmp_path, "open"):
        assert process.misuse == 1
        assert process.closed


def test_a_child_does_not_write_to_the_segment(program: Path, tmp_path: Path) -> None:
    for process in run(program, tmp_path, "fork"):
        assert len(process.ended(BARRIER)) == 1
        assert process.closed


@pytest.mark.parametrize("name", ["abort", "die"])
def test_a_rank_that_dies_leaves_its_operations(program: Path, tmp_path: Path, name: str) -> None:
    processes = run(program, tmp_path, name, code=None)
    assert not any(process.closed for process in processes)
    assert all(len(process.ended(BARRIER)) == 1 for process in processes)
    begun = [sum(event[6] == BEGIN for event in process.events) for process in processes]
    assert begun[1] == 1


def test_without_a_reporter_the_program_runs_as_before(program: Path, tmp_path: Path) -> None:
    command = [*RUN, "-x", f"LD_PRELOAD={mpi.library()}", "-n", "2", str(program), "all"]
    assert subprocess.run(command, check=False, timeout=100).returncode == 0


@pytest.mark.parametrize("source", ["program.f90", "program_f08.f90"])
def test_fortran(tmp_path: Path, source: str) -> None:
    if not shutil.which("mpif90"):
        pytest.skip("no Fortran (Debian: apt-get install libopenmpi-dev gfortran)")
    built = tmp_path / "fortran"
    subprocess.run(["mpif90", "-o", built, HERE / source, "-J", tmp_path], check=True)
    for rank, process in enumerate(run(built, tmp_path, "")):
        assert (process.dropped, process.misuse, process.closed) == (0, 0, True)
        assert [event[4] for event in process.ended(ALL_REDUCE)] == [256, 256]
        assert [event[4] for event in process.ended(ALL_TO_ALL)] == [256]
        assert [event[10] for event in process.ended(BARRIER)] == [0, 1]
        [sent], [received] = process.ended(SEND), process.ended(RECEIVE)
        assert (sent[3], sent[4], sent[12]) == (0, 256, (rank + 1) % RANKS)
        assert (received[3], received[4], received[12]) == (0, 256, (rank + RANKS - 1) % RANKS)
