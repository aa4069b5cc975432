"""Runs one case on the running fabric: a job, its fault, and all diagnoses of the job."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from fabrictime.bench._fabric import CannotRun, RunningFabric
from fabrictime.bench._waiting import end_child, wait_for
from fabrictime.bench.foreign import _hosts, _programs
from fabrictime.bench.foreign._draw import BIG_HOSTS, Case
from fabrictime.bench.foreign._page import ALL, Page
from fabrictime.bench.foreign._results import Outcome
from fabrictime.bench.foreign._truth import MESSAGES, Answer, Culprit
from schemas.kafka.reader import END, TopicReader
from schemas.records import Alert, Diagnosis
from schemas.topics import ALERTS, DIAGNOSES

START_S: Final = 60.0
SETTLE_S: Final = 12.0
"""Limit of the wait for the first or last iteration of a fault."""
BIG_BYTES: Final = 300_000
PAUSE_GAP_S: Final = 12.0
_POLL_S: Final = 0.2

Act = contextlib.AbstractContextManager[object]


class Watch:
    """Collects all diagnoses and alerts about jobs, read from the two topics."""

    def __init__(self, bootstrap: str) -> None:
        self._reader = TopicReader.open(bootstrap, {DIAGNOSES: END, ALERTS: END})
        self._answers: dict[str, list[Answer]] = {}
        self._hangs: dict[str, list[int]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            for message, record in self._reader.decoded(self._reader.poll(_POLL_S)):
                if record and message.topic == DIAGNOSES.name:
                    self._add_answer(message.append_ns, record)
                elif record:
                    self._add_alert(message.append_ns, record)

    def _add_answer(self, at_ns: int, record: Diagnosis) -> None:
        self._answers.setdefault(record["job"], []).append(_answer(at_ns, record))

    def _add_alert(self, at_ns: int, record: Alert) -> None:
        if record["kind"] == "JOB_HANG" and record["state"] == "RAISED":
            self._hangs.setdefault(record["subject"], []).append(at_ns)

    def answers(self, job: str) -> list[Answer]:
        """Return the diagnoses of a job so far."""
        return list(self._answers.get(job, ()))

    def hang_alerts_ns(self, job: str) -> list[int]:
        """Return the times of a job's JOB_HANG alerts, ns since the Unix epoch."""
        return list(self._hangs.get(job, ()))


def _answer(at_ns: int, record: Diagnosis) -> Answer:
    return Answer(
        at_ns,
        record["verdict"],
        record["confidence"],
        record["blames_network"],
        record["subject"],
        tuple(record["ranks"]),
        tuple(record["jobs"]),
        tuple((other["verdict"], other["subject"]) for other in record["alternatives"]),
        record["text"],
    )


