"""Runs MPI programs under the profiler, and reads what their processes recorded."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fabrictime.bench.field._mpi_kinds import OPEN_MPI, MpiKind
from native import mpi

HERE = Path(__file__).resolve().parent / "mpi"
RANKS = 4
RUN = list(OPEN_MPI.launcher)
HEAD, COMMUNICATORS, DEVICES, RING_HEAD = 4096, 4096, 64, 256
COUNTERS = struct.Struct("=QQQ")
EVENT = struct.Struct("=6Q4B2Hi2H4I6Q")
BEGIN, END = 1, 2
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, BARRIER, SEND, RECEIVE, GATHERV, SCATTERV = 1, 2, 6, 10, 11, 12, 15, 16


@dataclass
class Process:
    """A process's segment, as it was when the process had ended."""

    communicators: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # id, rank, ranks
    events: list[tuple[int, ...]] = field(default_factory=list)
    version: str = ""
    dropped: int = 0
    misuse: int = 0
    closed: bool = False

    @property
    def rank(self) -> int:
        """Rank in MPI_COMM_WORLD."""
        return self.communicators[0][1]

    def ended(self, function: int) -> list[tuple[int, ...]]:
        """Ends of the operations of one function."""
        return [event for event in self.events if event[6] == END and event[7] == function]


def read(descriptor: int) -> Process:
    """Read a segment as segment.h lays it out."""
    process = Process()
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as whole:
        assert whole[:8] == b"FTCOLL1\0"
        rings, size = struct.unpack_from("=II", whole, 24)
        process.version = whole[304:368].split(b"\0")[0].decode()
        used, _, closed = COUNTERS.unpack_from(whole, 368)
        process.closed = bool(closed)
        for number in range(COMMUNICATORS):
            ready, rank, ranks, _, identity = struct.unpack_from("=4IQ", whole, HEAD + number * 256)
            if ready:
                process.communicators[number] = (identity, rank, ranks)
        at = HEAD + COMMUNICATORS * 256 + DEVICES * 64
        assert used <= rings
        for _ in range(used):
            head, dropped, misuse = COUNTERS.unpack_from(whole, at)
            assert head <= size, "the test's programs write less than a ring"
            process.dropped += dropped
            process.misuse += misuse
            process.events += [EVENT.unpack_from(whole, at + RING_HEAD + n * EVENT.size) for n in range(head)]
            at += RING_HEAD + size * EVENT.size
    return process


class Reporter:
    """Receives the segments of processes, and reads each when its process has ended."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self.processes: list[Process] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            space = socket.CMSG_SPACE(4)
            text, ancillary, _, _ = connection.recvmsg(64, space)
            assert text.startswith(b"SEGMENT 1")
            [descriptor] = array.array("i", ancillary[0][2][:4])
            connection.send(b"OK")
            with contextlib.suppress(ConnectionError):
                connection.recv(64)
            self.processes.append(read(descriptor))
            os.close(descriptor)

    def close(self) -> list[Process]:
        """Stop, and return the processes by rank."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._accepting.join(10)
        for thread in self._threads:
            thread.join(10)
        return sorted(self.processes, key=lambda process: process.rank)


def require(kind: MpiKind) -> None:
    """Skip the test if a kind of MPI is not installed."""
    if not kind.is_installed:
        pytest.skip(f"no {kind.name} (Debian: apt-get install {kind.packages})")


def start(
    kind: MpiKind, folder: Path, ranks: int, program: Sequence[str | Path], **variables: object
) -> tuple[subprocess.CompletedProcess[str], list[Process]]:
    """Run a program under a profiler; return its result, and its processes by rank."""
    socket_path = folder / "collectives.sock"
    reporter = Reporter(socket_path)
    given: dict[str, object] = {"LD_PRELOAD": mpi.library(), "FABRICTIME_COLLECTIVES": socket_path}
    given |= {"FABRICTIME_JOB": "test"}
    given |= {"FABRICTIME_FLOWS": folder / "no.sock", "FABRICTIME_CONTROL": folder / "no.sock"}
    command = kind.command(ranks, given | variables, *program)
    environment = os.environ | {"HWLOC_COMPONENTS": "-gl"}  # hwloc must find no display
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=100, env=environment
        )
    finally:
        processes = reporter.close()
    return done, processes


def run(program: Path, folder: Path, name: str, code: int | None = 0) -> list[Process]:
    """Run the program on all ranks of Open MPI and return the processes by rank."""
    done, processes = start(OPEN_MPI, folder, RANKS, [program, name])
    assert code is None or done.returncode == code, done.stderr
    assert len(processes) == RANKS
    return processes
