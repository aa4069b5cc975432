"""Plants incidents beside real MPI jobs on a running fabric, and runs `fabrictime explain` for their cause.

Each incident has a separate job, so that no incident affects the connections of the next one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fabrictime.bench._fabric import CannotRun, RunningFabric
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.workload._jobs import MpiJob, MpiProgram
from fabrictime.runtime import status
from fabrictime.testbed.jobs.mpi import enter_command

SETTINGS: Final = """
[fabric]
hosts = 6
leaves = 3
spines = 2
host_rate_bps = 8000000
fabric_rate_bps = 8000000
buffer_bytes = 60000
[probes]
peers = 5
rate_pps = 150
flow_pps = 150
[up]
act = "observe"
web = false
start_timeout_s = 300
[audit]
every_s = 0
[log]
port = 0
[history]
port = 0
"""
"""Settings with a rate, and few probes, that two processors can run beside the pipeline."""
HOSTS: Final = ("h1", "h3", "h5")
"""One host per leaf, so that all messages cross a spine."""
OTHERS: Final = ("h2", "h4")
"""The hosts of the second job, at the same leaves as the first two of HOSTS."""
PROGRAM: Final = MpiProgram("alltoall", 40_000, compute_ms=40, duration_s=600)
LOAD: Final = MpiProgram("exchange", 1_000_000, compute_ms=0, duration_s=600)
FIRST_PORT: Final = 20_000
"""Listening port of the first job; each has its own, since the kernel keeps a former job's for a minute."""
PORTS: Final = range(40_000, 40_064)
CONNECTIONS: Final = 2
"""Connections between each pair of ranks: as many as there are spines, so that all are used."""
LOAD_CONNECTIONS: Final = 6
"""Connections of the second job over one link, enough to take most of the link."""
COMMAND_S, START_S, GOOD_S, FOUND_S = 60.0, 60.0, 20.0, 40.0
POLL_S: Final = 3.0
"""Time between two calls of `fabrictime explain`, each of which uses a processor for a second."""


@dataclass(slots=True)
class Explained:
    """The answers of `fabrictime explain` after the incident was planted, in order."""

    incident: str
    answers: list[dict[str, Any]] = field(default_factory=list)
    right_after_s: float | None = None
    error: str = ""
    """The reason why the incident could not run; empty if it ran."""

    @property
    def blamed_network(self) -> bool:
        """Whether any answer blamed the network."""
        return any(answer["blames_network"] for answer in self.answers)

    @property
    def text(self) -> str:
        """The last answer in one line."""
        if not self.answers:
            return self.error or "no answer"
        last = self.answers[-1]
        return f"{last['verdict']} {last['subject']}: {last['text']}"