class Run:
    """One run of a case: its job, its shared page and its faults."""

    def __init__(self, case: Case, fabric: RunningFabric, watch: Watch, programs: Path) -> None:
        self.case, self._fabric, self._watch, self._programs = case, fabric, watch, programs
        self.namespaces = _hosts.namespaces_of(fabric.control)
        self.pids: dict[int, int] = {}
        self._page: Page | None = None
        self.outcome = Outcome(case, _culprit(case))

    def measure(self) -> Outcome:
        """Run the case and return its outcome; an exception becomes the outcome's error."""
        try:
            self._measure()
        except (CannotRun, RuntimeError, OSError) as error:
            self.outcome.error = f"{type(error).__name__}: {error}".splitlines()[0]
        self.outcome.answers = self._watch.answers(self.case.name)
        self.outcome.hang_alerts_ns = self._watch.hang_alerts_ns(self.case.name)
        return self.outcome

    def _measure(self) -> None:
        outcome = self.outcome
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self._programs)))
            self._page = Page(folder / "page", len(self.case.hosts))
            stack.callback(self._page.close)
            command = _programs.command(self.case, self._programs, self._page.path)
            stack.enter_context(self._job(self.case.name, self.case.hosts, command, folder))
            self._await_start()
            outcome.ready_ns = time.time_ns()
            before = self._rate(self.case.before_s)
            if self.case.pauses:
                self._pause_all()
            else:
                self._fault(stack, folder, before)
            outcome.finish_ns = time.time_ns()
            outcome.load = os.getloadavg()[0]

    @contextlib.contextmanager
    def _job(self, job: str, hosts: Sequence[str], command: list[str], folder: Path) -> Iterator[None]:
        """Run a job by the product's own command, and end its processes."""
        launcher = [sys.executable, "-m", "fabrictime", "fabric", "mpi", "--dir", str(self._fabric.data)]
        options = ["--hosts", ",".join(hosts), "--job", job]
        if job != self.case.name:
            options += ["--connections", "4", "--port", "4096"]
        output = folder / f"{job}.log"
        with output.open("wb") as out:
            child = subprocess.Popen(
                [*launcher, *options, "--", *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        try:
            yield
        finally:
            pids = _hosts.ranks_of(job).values()
            end_child(child, signal.SIGTERM, 5)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _await_start(self) -> None:
        """Wait until all ranks are in their third iteration; for programs of others, until they run."""

        def has_started() -> bool:
            self.pids = _hosts.ranks_of(self.case.name)
            started = self._own_page is None or min(self._own_page.iterations()) > 2
            return len(self.pids) == len(self.case.hosts) and started

        if wait_for(has_started, START_S, _POLL_S) is None:
            raise CannotRun(f"{self.case.program}: its job does not run after {START_S:g} s")

    @property
    def _own_page(self) -> Page | None:
        return self._page if self.case.program in MESSAGES else None

    def _rate(self, seconds: float) -> float:
        """Wait `seconds`; return the iterations per second of the slowest rank, or 0 if unknown."""
        page = self._own_page
        first = min(page.iterations()) if page else 0
        time.sleep(seconds)
        return (min(page.iterations()) - first) / seconds if page and seconds else 0.0

    def _pause_all(self) -> None:
        if self._page is None:
            raise CannotRun(f"{self.case.program}: it shows no iterations")
        for pause in self.case.pauses:
            ms = round(pause.length_s * 1000)
            self._page.begin("PAUSE", pause.rank, ms, every=pause.act, once=True)
            begin_ns = self._page.begun_ns(SETTLE_S)
            self.outcome.pauses_ns.append((begin_ns, self._page.ended_ns(pause.length_s + SETTLE_S)))
            time.sleep(PAUSE_GAP_S)

    def _fault(self, stack: contextlib.ExitStack, folder: Path, before: float) -> None:
        outcome, case = self.outcome, self.case
        inner = stack.enter_context(contextlib.ExitStack())
        inner.enter_context(self._begun(folder))
        during = self._rate(case.during_s)
        if case.cause == "two faults":
            outcome.second = Culprit(case.second_rank, case.hosts[case.second_rank])
            inner.enter_context(_hosts.slow_nic(self.namespaces, outcome.second.host, 0.25))
            outcome.second_ns = time.time_ns()
            time.sleep(case.during_s)
        if before and during:
            outcome.effect = before / during
        outcome.end_ns = time.time_ns()
        if case.after_s:
            inner.close()
            time.sleep(case.after_s)

    @contextlib.contextmanager
    def _begun(self, folder: Path) -> Iterator[None]:
        """Begin the case's fault; record when it began and, on exit, when it ended."""
        outcome, page, cause = self.outcome, self._own_page, self.case.cause
        if cause in _INSIDE and page is not None:
            kind, value, every = _INSIDE[cause]
            rank = ALL if cause.startswith("all ") else self.case.rank
            page.begin(kind, rank, value, every=every, once=kind == "SKIP")
            outcome.begin_ns = page.begun_ns(SETTLE_S)
            yield
            page.end()
            outcome.end_ns = page.ended_ns(SETTLE_S) if self.case.after_s else outcome.end_ns
            return
        with _OUTSIDE[cause](self, folder):
            outcome.begin_ns = time.time_ns()
            yield
        outcome.end_ns = time.time_ns() if self.case.after_s else outcome.end_ns

    @property
    def pid(self) -> int:
        """The process id of the guilty rank."""
        return self.pids[self.case.rank]

    @property
    def host(self) -> str:
        """The host of the guilty rank."""
        return self.case.hosts[self.case.rank]

    def big(self, folder: Path) -> Act:
        """Return the context of a second job, which shares the uplinks of the first job."""
        page = Page(folder / "big", len(BIG_HOSTS))
        command = _programs.own(self._programs, page.path, "halo", BIG_BYTES, 1000)
        return self._job(self.outcome.culprit.job, BIG_HOSTS, command, folder)


_INSIDE: Final = {
    "one fills its NIC": ("BYTES", 500, 0),
    "sends a tenth more": ("BYTES", 110, 0),
    "all send three times": ("BYTES", 300, 0),
    "all compute longer": ("SLEEP", 150_000, 0),
    "computes longer": ("COMPUTE", 150_000, 0),
    "sleeps": ("SLEEP", 150_000, 0),
    "two faults": ("SLEEP", 150_000, 0),
    "sleeps seldom": ("SLEEP", 2_000_000, 25),
    "writes and syncs": ("WRITE", 4096, 0),
    "stuck": ("STUCK", 0, 0),
    "spins": ("SPIN", 0, 0),
    "reads for ever": ("FIFO", 0, 0),
    "skips": ("SKIP", 0, 0),
    "circle": ("CIRCLE", 0, 0),
    "exit": ("EXIT", 0, 0),
    "other count": ("COUNT", 0, 0),
}
"""Fault, value and period of the causes that the program itself makes."""


@contextlib.contextmanager
def _sent(pid: int, begin: signal.Signals, end: signal.Signals | None = None) -> Iterator[None]:
    """Send the signal `begin` to a process, and `end` on exit if the process still runs."""
    os.kill(pid, begin)
    try:
        yield
    finally:
        if end is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, end)


_OUTSIDE: Final[dict[str, Callable[[Run, Path], Act]]] = {
    "none": lambda run, folder: contextlib.nullcontext(),
    "fills its NIC": lambda run, folder: contextlib.nullcontext(),
    "stops and goes on": lambda run, folder: _hosts.stopped_in_part(run.pid, 0.25, 0.5),
    "processor limit": lambda run, folder: _hosts.processor_limit(run.pid, 0.02),
    "disk limit": lambda run, folder: _hosts.disk_limit(run.pid, folder, 100_000),
    "disk storm": lambda run, folder: _hosts.disk_storm(folder),
    "slow NIC": lambda run, folder: _hosts.slow_nic(run.namespaces, run.host, 0.15),
    "delay": lambda run, folder: _hosts.delay(run.namespaces, run.host, 20),
    "loss at a NIC": lambda run, folder: _hosts.loss(run.namespaces, run.host, 60),
    "loss at a spine": lambda run, folder: _hosts.loss(run.namespaces, "spine1", 80),
    "dead NIC": lambda run, folder: _hosts.dead_nic(run.namespaces, run.host),
    "another job": lambda run, folder: run.big(folder),
    "freeze": lambda run, folder: _hosts.frozen(run.pid),
    "stop": lambda run, folder: _sent(run.pid, signal.SIGSTOP, signal.SIGCONT),
    "kill": lambda run, folder: _sent(run.pid, signal.SIGKILL),
}
"""The contexts of the causes that other tools make."""


def _culprit(case: Case) -> Culprit:
    if case.cause == "another job":
        return Culprit(job=f"big-{case.name}")
    if case.cause == "loss at a spine":
        return Culprit(host="spine1")
    host = case.hosts[case.rank]
    if case.cause == "circle":
        return Culprit(case.rank, host, "", case.second_rank, case.hosts[case.second_rank])
    return Culprit(case.rank, host)
