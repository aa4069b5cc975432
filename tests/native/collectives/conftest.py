"""A process with a segment and the reporter's end of its socket, and segments built by hand."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from native.collectives.reader import COMMUNICATORS, EVENT, Reader

NATIVE = Path(__file__).resolve().parents[3] / "native" / "collectives"
HERE = Path(__file__).resolve().parent
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
DEVICES_AT = 4096 + COMMUNICATORS * 256
RINGS_AT, RING_HEAD = DEVICES_AT + 64 * 64, 256


class Job:
    """The program under test, and the socket that it connects to."""

    def __init__(self, path: Path, command: list[str | Path], environment: dict[str, str]) -> None:
        self.path = path
        self.command = command
        self.environment = environment
        self.connections: list[socket.socket] = []
        self.listener: socket.socket | None = None
        self.process: subprocess.Popen[str] | None = None

    def listen(self) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here = os.open(self.path.parent, os.O_PATH)
        self.listener.bind(f"/proc/self/fd/{here}/{self.path.name}")
        os.close(here)
        self.listener.listen()
        self.listener.settimeout(20)

    def start(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*self.command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"FABRICTIME_COLLECTIVES": str(self.path)} | self.environment,
        )

    def accept(self, answer: bytes = b"OK") -> int:
        """The descriptor that a process passes."""
        connection, _ = self.listener.accept()
        connection.settimeout(20)
        text, (fd,), _, _ = socket.recv_fds(connection, 64, 1)
        assert text == b"SEGMENT 1"
        connection.send(answer)
        self.connections.append(connection)
        return fd

    def send(self, command: str) -> str:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.line()

    def line(self) -> str:
        return self.process.stdout.readline().rstrip("\n")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)

    def close(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        for each in [*self.connections, self.listener]:
            if each:
                each.close()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile a C program of this folder with the writer or the reader."""
    gcc = shutil.which(os.environ.get("CC", "gcc"))
    if gcc is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("collectives")

    def build(name: str, sources: tuple[str, ...], *flags: str) -> Path:
        program = folder / "-".join([Path(name).stem, *(flag.strip("-").replace("/", "") for flag in flags)])
        command = [gcc, "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", *flags]
        files = [HERE / name, *(NATIVE / source for source in sources)]
        done = subprocess.run(
            [*command, *files, "-pthread", "-o", program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return program

    return build


@pytest.fixture(scope="session")
def sanitized(built: Callable[..., Path]) -> Callable[..., Path]:
    """Compile a C program with sanitizers."""

    def build(name: str, sources: tuple[str, ...], sanitizers: str) -> Path:
        for each in sanitizers.split(","):
            library = f"lib{ {'address': 'asan', 'undefined': 'ubsan', 'thread': 'tsan'}[each] }.so"
            asked = [os.environ.get("CC", "gcc"), f"-print-file-name={library}"]
            if "/" not in subprocess.run(asked, capture_output=True, text=True, check=True).stdout:
                pytest.skip(f"the compiler has no {library}")
        return built(name, sources, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")

    return build


@pytest.fixture
def job(built: Callable[..., Path], tmp_path: Path) -> Iterator[Job]:
    """A program that has not started yet, and a socket that is not open yet."""
    made = Job(
        tmp_path / "c.sock",
        [built("program.c", ("writer.c", "connect.c", "job_name.c"))],
        {"FABRICTIME_JOB": "train-7"},
    )
    with contextlib.closing(made):
        yield made


class Segment:
    """A segment made by hand, with the values of a correct writer; a test then spoils some."""

    def __init__(self, rings: int = 2, events: int = 64, size: int | None = None, seals: int = SEALS) -> None:
        self.fd = os.memfd_create("segment", os.MFD_ALLOW_SEALING)
        self.rings, self.events = rings, events
        bytes_ = RINGS_AT + rings * (RING_HEAD + events * EVENT.itemsize)
        os.ftruncate(self.fd, size or bytes_)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        self.map = mmap.mmap(self.fd, size or bytes_)
        head = struct.pack("<8sIIQIIQII", b"FTCOLL1\0", 2, 3, bytes_, rings, events, 1, 77, 0)
        self.map[: len(head)] = head
        self.map[48 : 48 + 7] = b"train-7"
        self.used(rings)

    def __del__(self) -> None:
        os.close(self.fd)

    def used(self, rings: int) -> None:
        struct.pack_into("<Q", self.map, 368, rings)

    def ring(self, n: int) -> int:
        return RINGS_AT + n * (RING_HEAD + self.events * EVENT.itemsize)

    def slots(self, n: int) -> np.ndarray:
        return np.frombuffer(self.map, EVENT, self.events, self.ring(n) + RING_HEAD)

    def head(self, n: int, value: int) -> None:
        struct.pack_into("<Q", self.map, self.ring(n), value % 2**64)

    def tail(self, n: int) -> int:
        return int(struct.unpack_from("<Q", self.map, self.ring(n) + 64)[0])

    def put(self, n: int, operation: int, **fields: int) -> None:
        """What a correct writer does, without a look at the tail."""
        head = int(struct.unpack_from("<Q", self.map, self.ring(n))[0])
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        event = np.zeros(1, EVENT)
        event["begin_raw_ns"], event["end_raw_ns"], event["operation"] = now - 1000, now, operation
        event["kind"], event["peer"] = 2, -1
        for name, value in fields.items():
            event[name] = value
        start = self.ring(n) + RING_HEAD + head % self.events * EVENT.itemsize
        self.map[start : start + EVENT.itemsize] = event.tobytes()
        self.head(n, head + 1)

    def reader(self) -> Reader:
        return Reader(self.fd)


@pytest.fixture(scope="session")
def segment() -> type[Segment]:
    """Make segments by hand."""
    return Segment
