"""Compares the profiler's counts of MPI programs with the counts at their call sites.

A library that is preloaded before the profiler (`mpi_counter.c`) counts operations and bytes. A program is
complete if the profiler recorded the same operations and bytes, and lost none. The programs are those of
Debian and PyPI on this machine, and `mpi_calls.c` for each MPI implementation.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.field._mpi_kinds import MPICH, OPEN_MPI, MpiKind
from native.collectives import reader as native
from schemas.ipc import SocketFile, listen_for_packets, receive_descriptor

RANKS: Final = 4
LIMIT_S: Final = 300.0
QUICK_STEP: Final = 6
"""One program in so many runs with `--quick`."""
_HERE: Final = Path(__file__).resolve().parent
_DRAIN_S: Final = 0.02
_STATED: Final = "recorded"
"""A word of each line in which the profiler states that it does not record something."""
_HPCC_INPUT: Final = Path("/usr/share/doc/hpcc/examples/_hpccinf.txt")
_PICKLES: Final = """
from mpi4py import MPI
c = MPI.COMM_WORLD
for n in range(5):
    c.sendrecv({n: n}, (c.rank + 1) % c.size, source=(c.rank - 1) % c.size)
    c.allreduce(n)
    c.bcast([n] * n, 0)
    c.gather(n)
"""
"""A program that sends Python objects: their receives are matched probes."""
Counts = Counter[tuple[str, str]]
"""Operations and bytes by (function, "operations" or "bytes")."""


@dataclass(frozen=True)
class Program:
    """A program to run: its MPI implementation, its command, and the files for its working directory."""

    name: str
    kind: MpiKind
    command: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    ranks: int = RANKS


class Recording:
    """Receives the segments of processes at a socket, and sums their records until `close`."""

    def __init__(self, path: Path) -> None:
        self.counts: Counts = Counter()
        self.lost = 0
        """Events that were dropped or invalid."""
        self._file = SocketFile(path, listen_for_packets)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._file.socket, selectors.EVENT_READ)
        self._readers: dict[int, tuple[socket.socket, native.Reader]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_DRAIN_S):
            self._step()

    def _step(self) -> None:
        for key, _ in self._selector.select(0):
            if key.fileobj is self._file.socket:
                connection = self._file.socket.accept()[0]
                self._selector.register(connection, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket):
                self._receive(key.fileobj)
        for _, reader in self._readers.values():
            self._drain(reader)

    def _receive(self, connection: socket.socket) -> None:
        """Receive a segment from a new process, or finish one whose process has ended."""
        with contextlib.suppress(ConnectionError):
            packet = receive_descriptor(connection, 64)
            if packet is not None and packet[1] is not None:
                self._readers[connection.fileno()] = connection, native.Reader(packet[1])
                os.close(packet[1])
                connection.send(b"OK")
                return
        self._selector.unregister(connection)
        _, reader = self._readers.pop(connection.fileno(), (connection, None))
        connection.close()
        if reader is not None:
            self._finish(reader)

    def _drain(self, reader: native.Reader) -> None:
        while len(events := reader.drain()):
            ends = events[events["kind"] == native.END]
            for number in set(ends["function"].tolist()):
                of_function = ends[ends["function"] == number]
                function = native.FUNCTIONS[number]
                self.counts[function, "operations"] += len(of_function)
                if function != "RECEIVE":
                    self.counts[function, "bytes"] += int(of_function["bytes"].sum())
            reader.commit()

    def _finish(self, reader: native.Reader) -> None:
        self._drain(reader)
        counters = reader.counters()
        self.lost += counters.dropped + counters.ringless + counters.invalid
        reader.close()

    def close(self) -> None:
        """Read the remaining records, and close the socket."""
        self._stop.set()
        self._thread.join(10)
        while self._selector.select(0):  # processes that ended just now
            self._step()
        for connection, reader in self._readers.values():
            self._finish(reader)
            connection.close()
        self._selector.close()
        self._file.close()


def programs(folder: Path) -> Iterator[Program]:
    """Yield the programs of this machine, and build the programs of single MPI calls in `folder`."""
    for kind in (OPEN_MPI, MPICH):
        if kind.is_installed:
            calls = str(kind.build(folder, _HERE / "mpi_calls.c"))
            names = subprocess.run([calls], capture_output=True, text=True, check=True).stdout.split()
            for name in names:
                yield Program(f"{name} ({kind.name})", kind, (calls, name))
    if shutil.which("hpcc") and _HPCC_INPUT.exists() and OPEN_MPI.is_installed:
        yield Program("hpcc (Debian)", OPEN_MPI, ("hpcc",), (("hpccinf.txt", _hpcc_input()),))
    for binary, kind in (("NPopenmpi", OPEN_MPI), ("NPmpich2", MPICH)):
        if shutil.which(binary) and kind.is_installed:
            yield Program(f"{binary} (Debian)", kind, (binary, "-u", "65536", "-n", "20"), ranks=2)
    if importlib.util.find_spec("mpi4py") and OPEN_MPI.is_installed:
        for benchmark in ("helloworld", "ringtest"):
            command = (sys.executable, "-m", "mpi4py.bench", benchmark)
            yield Program(f"mpi4py {benchmark} (PyPI)", OPEN_MPI, command)
        yield Program("mpi4py pickles (PyPI)", OPEN_MPI, (sys.executable, "-c", _PICKLES))


def _hpcc_input() -> str:
    """Return Debian's example input with a smaller problem, since the original runs for minutes."""
    lines = _HPCC_INPUT.read_text(encoding="utf-8").splitlines()
    return "\n".join("200          Ns" if line.rstrip().endswith("Ns") else line for line in lines) + "\n"