class JobFabric:
    """A running fabric with the pipeline, on which jobs run."""

    def __init__(self, fabric: RunningFabric, program: Path) -> None:
        self.control, self.data, self._program = fabric.control, fabric.data, program
        self._fabric = fabric.control.ask("show")
        self._started = 0

    def job(
        self,
        program: MpiProgram = PROGRAM,
        hosts: Sequence[str] = HOSTS,
        *,
        tenant: str | None = None,
        connections: int = CONNECTIONS,
    ) -> MpiJob:
        """Start a job with its own name and port."""
        port = self._next_port
        self._started += 1
        options = ["--job", f"job-{self._started}", "--connections", str(connections)]
        options += ["--port", str(port)]
        options += ["--tenant", tenant] if tenant else []
        return MpiJob(self.data, self._program, hosts, program, options)

    def command(self, *command: str) -> str:
        """Run a fabrictime command on this data directory; return its output. Raises CannotRun."""
        return _output([sys.executable, "-m", "fabrictime", *command, "--dir", str(self.data)])

    def inside(self, host: str, *command: str) -> str:
        """Run a command in the network namespace of a host; return its output. Raises CannotRun."""
        [netns] = {nic["netns"] for nic in self._fabric["nics"] if nic["host"] == host}
        return _output([*enter_command(self._fabric["pid"]), "nsenter", f"--net={netns}", *command])

    def wait_ready(self, limit_s: float) -> None:
        """Wait until all processes are ready and all clocks SYNCED. Raises CannotRun."""
        if wait_for(self._is_ready, limit_s, POLL_S) is None:
            raise CannotRun(f"fabric: not ready within {limit_s:g} s")

    def _is_ready(self) -> bool:
        states = {row["state"] for row in status.read(self.data)["children"]}
        if states != {"ready"}:
            return False
        clocks = json.loads(self.command("clock", "--json"))["clocks"]
        return bool(clocks) and all(clock["state"] == "SYNCED" for clock in clocks)

    def explain(self, job: str) -> dict[str, Any] | None:
        """Return the newest diagnosis of a job; None before the first diagnosis."""
        try:
            answer: dict[str, Any] = json.loads(self.command("explain", job, "--since", "2m", "--json"))
        except CannotRun:
            return None
        diagnosis: dict[str, Any] = answer["diagnosis"]
        return diagnosis

    def job_route(self, source: str, destination: str) -> list[str]:
        """Return the links that a running job's messages from one host to another take. Raises CannotRun."""
        [address] = {nic["address"] for nic in self._fabric["nics"] if nic["host"] == destination}
        for line in self.inside(source, "ss", "-Htn", "state", "established").splitlines():
            here, peer = line.split()[2:4]
            if peer.rpartition(":")[0] == address:
                ports = int(here.rpartition(":")[2]), int(peer.rpartition(":")[2])
                return self.control.tcp_route(source, destination, *ports)
        raise CannotRun(f"no connection from {source} to {destination}")

    @property
    def _next_port(self) -> int:
        """Listening port of the next job."""
        return FIRST_PORT + self._started % 10_000

    def set_ports(self, source: str, destination: str, link: str) -> None:
        """Choose ports so that the next job's messages between two hosts cross a link in either role."""
        port = self._next_port
        ends = {
            source: [p for p in PORTS if link not in self.control.tcp_route(source, destination, p, port)],
            destination: [
                p for p in PORTS if link not in self.control.tcp_route(source, destination, port, p)
            ],
        }
        for host, others in ends.items():
            self.set_kernel(host, "ip_local_port_range", f"{PORTS[0]} {PORTS[-1]}")
            self.set_kernel(host, "ip_local_reserved_ports", ",".join(map(str, others)))

    def set_kernel(self, host: str, name: str, value: str) -> None:
        """Set a TCP setting of a host."""
        self.inside(host, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}")

    def kernel(self, host: str, name: str) -> str:
        """Return a TCP setting of a host."""
        return " ".join(self.inside(host, "cat", f"/proc/sys/net/ipv4/{name}").split())

    def wait_good(self, job: MpiJob, limit_s: float = START_S) -> None:
        """Wait until a job has run for a while and has a diagnosis."""
        job.wait_iterations(10, limit_s)
        time.sleep(GOOD_S)
        if wait_for(lambda: self.explain(job.name), limit_s - GOOD_S, POLL_S) is None:
            raise CannotRun(f"{job.name}: no diagnosis within {limit_s:g} s")


