"""The queue-pair library without RDMA: its declarations against the real header, verbs found as NCCL finds
them, commands while queue pairs come and go on other threads, delays from post to completion.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from native import qp
from native.collectives.reader import QUEUE_PAIR, Reader

NATIVE = Path(__file__).resolve().parents[2] / "native"
HERE = Path(__file__).resolve().parent / "qp"


def compiler() -> str:
    gcc = shutil.which(os.environ.get("CC", "gcc"))
    if gcc is None:
        pytest.skip("no C compiler")
    return gcc


def compiled(arguments: list[str | Path]) -> None:
    command = [compiler(), "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE / 'qp'}"]
    built = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


def test_declarations_match_the_real_header():
    if not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("no <infiniband/verbs.h> (Debian: apt-get install libibverbs-dev)")
    compiled(["-fsyntax-only", HERE / "abi.c"])


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], ["4 while 3", "3 while 3", "DONE SQD, the program sees 3"]),
        (
            ["stuck"],
            [
                "4 while 3",
                "3 while 3",
                "3 while 3",
                "FAILED out of SQD: Invalid argument (errno 22), the program sees 4",
            ],
        ),
    ],
)
def test_a_program_sees_its_queue_pair_in_rts_while_it_is_moved(folder, arguments, lines):
    built = folder / "move"
    include = f"-I{NATIVE.parent / 'clients' / 'c'}"
    compiled([include, HERE / "move.c", NATIVE / "qp" / "mover.c", "-o", built])
    ran = subprocess.run([built, *arguments], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qp")


@pytest.fixture(scope="module")
def program(folder: Path) -> list[str | Path]:
    """A command: the program, and the verbs library that it loads."""
    versions = folder / "versions"
    versions.write_text("IBVERBS_1.0 { local: *; };\nIBVERBS_1.1 { global: ibv_*; } IBVERBS_1.0;\n")
    verbs, built = folder / "libibverbs.so.1", folder / "program"
    compiled(["-shared", "-fPIC", f"-Wl,--version-script={versions}", HERE / "verbs.c", "-o", verbs])
    compiled([HERE / "program.c", "-pthread", "-ldl", "-o", built])
    return [built, verbs]


class Peer:
    """The actuator's end of a connection: lines in, lines out."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(20)

    def accept(self) -> None:
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(20)
        self._lines = self._connection.makefile("r", encoding="ascii")

    def until(self, begin: str | tuple[str, ...]) -> str:
        for line in self._lines:
            if line.startswith(begin):
                return line.rstrip("\n")
        raise AssertionError(f"hung up before {begin!r}")

    def send(self, line: str) -> None:
        self._connection.sendall(line.encode() + b"\n")

    def close(self) -> None:
        self._listener.close()
        self._connection.close()
        self._lines.close()


@contextlib.contextmanager
def running(command: list[str | Path], **environment: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"LD_PRELOAD": str(qp.library())} | environment,
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def test_commands_are_carried_out_while_queue_pairs_come_and_go(program, tmp_path):
    peer = Peer(tmp_path / "control.sock")
    with (
        contextlib.closing(peer),
        running(program, FABRICTIME_CONTROL=str(tmp_path / "control.sock")) as owner,
    ):
        peer.accept()
        number = owner.stdout.readline().split()[1]
        line = peer.until(f"FLOW qp:made_up0:{number}:")
        _, key, port, verbs = line.split(" ")
        assert (port, verbs) == ("0", "PACE"), "no RoCE v2, but a device that limits rates"
        for id in range(1, 200):
            peer.send(f"PACE {id} {key} {id}500")
            assert (
                peer.until(f"DONE {id} ") == f"DONE {id} {(id * 1000 + 500 + 999) // 1000 * 1000} RATE_LIMIT"
            )
        peer.send(f"MOVE 200 {key} 50000")
        assert peer.until("FAILED 200") == (
            "FAILED 200 no RoCE v2: its packets have no source port; no standby"
        )
        peer.send("MOVE 201 qp:made_up0:0:0 50000")
        assert peer.until("FAILED 201") == "FAILED 201 no such queue pair"
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert peer.until(f"GONE {key}")
        assert owner.wait(20) == 0


def test_a_missing_actuator_has_no_effect(program, tmp_path):
    with running(program, FABRICTIME_CONTROL=str(tmp_path / "nobody")) as owner:
        assert owner.stdout.readline().startswith("standing ")
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.wait(20) == 0


@pytest.mark.parametrize(
    "line", ["MOVE", "MOVE x y 1", "PACE 5", "PACE 5 k 1e3", "MOVE 6 k 70000", "\x01" * 100]
)
def test_an_invalid_command_is_refused_without_side_effects(program, tmp_path, line):
    peer = Peer(tmp_path / "control.sock")
    with contextlib.closing(peer), running(program, FABRICTIME_CONTROL=str(tmp_path / "control.sock")):
        peer.accept()
        peer.send(line)
        assert peer.until(("FAILED ", "ERROR "))
        peer.send("MOVE 7 nobody 50000")
        assert peer.until("FAILED 7") == "FAILED 7 no such queue pair"


