"""The MPI implementations of a machine: compilers, launchers, and a profiler for each."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from native import mpi

NATIVE: Final = Path(mpi.__file__).resolve().parents[1]
"""The folder with the profiler's sources."""


@dataclass(frozen=True)
class MpiKind:
    """An MPI implementation as Debian installs it, side by side with others."""

    name: str
    compiler: str
    launcher: tuple[str, ...]
    variable_option: str
    packages: str

    @property
    def is_installed(self) -> bool:
        """Whether the compiler and the launcher of this MPI are on this machine."""
        return all(shutil.which(program) for program in (self.compiler, self.launcher[0]))

    def command(self, ranks: int, variables: Mapping[str, object], *program: str | Path) -> list[str]:
        """Return the command that runs a program on some ranks with environment `variables`."""
        parts = [part for key, value in variables.items() for part in self._variable(key, value)]
        return [*self.launcher, *parts, "-n", str(ranks), *map(str, program)]

    def _variable(self, key: str, value: object) -> Sequence[str]:
        if self.name == "MPICH":
            return self.variable_option, key, str(value)
        return self.variable_option, f"{key}={value}"

    def build(self, folder: Path, source: Path, *options: str) -> Path:
        """Compile a program or, with -shared, a library, unless the folder already contains it."""
        built = folder / f"{source.stem}-{self.compiler}"
        if not built.exists():
            flags = ("-O1", "-g", "-w", "-o", str(built), str(source), *options, "-lpthread", "-ldl")
            command = [self.compiler, *flags]
            subprocess.run(command, check=True, capture_output=True)
        return built

    def profiler(self, folder: Path) -> Path:
        """Return the profiler of this MPI, built as the documentation describes."""
        built = folder / f"libfabrictime-{self.compiler}.so"
        if built.exists():
            return built
        sources = sorted(path for path in (NATIVE / "mpi").glob("*.c") if path.name != "testbed.c")
        collectives = ("writer.c", "connect.c", "job_name.c", "sockets.c")
        sources += [NATIVE / "collectives" / name for name in collectives]
        options = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-fvisibility=hidden", "-Wl,-z,nodelete"]
        folders = [f"-I{NATIVE / 'collectives'}", f"-I{NATIVE.parent / 'clients' / 'c'}"]
        libraries = ["-lpthread", "-ldl", "-Wl,--as-needed"]
        command = [self.compiler, *options, *folders, "-o", str(built), *map(str, sources), *libraries]
        subprocess.run(command, check=True)
        return built


_OPEN_MPI_RUN: Final = (
    "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader"
)  # fmt: skip
OPEN_MPI: Final = MpiKind("Open MPI", "mpicc.openmpi", _OPEN_MPI_RUN, "-x", "openmpi-bin libopenmpi-dev")
MPICH: Final = MpiKind("MPICH", "mpicc.mpich", ("mpirun.mpich",), "-env", "mpich libmpich-dev")
