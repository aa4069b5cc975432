"""Measures the profiler of MPI programs with real jobs on the fabric of packets.

The figures are the slowdown of a job, the bytes of its trace, and the share of right diagnoses.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun, needs_fabric, running_fabric
from fabrictime.bench._waiting import end_child, wait_for
from fabrictime.bench.workload._incidents import INCIDENTS, SETTINGS, Explained, Incident, JobFabric
from fabrictime.bench.workload._jobs import MpiJob, MpiProgram, compiled
from fabrictime.testbed.control import ControlClient, NoFabric, socket_path
from native.collectives import reader as native
from schemas.ipc import listen_for_packets, receive_descriptor
from schemas.kafka.reader import TopicReader, back
from schemas.topics import COLLECTIVES

FABRIC: Final = ("--hosts", "4", "--leaves", "2", "--spines", "1")
"""Options of a fabric with one spine, so that runs do not differ by the paths that their flows happen to
take."""
HOSTS: Final = ("h1", "h2", "h3", "h4")
PROGRAM: Final = MpiProgram("allreduce", 100_000, compute_ms=10, iterations=100)
PAIRS, QUICK_PAIRS = 24, 3
WARM_UP: Final = 20
"""Iterations before the measurement: TCP finds the rate of the links."""
START_S, RUN_S, DRAIN_S = 30.0, 120.0, 0.05
READY_S, TRACE_S = 120.0, 60.0
RUNS, QUICK_RUNS = 5, 1


class Drain:
    """Receives the trace segments of the jobs' processes, and reads them as the host's reporter does."""

    def __init__(self, folder: Path) -> None:
        self.ended = 0
        """Number of operations that have ended."""
        self.dropped = 0
        self._selector = selectors.DefaultSelector()
        for host in HOSTS:
            listener = listen_for_packets(folder / f"collectives-{host}.sock")
            self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))
        self._readers: dict[int, native.Reader] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drain", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(DRAIN_S):
            for key, _ in self._selector.select(0):
                key.data()
            for reader in self._readers.values():
                self._read(reader)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._selector.register(connection, selectors.EVENT_READ, partial(self._receive, connection))

    def _receive(self, connection: socket.socket) -> None:
        """Receive a segment from a new process, or finish one whose process has ended."""
        with contextlib.suppress(ConnectionError):
            received = receive_descriptor(connection, 64)
            if received is not None and received[1] is not None:
                self._readers[connection.fileno()] = native.Reader(received[1])
                connection.send(b"OK")
                return
        self._selector.unregister(connection)
        if (reader := self._readers.pop(connection.fileno(), None)) is not None:
            self._read(reader)
            self.dropped += reader.counters().dropped
            reader.close()
        connection.close()

    def _read(self, reader: native.Reader) -> None:
        while len(events := reader.drain()):
            self.ended += int((events["kind"] == native.END).sum())
            reader.commit()

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join(10)
        self._selector.close()


def measure(progress: Progress, quick: bool = False) -> Mapping[str, Value]:
    """Measure and return the figures by key, in some minutes."""
    return _slowdown(progress, quick) | _live(progress, quick)


@needs_fabric(("job_slowdown",))
def _slowdown(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Run the same job with and without the profiler, in pairs of alternating order; return the figures."""
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as name, _fabric(Path(name)):
        folder = Path(name)
        program = compiled(folder)
        drain = Drain(folder / "run")
        ratios: list[float] = []
        try:
            for pair in range(QUICK_PAIRS if quick else PAIRS):
                progress(f"mpi: job with and without the profiler, pair {pair + 1}")
                order = (True, False) if pair % 2 else (False, True)
                median_s = {profiled: _median_s(folder, program, profiled) for profiled in order}
                ratios.append(median_s[True] / median_s[False] - 1)
        finally:
            drain.close()
    low, high = sorted(ratios)[len(ratios) // 4], sorted(ratios)[-len(ratios) // 4]
    note = f"{len(ratios)} pairs, half of them {low:.2%} to {high:.2%}; {drain.ended} operations recorded"
    return {"job_slowdown": Figure(max(0.0, statistics.median(ratios)), note=note)}


@needs_fabric(("trace_bytes_per_rank_hour", "real_job_diagnosis_right", "real_job_network_blamed_wrongly"))
def _live(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Run jobs together with the whole pipeline, and plant incidents; return the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as name,
        running_fabric(progress, SETTINGS, minutes=60) as running,
    ):
        fabric = JobFabric(running, compiled(Path(name)))
        fabric.wait_ready(READY_S)
        bytes_per_hour = _trace_bytes(progress, fabric, running.bootstrap)
        results = [
            _explained(progress, fabric, incident, number)
            for number in range(QUICK_RUNS if quick else RUNS)
            for incident in INCIDENTS
        ]
    wrong = [result for result in results if result.right_after_s is None]
    innocent = [result for result in results if not _is_networks(result)]
    blamed = [result for result in innocent if result.answers and result.answers[-1]["blames_network"]]
    right = 1 - len(wrong) / len(results)
    note = f"{len(results)} incidents" + "".join(
        f"; {result.incident}: {result.text[:120]}" for result in wrong[:6]
    )
    return {
        "trace_bytes_per_rank_hour": bytes_per_hour,
        "real_job_diagnosis_right": Figure(right, note=note),
        "real_job_network_blamed_wrongly": Figure(len(blamed) / len(innocent)),
    }


def _is_networks(result: Explained) -> bool:
    return any(incident.network for incident in INCIDENTS if incident.name == result.incident)


def _explained(progress: Progress, fabric: JobFabric, incident: Incident, number: int) -> Explained:
    """Run one incident; an incident that cannot run counts as wrongly diagnosed."""
    progress(f"mpi: {incident.name}, run {number + 1}")
    try:
        result = incident.run(fabric)
    except CannotRun as reason:
        result = Explained(incident.name, error=str(reason))
    time_text = "wrong" if result.right_after_s is None else f"right after {result.right_after_s:.1f} s"
    progress(f"mpi: {incident.name}: {time_text}: {result.text}")
    return result


def _trace_bytes(progress: Progress, fabric: JobFabric, bootstrap: str) -> Figure:
    """Return the bytes per hour that the records of one rank take in the log, at the rate of a running
    job."""
    progress("mpi: bytes of the trace")
    with fabric.job() as job:
        fabric.wait_good(job)
        time.sleep(TRACE_S)
        with TopicReader.open(bootstrap, {COLLECTIVES: back(TRACE_S)}, key=job.name) as reader:
            messages = list(reader.read_to_end())
    size = sum(len(message.value or b"") for message in messages)
    per_hour = size / len(HOSTS) / TRACE_S * 3600
    return Figure(per_hour, note=f"{len(messages)} records of {len(HOSTS)} ranks in {TRACE_S:g} s")


def _median_s(folder: Path, program: Path, profiled: bool) -> float:
    options = ["--job", "with", "--profiled"] if profiled else ["--job", "without", "--no-profiled"]
    with MpiJob(folder, program, HOSTS, PROGRAM, options) as job:
        return statistics.median(job.wait(RUN_S)[WARM_UP:])


@contextlib.contextmanager
def _fabric(folder: Path) -> Iterator[None]:
    """Run a fabric without the pipeline, with the data directory `folder`. Raises CannotRun."""
    command = [sys.executable, "-m", "fabrictime", "fabric", "up", "--dir", str(folder), "--for", "1h"]
    owner = subprocess.Popen([*command, *FABRIC], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    client = ControlClient(socket_path(folder))

    def answers() -> bool:
        with contextlib.suppress(NoFabric):
            return bool(client.ask("show"))
        return False

    try:
        in_time = wait_for(lambda: owner.poll() is not None or answers(), START_S)
        if owner.poll() is not None:
            raise CannotRun(owner.stderr.read().decode(errors="replace").strip() if owner.stderr else "")
        if in_time is None:
            raise CannotRun(f"fabrictime fabric up: not running after {START_S:g} s")
        yield
    finally:
        end_child(owner, signal.SIGINT, 30)
