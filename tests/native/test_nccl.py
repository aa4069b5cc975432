"""The NCCL and RCCL profiler plugin, loaded as NCCL does: recorded shapes in every version, misuse, another
profiler behind it. Plain, and under the address, undefined-behaviour and thread sanitizers."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import struct
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from native.collectives.reader import END, Reader

NATIVE = Path(__file__).resolve().parents[2] / "native"
CLIENT = NATIVE.parent / "clients" / "c"
HERE = Path(__file__).resolve().parent / "nccl"
REPLAY = HERE / "replay"
VERSIONS = range(1, 8)
FLAGS: dict[str, list[str]] = {
    "plain": [],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
RUNTIMES = {"plain": (), "address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
ALL_REDUCE, SEND, RECEIVE = 1, 11, 12
TREE, RING = 1, 2
SENDS, SPLIT = 1, 2


def compiler(*runtimes: str) -> str:
    gcc = shutil.which(os.environ.get("CC", "gcc"))
    if gcc is None:
        pytest.skip("no C compiler")
    for runtime in runtimes:
        asked = [gcc, f"-print-file-name={runtime}"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(found).is_absolute():
            pytest.skip(f"the compiler has no {runtime}")
    return gcc


def compiled(arguments: list[str | Path], runtimes: tuple[str, ...] = ()) -> None:
    include = [f"-I{NATIVE / 'nccl'}", f"-I{NATIVE / 'collectives'}", f"-I{REPLAY}", f"-I{CLIENT}"]
    command = [compiler(*runtimes), "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *include]
    built = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


@dataclass(frozen=True)
class Built:
    """The plugin and the programs that load it, built one by one with the same flags."""

    folder: Path
    flags: list[str]
    runtimes: tuple[str, ...]

    @property
    def plugin(self) -> Path:
        path = self.folder / "libnccl-profiler-fabrictime.so"
        if not path.exists():
            writer = [
                NATIVE / "collectives" / name for name in ("writer.c", "connect.c", "job_name.c", "sockets.c")
            ]
            options = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete"]
            sources = sorted((NATIVE / "nccl").glob("*.c"))
            self._build(path, [*options, *sources, *writer, "-pthread", "-ldl"])
        return path

    def program(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            main = {"replay": REPLAY / "replay.c", "split": REPLAY / "replay.c"}.get(name, HERE / f"{name}.c")
            extra = [REPLAY / "split.c", "-DREPLAY_SIMULATED_TIME", "-rdynamic"] if name == "split" else []
            sources = [*(REPLAY / f"{part}.c" for part in ("caller", "clock", "drain"))]
            reader = NATIVE / "collectives" / "reader.c"
            self._build(path, [main, *sources, reader, *extra, "-pthread", "-ldl", "-lm"])
        return path

    def other(self, version: int) -> Path:
        path = self.folder / f"libnccl-profiler-other{version}.so"
        if not path.exists():
            self._build(path, ["-fPIC", "-shared", f"-DOTHER_VERSION={version}", HERE / "other.c"])
        return path

    def _build(self, path: Path, arguments: list[str | Path]) -> None:
        compiled([*self.flags, *arguments, "-o", path], self.runtimes)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in FLAGS}
    return lambda kind: Built(folders[kind], FLAGS[kind], RUNTIMES[kind])


def run(
    program: Path, *arguments: object, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [program, *map(str, arguments)],
        env=os.environ | {"TMPDIR": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, f"{done.stdout[-500:]}\n{done.stderr[-6000:]}"
    return done


def events_of(text: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the printed events, and the counters."""
    rows = []
    for line in text.splitlines():
        kind, *pairs = line.split()
        rows.append({"kind": kind} | {key: int(value) for key, value in (pair.split("=") for pair in pairs)})
    return rows[:-1], rows[-1]


def test_declarations_match_the_figures_of_the_interface(tmp_path):
    compiled([HERE / "abi.c", "-o", tmp_path / "abi"])
    assert subprocess.run([tmp_path / "abi"], check=False).returncode == 0


