"""The MPI programs of the foreign bench: eight of our own, and installed programs of others."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fabrictime.bench.field._mpi_kinds import OPEN_MPI
from fabrictime.bench.foreign._draw import BYTES, COMPUTE_US, RANKS, Case
from fabrictime.bench.foreign._truth import CAUSES, MESSAGES

_HERE: Final = Path(__file__).resolve().parent
_HPCC_INPUT: Final = Path("/usr/share/doc/hpcc/examples/_hpccinf.txt")
_FULL_BYTES: Final = 400_000
"""Bytes of a message that takes 160 ms of a link."""
_PYTHON: Final = """
import time
from mpi4py import MPI
c = MPI.COMM_WORLD
for n in range(10**9):
    time.sleep(0.04)
    c.sendrecv(bytes(20_000), (c.rank + 1) % c.size, source=(c.rank - 1) % c.size)
    c.allreduce(n)
    c.bcast([n] * 1000, 0)
"""
_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "hpcc": ("hpcc",),
    "netpipe": ("NPopenmpi", "-l", "60000", "-u", "70000", "-n", "100000"),
    "mpi4py": (sys.executable, "-c", _PYTHON),
    "osu": ("osu_alltoall", "-m", "16384:16384", "-i", "1000000"),
}


def installed() -> set[str]:
    """Return the names of the programs that can run here, and of all causes."""
    programs = {name for name, command in _OTHERS.items() if shutil.which(command[0])} - {"mpi4py"}
    if not _HPCC_INPUT.exists():
        programs.discard("hpcc")
    if importlib.util.find_spec("mpi4py"):
        programs.add("mpi4py")
    return {*MESSAGES, *programs, *CAUSES}


def command(case: Case, folder: Path, page: Path) -> list[str]:
    """Return the command of a case's program, built in `folder`; it runs in the folder of `page`."""
    if case.program not in MESSAGES:
        if case.program == "hpcc":
            (page.parent / "hpccinf.txt").write_text(_hpcc_input(), encoding="utf-8")
        return list(_OTHERS[case.program])
    at = tuple(RANKS).index(case.size)
    size, compute_us = BYTES[case.program][at], COMPUTE_US[at]
    if case.cause == "fills its NIC":
        size, compute_us = _FULL_BYTES, 1000
    return own(folder, page, case.program, size, compute_us)


def own(folder: Path, page: Path, name: str, size: int, compute_us: int) -> list[str]:
    """Return the command of the program `name` of programs.c, with its size and computing time."""
    built = OPEN_MPI.build(folder, _HERE / "programs.c")
    return [str(built), str(page), name, str(size), str(compute_us)]


def _hpcc_input() -> str:
    """Return Debian's example input for 4 ranks, with a smaller problem."""
    lines = _HPCC_INPUT.read_text(encoding="utf-8").splitlines()
    return "\n".join("800          Ns" if line.endswith("Ns") else line for line in lines) + "\n"