@dataclass(frozen=True, slots=True)
class Incident:
    """A cause of a slow job, and the verdicts that name it.

    `plant` yields the subject that the verdict must name, or ''. With `before` the incident is planted before
    the job starts, otherwise while it runs. `network` is whether the network is the cause.
    """

    name: str
    verdicts: tuple[str, ...]
    plant: Callable[[JobFabric, MpiJob | None], Iterator[str]]
    network: bool
    before: bool = False
    program: MpiProgram = PROGRAM
    tenant: str | None = None

    def run(self, fabric: JobFabric) -> Explained:
        """Plant the incident and run `explain` until its answer is right, for at most `FOUND_S`.

        Without a fault, run it for all of `FOUND_S`.
        """
        explained = Explained(self.name)
        with ExitStack() as stack:
            subject = stack.enter_context(contextmanager(self.plant)(fabric, None)) if self.before else ""
            job = stack.enter_context(fabric.job(self.program, tenant=self.tenant))
            fabric.wait_good(job)
            if not self.before:
                subject = stack.enter_context(contextmanager(self.plant)(fabric, job))
            begin_s = time.monotonic()
            while time.monotonic() - begin_s < FOUND_S:
                answer = fabric.explain(job.name)
                if answer is not None:
                    explained.answers.append(answer)
                    if self.is_right(answer, subject):
                        explained.right_after_s = explained.right_after_s or time.monotonic() - begin_s
                        if self.verdicts != ("HEALTHY",):
                            break
                time.sleep(POLL_S)
        if self.verdicts == ("HEALTHY",) and explained.blamed_network:
            explained.right_after_s = None
        return explained

    def is_right(self, answer: dict[str, Any], subject: str) -> bool:
        """Return whether an answer has a right verdict and names `subject`."""
        named = {answer["subject"], *answer["subjects"], *answer["links"], *answer["jobs"]}
        return answer["verdict"] in self.verdicts and (not subject or any(subject in name for name in named))


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_S)
    if done.returncode:
        raise CannotRun(f"{' '.join(command[-4:])}: {done.stderr.strip()[-200:]}")
    return done.stdout


def _nothing(fabric: JobFabric, job: MpiJob | None) -> Iterator[str]:
    yield ""


def _fault(kind: str) -> Callable[[JobFabric, MpiJob | None], Iterator[str]]:
    def plant(fabric: JobFabric, job: MpiJob | None) -> Iterator[str]:
        link = fabric.job_route(*HOSTS[:2])[1]
        fabric.command("fabric", "fault", f"{kind} {link}")
        try:
            yield link
        finally:
            fabric.command("fabric", "clear")

    return plant


def _collision(fabric: JobFabric, job: MpiJob | None) -> Iterator[str]:
    link = fabric.job_route(*HOSTS[:2])[1]
    former = {host: fabric.kernel(host, "ip_local_port_range") for host in OTHERS}
    fabric.set_ports(*OTHERS, link)
    try:
        with fabric.job(LOAD, OTHERS, connections=LOAD_CONNECTIONS) as other:
            other.wait_iterations(1, START_S)
            yield other.name
    finally:
        for host, text in former.items():
            fabric.set_kernel(host, "ip_local_port_range", text)
            fabric.set_kernel(host, "ip_local_reserved_ports", "")


def _slow_host(fabric: JobFabric, job: MpiJob | None) -> Iterator[str]:
    """Limit a host's TCP buffers to one packet, as a wrong setting would."""
    host = HOSTS[2]
    former = {name: fabric.kernel(host, name) for name in ("tcp_rmem", "tcp_wmem")}
    for name in former:
        fabric.set_kernel(host, name, "2304 2304 2304")
    try:
        yield host
    finally:
        for name, text in former.items():
            fabric.set_kernel(host, name, text)


def _pacing(fabric: JobFabric, job: MpiJob | None) -> Iterator[str]:
    """Give the job's tenant a bandwidth slice far below its need."""
    fabric.command("config", "set", "mode=ACT", "allowed_actions=SLICE", "slice.red=250k:500k")
    try:
        yield ""
    finally:
        fabric.command(
            "config", "set", "--unset", "mode", "--unset", "slice.red", "--unset", "allowed_actions"
        )


_STRAGGLER: Final = MpiProgram("alltoall", 40_000, compute_ms=40, duration_s=600, slow_rank=2, slow_ms=80)
INCIDENTS: Final = (
    Incident("clean", ("HEALTHY",), _nothing, network=False),
    Incident("grey_link", ("GREY_LINK",), _fault("grey 10%"), network=True),
    Incident("blackhole", ("DEAD_LINK",), _fault("blackhole"), network=True),
    Incident("collision", ("CONTENTION",), _collision, network=True),
    Incident(
        "slow_host", ("SLOW_SENDER", "SLOW_RECEIVER", "PCIE_LIMIT"), _slow_host, network=False, before=True
    ),
    Incident("straggler", ("STRAGGLER",), _nothing, network=False, program=_STRAGGLER),
    Incident("own_pacing", ("OWN_PACING",), _pacing, network=False, tenant="red"),
)