def test_declarations_match_the_headers_of_nccl(tmp_path):
    """NCCL_SOURCE is a checkout of NCCL, or its git directory."""
    source = os.environ.get("NCCL_SOURCE")
    if not source:
        pytest.skip("NCCL_SOURCE names no checkout of NCCL")
    for name in (*(f"profiler_v{version}.h" for version in range(1, 7)), "net_ib_v1.h"):
        path = f"src/include/plugin/profiler/{name}"
        shown = ["git", "-C", source, "show", f"HEAD:{path}"]
        (tmp_path / name).write_bytes(subprocess.run(shown, capture_output=True, check=True).stdout)
    compiled(["-DNCCL_HEADERS", f"-I{tmp_path}", HERE / "abi.c", "-o", tmp_path / "abi"])
    assert subprocess.run([tmp_path / "abi"], check=False).returncode == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_every_operation_is_recorded_with_its_transfers(built, version, tmp_path):
    plain = built("plain")
    ranks, operations = 3, 8
    done = run(plain.program("replay"), "run", plain.plugin, version, ranks, operations, folder=tmp_path)
    events, counters = events_of(done.stdout)
    assert (counters["dropped"], counters["misuse"], counters["invalid"], counters["closed"]) == (0, 0, 0, 1)
    by_operation = defaultdict(list)
    for event in events:
        if event["kind"] != "QUEUE_PAIR":
            by_operation[event["operation"]].append(event)
    assert len(by_operation) == ranks * operations
    for own in by_operation.values():
        (begin,) = [event for event in own if event["kind"] == "BEGIN"]
        (end,) = [event for event in own if event["kind"] == "END"]
        transfers = [event for event in own if event["kind"] == "TRANSFER"]
        assert transfers
        assert all(event["end"] <= end["end"] for event in transfers), "an operation ends after its transfers"
        assert begin["begin"] == end["begin"]
        assert (begin["end"], begin["sequence"]) == (0, end["sequence"])
        assert sum(event["network"] for event in transfers) == end["network"]
        assert sum(event["steps"] for event in transfers) == end["steps"]
        assert all(event["flags"] & SPLIT and event["sampled"] <= event["steps"] for event in transfers)
        assert {event["peer"] for event in transfers} <= set(range(ranks))
        if version >= 4:
            assert end["kernel"] >= 50_000
            assert end["channel"] in (2, 4)
        if version >= 5:
            assert end["launch"] > 0
        assert bool(end["tag"]) == (version == 7)
        bytes_of_steps = {40: 40 << 19, 200: 200 << 19, 10: 10 << 19}
        assert all(event["bytes"] == bytes_of_steps[event["steps"]] for event in transfers)
    ends = [event for event in events if event["kind"] == "END"]
    for rank in {event["communicator"] for event in ends}:
        own = [event for event in ends if event["communicator"] == rank]
        collectives = [event for event in own if event["function"] == ALL_REDUCE]
        assert [event["sequence"] for event in collectives] == list(range(operations // 2))
        assert [event["algorithm"] for event in collectives] == [RING, TREE] * (operations // 4)
        pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
        for event in own:
            if event["function"] in (SEND, RECEIVE):
                pairs[event["function"], event["peer"]].append(event["sequence"])
        assert all(numbers == list(range(len(numbers))) for numbers in pairs.values())
    if version >= 4:
        chunks = [event for event in events if event["kind"] == "QUEUE_PAIR"]
        assert chunks
        assert all(event["launch"] <= event["peer_late"] <= event["kernel"] for event in chunks)


def test_waits_go_to_the_transfers_that_waited(built, tmp_path):
    plain = built("plain")
    done = run(plain.program("replay"), "run", plain.plugin, 7, 2, 4, folder=tmp_path)
    for event in events_of(done.stdout)[0]:
        if event["kind"] == "TRANSFER" and event["flags"] & SENDS:
            assert event["flush"] == 0
            assert event["gpu"] > 0
        elif event["kind"] == "TRANSFER":
            assert event["peer_late"] == 0
            assert event["network"] > 0


def test_kernel_channels_can_be_switched_off(built, tmp_path):
    plain = built("plain")
    done = run(
        plain.program("replay"), "run", plain.plugin, 7, 2, 8, folder=tmp_path, FABRICTIME_NCCL_KERNELS="0"
    )
    events, _ = events_of(done.stdout)
    ends = [event for event in events if event["kind"] == "END"]
    assert len(ends) == 16
    assert all(event["kernel"] == 0 for event in ends)
    assert sum(event["kind"] == "BEGIN" for event in events) == 16


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["plain", "address"])
def test_misuse_neither_crashes_nor_spoils_later_events(built, kind, version, tmp_path):
    done = run(built(kind).program("misuse"), built(kind).plugin, version, folder=tmp_path)
    assert done.stdout.endswith("clean\n")


@pytest.mark.parametrize("kind", ["address", "thread"])
@pytest.mark.parametrize("seed", range(2))
def test_random_calls_from_several_threads(built, kind, seed, tmp_path):
    calls = 100_000 if kind == "address" else 30_000
    done = run(built(kind).program("fuzz"), built(kind).plugin, seed, calls, 4, folder=tmp_path)
    assert done.stdout == "clean\n"


@pytest.mark.parametrize("version", [3, 7])
def test_threads_do_not_race(built, version, tmp_path):
    thread = built("thread")
    done = run(thread.program("replay"), "run", thread.plugin, version, 3, 8, folder=tmp_path)
    assert events_of(done.stdout)[1]["invalid"] == 0


@pytest.mark.parametrize(
    ("other", "version", "passed_on"),
    [(4, 4, True), (5, 5, True), (5, 6, True), (5, 7, True), (6, 5, True), (4, 7, False), (5, 4, False)],
)
def test_another_profiler_receives_its_events(built, other, version, passed_on, tmp_path):
    address = built("address")
    behind = address.other(other)
    done = run(
        address.program("replay"), "run", address.plugin, version, 2, 8,
        folder=tmp_path, FABRICTIME_FORWARD_PROFILER=str(behind),
        ASAN_OPTIONS="detect_leaks=0",
    )  # fmt: skip
    lines = done.stderr.splitlines()
    if passed_on:
        assert lines[-1] == (
            "other: collectives=8 p2p=8 proxy=0 steps=0 kernels=40 "
            f"stopped={72 if version == 4 else 104} recorded=40"
        ), "its own mask has no proxy events"
    else:
        assert lines == [
            f"fabrictime: FABRICTIME_FORWARD_PROFILER {behind} has no compatible version of the interface "
            f"for version {version}; nothing is forwarded"
        ], "one line, not one a communicator"
    ends = [event for event in events_of(done.stdout)[0] if event["kind"] == "END"]
    assert len(ends) == 16, "this plugin's record is complete in any case"


@pytest.mark.parametrize("name", ["other5", "libnccl-profiler-other5.so"])
def test_another_profiler_is_found_by_its_short_name(built, name, tmp_path):
    plain = built("plain")
    path = str(plain.other(5).parent)
    done = run(
        plain.program("replay"), "run", plain.plugin, 7, 2, 4,
        folder=tmp_path, FABRICTIME_FORWARD_PROFILER=name, LD_LIBRARY_PATH=path,
    )  # fmt: skip
    assert "other: collectives=4" in done.stderr


def test_this_plugin_is_not_forwarded_to_itself(built, tmp_path):
    plain = built("plain")
    done = run(
        plain.program("replay"), "run", plain.plugin, 7, 2, 4,
        folder=tmp_path, FABRICTIME_FORWARD_PROFILER=str(plain.plugin),
    )  # fmt: skip
    assert "is this plugin itself" in done.stderr


def test_random_calls_with_another_profiler(built, tmp_path):
    address = built("address")
    done = run(
        address.program("fuzz"), address.plugin, 9, 100_000, 4,
        folder=tmp_path, FABRICTIME_FORWARD_PROFILER=str(address.other(5)), ASAN_OPTIONS="detect_leaks=0",
    )  # fmt: skip
    assert done.stdout == "clean\n"


def test_loss_is_counted_exactly(built, tmp_path):
    plain = built("plain")
    done = run(
        plain.program("replay"), "flood", plain.plugin, 4, 200_000,
        folder=tmp_path, FABRICTIME_COLLECTIVES_EVENTS="256",
    )  # fmt: skip
    loss = json.loads(done.stdout)
    assert loss["dropped"] > 0
    assert loss["read"] + loss["dropped"] == loss["made"] == 200_000


@pytest.mark.parametrize(("samples", "limit"), [("64", 2.0), ("0", 0.01)])
def test_measured_waits_are_near_the_true_ones(built, samples, limit, tmp_path):
    plain = built("plain")
    done = run(
        plain.program("split"), "split", plain.plugin, 5, 60,
        folder=tmp_path, FABRICTIME_NCCL_SAMPLES=samples,
    )  # fmt: skip
    error = json.loads(done.stdout)
    assert error["dropped"] == 0
    assert error["p95_points"] <= limit


def test_rccl_is_distinguished_from_nccl(built, tmp_path):
    """The segment names the source, the library's version and the communicator."""
    plain = built("plain")
    library = tmp_path / "librccl.so.1"
    compiled(["-fPIC", "-shared", HERE / "rccl.c", "-o", library])
    path = tmp_path / "collectives.sock"
    program = (
        "import ctypes, sys; plugin = ctypes.CDLL(sys.argv[1]); rccl = ctypes.CDLL(sys.argv[2]);"
        "rccl.open_profiler.restype = ctypes.c_void_p; mask = ctypes.c_int();"
        "table = ctypes.addressof(ctypes.c_char.in_dll(plugin, 'ncclProfiler_v6'));"
        "context = rccl.open_profiler(ctypes.c_void_p(table), ctypes.c_uint64(77), ctypes.byref(mask));"
        "print(context is not None, mask.value, flush=True); sys.stdin.read()"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)
        command = [shutil.which("python3") or "python3", "-c", program, str(plain.plugin), str(library)]
        environment = os.environ | {"FABRICTIME_COLLECTIVES": str(path), "FABRICTIME_JOB": "llm-7"}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            connection, _ = listener.accept()
            with connection:
                greeting, (fd,), _, _ = socket.recv_fds(connection, 64, 1)
                assert greeting.rstrip(b"\0") == b"SEGMENT 1"
                connection.send(b"OK")
                assert process.stdout is not None
                assert process.stdout.readline() == f"True {0x6DE}\n", (
                    "calls, operations, proxy, kernels, net"
                )
                head = os.pread(fd, 8192, 0)
                os.close(fd)
            process.communicate()
    version, source = struct.unpack_from("<II", head, 8)
    assert (version, source) == (2, 2)
    assert b"llm-7\0" in head
    assert b"2.27.3/v6\0" in head
    ready, rank, ranks, nodes, id, name = struct.unpack_from("<IIIIQ128s", head, 4096)
    assert (ready, rank, ranks, nodes, id) == (1, 3, 16, 2, 77)
    assert name.rstrip(b"\0") == b"pretraining"


def test_communicators_are_recorded_however_many_came_before(built, tmp_path):
    """A job that shrinks or restarts in place makes and frees communicators all its life."""
    path, count = tmp_path / "collectives.sock", 300
    program = (
        "import ctypes, sys; plugin = ctypes.CDLL(sys.argv[1]);"
        "table = (ctypes.c_void_p * 6).in_dll(plugin, 'ncclProfiler_v5');"
        "call = lambda n, *given: ctypes.CFUNCTYPE(ctypes.c_int)(table[n])(*given)\n"
        "for id in range(1, int(sys.argv[2]) + 1):\n"
        "    context, event, mask = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()\n"
        "    call(1, ctypes.byref(context), ctypes.c_uint64(id), ctypes.byref(mask), None, 1, 2, 0, None)\n"
        "    call(2, context, ctypes.byref(event), (ctypes.c_uint64 * 17)(2))\n"
        "    call(3, event); call(5, context)\n"
        "print('done', flush=True); sys.stdin.read()"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)
        python = shutil.which("python3") or "python3"
        command = [python, "-c", program, str(built("plain").plugin), str(count)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"FABRICTIME_COLLECTIVES": str(path)},
        ) as process:
            connection, _ = listener.accept()
            with connection:
                _, (fd,), _, _ = socket.recv_fds(connection, 64, 1)
                assert process.stdout is not None
                assert process.stdout.readline() == "done\n"
                reader = Reader(fd)
                events, rows = reader.drain(), reader.communicators()
                os.close(fd)
            process.communicate()
    ends = events[events["kind"] == END]
    assert [rows[row].id for row in ends["communicator"].tolist()] == list(range(1, count + 1))
    assert reader.counters().dropped == 0


def test_without_a_reporter_nothing_is_asked_of_nccl(built):
    plugin = ctypes.CDLL(str(built("plain").plugin))
    for version in VERSIONS:
        table = (ctypes.c_void_p * 6).in_dll(plugin, f"ncclProfiler_v{version}")
        context, mask = ctypes.c_void_p(), ctypes.c_int(0)
        arguments: list[object] = [ctypes.byref(context), ctypes.byref(mask)]
        if version == 4:
            arguments += [None, ctypes.c_uint64(1), 1, 2, 0, None]
        elif version > 4:
            arguments[1:1] = [ctypes.c_uint64(1)]
            arguments += [None, 1, 2, 0, None]
        assert ctypes.CFUNCTYPE(ctypes.c_int)(table[1])(*arguments) == 0
        assert (context.value, mask.value) == (None, 0)


def test_another_profiler_works_without_a_reporter(built, tmp_path):
    """The other profiler's mask alone is set, and its events reach it."""
    plain = built("plain")
    program = (
        "import ctypes, sys; plugin = ctypes.CDLL(sys.argv[1]);"
        "table = (ctypes.c_void_p * 6).in_dll(plugin, 'ncclProfiler_v6');"
        "call = lambda n, *given: ctypes.CFUNCTYPE(ctypes.c_int)(table[n])(*given);"
        "context, event, mask = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int();"
        "call(1, ctypes.byref(context), ctypes.c_uint64(1), ctypes.byref(mask), None, 1, 2, 0, None);"
        "of = (ctypes.c_uint64 * 17)(2);"
        "call(2, context, ctypes.byref(event), of); call(3, event); call(3, event); call(5, context);"
        "print(mask.value)"
    )
    python = shutil.which("python3") or "python3"
    environment = {"FABRICTIME_FORWARD_PROFILER": str(plain.other(5))}
    done = run(Path(python), "-c", program, plain.plugin, folder=tmp_path, **environment)
    assert done.stdout == f"{0x46}\n"
    assert done.stderr.startswith("other: collectives=1 p2p=0 proxy=0 steps=0 kernels=0 stopped=1")