@pytest.fixture(scope="module")
def traffic(program: list[str | Path], folder: Path) -> list[str | Path]:
    """A command that lacks its mode: a program that posts and polls."""
    compiled([HERE / "traffic.c", "-pthread", "-ldl", "-o", folder / "traffic"])
    return [folder / "traffic", program[1]]


@pytest.fixture
def reporter(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket that a process passes its segment to."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "collectives.sock"))
        listener.listen()
        listener.settimeout(20)
        yield listener


@contextlib.contextmanager
def reader_of(reporter: socket.socket) -> Iterator[tuple[Reader, socket.socket]]:
    connection, _ = reporter.accept()
    with connection:
        _, (fd,), _, _ = socket.recv_fds(connection, 64, 1)
        reader = Reader(fd)
        os.close(fd)
        connection.send(b"OK")
        yield reader, connection


def test_delays_arrive_per_queue_pair(traffic, reporter):
    with (
        running([*traffic, "delays"], FABRICTIME_COLLECTIVES=reporter.getsockname()) as owner,
        reader_of(reporter) as (reader, connection),
    ):
        _, number, refused = owner.stdout.readline().split()
        assert refused == "3"
        seen = reader.drain()
        while not len(seen) or seen["posted"][-1] != 1:
            reader.rewind()
            seen = reader.drain()
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert owner.wait(20) == 0
        assert connection.recv(1) == b""
        reader.rewind()
        seen = reader.drain()
        assert (reader.source, reader.devices()) == ("VERBS", {0: "made_up0"})
        assert set(seen["kind"].tolist()) == {QUEUE_PAIR}
        assert set(seen["queue_pair"].tolist()) == {int(number)}
        assert len(set(seen["created"].tolist())) == 1
        assert seen["created"][0] > 0
        assert seen["completed"].sum() == 40, "signalled ones; neither refused nor failed ones"
        assert seen["bytes"].sum() == 160_000, "with those that are not signalled"
        busy = seen[seen["completed"] > 0]
        assert busy["min_ns"].min() > 1_000_000
        assert all(busy["min_ns"] <= busy["p99_ns"])
        assert all(busy["p99_ns"] <= busy["max_ns"])
        assert all(busy["sum_ns"] >= busy["min_ns"].astype("i8") * busy["completed"])
        assert all(seen["begin_raw_ns"][1:] == seen["end_raw_ns"][:-1]), "no gap between intervals"
        assert seen["posted"][-1] == 1
        assert reader.counters().closed
        assert reader.counters().invalid == 0


def test_no_delay_is_lost_or_invented_while_queue_pairs_come_and_go(traffic, reporter):
    with (
        running([*traffic, "churn"], FABRICTIME_COLLECTIVES=reporter.getsockname()) as owner,
        reader_of(reporter) as (reader, _),
    ):
        assert owner.stdout.readline() == "posted\n"
        assert owner.wait(20) == 0
        seen = reader.drain()
        assert 0 < seen["completed"].sum() <= 4 * 200 * 100
        assert seen["bytes"].sum() == seen["completed"].sum() * 10
        assert reader.counters().invalid == 0


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_threads_that_post_poll_and_report_do_not_race(folder, sanitizers):
    library = "libtsan.so" if sanitizers == "thread" else "libasan.so"
    asked = [compiler(), f"-print-file-name={library}"]
    if "/" not in subprocess.run(asked, capture_output=True, text=True, check=True).stdout:
        pytest.skip(f"the compiler has no {library}")
    sources = [
        NATIVE / "qp" / "delays.c",
        *(NATIVE / "collectives" / f"{n}.c" for n in ("writer", "connect", "job_name")),
    ]
    includes = [f"-I{NATIVE / 'collectives'}", f"-I{NATIVE.parent / 'clients' / 'c'}"]
    flags = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", *includes]
    program = folder / f"race-{library}"
    compiled([*flags, HERE / "race.c", *sources, "-pthread", "-o", program])
    ran = subprocess.run([program], capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stderr[-6000:]
    assert ran.stdout == "clean\n"


def test_delays_cost_little(traffic, tmp_path):
    figures = {}
    for name in ("FABRICTIME_FLOWS", "FABRICTIME_COLLECTIVES"):
        with running([*traffic, "cost"], **{name: str(tmp_path / "nobody")}) as owner:
            _, cost_ns, clock_ns = owner.stdout.readline().split()
            figures[name] = float(cost_ns)
    assert figures["FABRICTIME_COLLECTIVES"] - figures["FABRICTIME_FLOWS"] < 10 * float(clock_ns)