def run_program(program: Program, folder: Path) -> str:
    """Run a program; return how its recording differs from the counts at its call sites, or ''.

    Where the profiler declares operations that it does not record, the result is that declaration.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place, counts_folder = Path(name), Path(name) / "counts"
        counts_folder.mkdir()
        for file, text in program.files:
            (place / file).write_text(text, encoding="utf-8")
        counter = program.kind.build(folder, _HERE / "mpi_counter.c", "-shared", "-fPIC")
        variables = {
            "LD_PRELOAD": f"{counter}:{program.kind.profiler(folder)}",
            "FABRICTIME_COLLECTIVES": place / "c.sock",
            "FABRICTIME_COLLECTIVES_EVENTS": 65_536,
            "FABRICTIME_COUNTS": counts_folder,
            "FABRICTIME_FLOWS": place / "none.sock",
            "FABRICTIME_CONTROL": place / "none.sock",
        }
        command = program.kind.command(program.ranks, variables, *program.command)
        recording = Recording(place / "c.sock")
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
                cwd=place,
                env=os.environ | {"HWLOC_COMPONENTS": "-gl"},  # hwloc must find no display
            )
        except subprocess.TimeoutExpired:
            return f"it runs for more than {LIMIT_S:.0f} s"
        finally:
            recording.close()
        stated = [line for line in done.stderr.splitlines() if line.startswith("fabrictime:")]
        if done.returncode:
            return f"ended with {done.returncode}: {done.stderr[-300:]}"
        if stated:
            return f"{_STATED}: {stated[0]}"
        return difference(call_counts(counts_folder), recording.counts, recording.lost)


def call_counts(folder: Path) -> Counts:
    """Return the sums over the files, one per rank, that the counter wrote."""
    counts: Counts = Counter()
    for path in folder.iterdir():
        for line in path.read_text(encoding="ascii").splitlines():
            function, operations, size = line.split()
            counts[function, "operations"] += int(operations)
            counts[function, "bytes"] += int(size)
    return counts


def difference(expected: Counts, recorded: Counts, lost: int) -> str:
    """Return one line about the first figure that differs; nothing if all are equal and no event was lost."""
    if not expected:
        return "no rank wrote its counts"
    if lost:
        return f"{lost} events lost"
    for key in sorted(expected.keys() | recorded.keys()):
        if expected[key] != recorded[key]:
            return f"{' '.join(key)}: {recorded[key]} recorded, {expected[key]} called"
    return ""


def measure(progress: Progress, quick: bool = False) -> Mapping[str, Value]:
    """Return the share of programs whose operations and bytes are right."""
    keys = ("foreign_mpi_programs", "foreign_mpi_programs_complete", "foreign_mpi_programs_stated")
    with tempfile.TemporaryDirectory(prefix="fabrictime-mpi-") as name:
        folder = Path(name)
        selected = list(programs(folder))[:: QUICK_STEP if quick else 1]
        if not selected:
            packages = f"{OPEN_MPI.packages} {MPICH.packages}"
            return dict.fromkeys(keys, Missing(f"no MPI (Debian: apt-get install {packages})"))
        wrong, stated = [], 0
        for program in selected:
            text = run_program(program, folder)
            stated += text.startswith(_STATED)
            if text:
                progress(f"{program.name}: {text}")
            if text and not text.startswith(_STATED):
                wrong.append(f"{program.name}: {text}")
    share = 1 - len(wrong) / len(selected)
    return {
        "foreign_mpi_programs": Figure(len(selected)),
        "foreign_mpi_programs_complete": Figure(share, note="; ".join(wrong[:3])),
        "foreign_mpi_programs_stated": Figure(stated),
    }
