"""Runs jobs on a testbed: all-to-all, ring all-reduce, incast and request-response, one process each.

A job's iterations can be awaited and its connections moved. JobResult has the received bytes of each
connection over time. Every job ends after its time or its iterations, with the testbed, or with its starter.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import zlib
from array import array
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from fabrictime.testbed.fabric.fabric import FabricError, FabricNic
from fabrictime.testbed.jobs.plan import JobPlan, Kind, make_job_plan
from fabrictime.testbed.processes.fork_server import Worker
from fabrictime.testbed.processes.workers import Workers, check_fields

_START_TIMEOUT_S = 30.0
_END_GRACE_S = 10.0
_SIZE_UNIT = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_CONNECTIONS_MAX = 4096
_CELLS_MAX = 20_000_000
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "connections": (1, 64),
    "size_bytes": (1, 1 << 40),
    "duration_s": (0.01, 86_400),
    "iterations": (0, 10**9),
    "gap_s": (0, 60),
    "slot_s": (0, 60),
    "seed": (0, 2**63 - 1),
    "dport": (0, 65535),
    "dscp": (0, 63),
}
_MIN_HOSTS = {"alltoall": 2, "allreduce": 2, "incast": 2, "rpc": 2}
_LISTED_ITERATIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The parameters of one job.

    `hosts`: its ranks in order, as hosts or NICs, () for all hosts; with incast the first one receives, with
    rpc the first sends requests to the second. `connections`: number per pair, each with its own source port.
    `size_bytes`: with alltoall and allreduce the input of each rank per iteration, with incast and rpc the
    payload of each connection (rpc: in each direction). `gap_s`: pause between two iterations. `iterations`:
    0 for as many as fit in `duration_s`. `slot_s`: width of the slots in which received bytes are counted, 0
    to count none. `seed`: draws the source ports and the listeners' port, unless `sports` (by connection) and
    `dport` are given. `dscp`: the traffic class of its packets. `check`: whether to compare every received
    byte.
    """

    kind: Kind
    hosts: tuple[str, ...] = ()
    connections: int = 4
    size_bytes: int = 2_000_000
    duration_s: float = 20.0
    iterations: int = 0
    gap_s: float = 0.0
    slot_s: float = 0.01
    congestion: str = "cubic"
    seed: int = 0
    sports: tuple[int, ...] | None = None
    dport: int = 0
    dscp: int = 0
    check: bool = False
    job: str | None = None
    tenant: str | None = None

    def check_values(self, ranks: int) -> Self:
        """Check the spec and return it. Raises ValueError with the field and its accepted values."""
        if self.kind not in _MIN_HOSTS:
            raise ValueError(f"kind {self.kind!r}: expected {', '.join(_MIN_HOSTS)}")
        if ranks < 2 or (self.kind == "rpc" and ranks != 2):
            expected = "2" if self.kind == "rpc" else "2 at least"
            raise ValueError(f"hosts: {ranks} of a job {self.kind}, expected {expected}")
        check_fields(self, _BOUNDS)
        self._check_plan(make_job_plan(self.kind, ranks, self.connections, self.size_bytes))
        return self

    def _check_plan(self, plan: JobPlan) -> None:
        if len(plan.routes) > _CONNECTIONS_MAX:
            raise ValueError(f"{len(plan.routes)} connections: expected at most {_CONNECTIONS_MAX}")
        if self.slot_s and len(plan.ends) * self.duration_s / self.slot_s > _CELLS_MAX:
            raise ValueError(
                f"slot_s {self.slot_s:g}: {len(plan.ends)} streams for {self.duration_s:g} s, "
                f"expected at most {_CELLS_MAX} slots in all"
            )
        if self.sports is not None and len(self.sports) != len(plan.routes):
            raise ValueError(f"sports: {len(self.sports)}, expected {len(plan.routes)}")
        for port in self.sports or ():
            if not 1 <= port <= 65535:
                raise ValueError(f"sports: {port!r}, expected 1 to 65535")


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection of a job at the job's start; `flow` is its permanent identity, without host and boot."""

    number: int
    source: str
    destination: str
    source_port: int
    peer_port: int
    flow: str


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration, in CLOCK_MONOTONIC. `slowest`: the connection that took longest, for `slowest_ns`."""

    number: int
    begin_ns: int
    end_ns: int
    slowest: int
    slowest_ns: int

    @property
    def duration_s(self) -> float:
        """Duration of the iteration, s."""
        return (self.end_ns - self.begin_ns) / 1e9


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job.

    Lists are by stream: one per connection, except for rpc, where stream 2c carries requests and 2c + 1
    answers. `slots[s][i]` has the bytes of stream s received in [begin_monotonic_ns + i * slot_ns, +
    slot_ns); a stream's list ends with its last byte. `moves` has connection, from_port, to_port, asked_ns,
    went_on_ns. The wall clock was `begin_wall_ns` when the monotonic clock was `begin_monotonic_ns`.
    """

    spec: JobSpec
    connections: list[Connection]
    iterations: list[Iteration]
    iteration_bytes: int
    elapsed_s: float
    begin_monotonic_ns: int
    begin_wall_ns: int
    received_bytes: list[int]
    slot_ns: int
    slots: list[array[int]]
    moves: list[dict[str, int]]
    lost_connections: int
    retransmits: int
    spoilt_bytes: int
    refused: list[str]
    cpu_s: float
    cpu_user_s: float

    @property
    def goodput_bps(self) -> float:
        """Goodput of all ranks together, bit/s, over complete iterations and pauses; 0 without any."""
        if not self.iterations:
            return 0.0
        took_ns = self.iterations[-1].end_ns - self.iterations[0].begin_ns
        return len(self.iterations) * self.iteration_bytes * 8e9 / took_ns

    def wall_ns(self, monotonic_ns: int) -> int:
        """Return the wall-clock time, ns since the Unix epoch, of a CLOCK_MONOTONIC time."""
        return self.begin_wall_ns + monotonic_ns - self.begin_monotonic_ns


class Job:
    """A running job: read its `iterations`, wait for its end with `wait`, or end it early with `stop`."""

    def __init__(self, number: int, spec: JobSpec, worker: Worker, started: dict[str, Any]) -> None:
        self.number = number
        self.spec = spec
        self.connections = [Connection(**one) for one in started["connections"]]
        self.iteration_bytes: int = started["iteration_bytes"]
        self.dport: int = started["dport"]
        self._started = started
        self._worker = worker
        self._iterations: list[Iteration] = []
        self._finished = 0
        self._end: dict[str, Any] | None = None
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._listen, name=f"job {number}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the job is still running."""
        return not self._over

    @property
    def finished(self) -> int:
        """The number of iterations that have ended."""
        return self._finished

    def iterations(self, since: int = 0) -> list[Iteration]:
        """Return the iterations that have ended, from number `since` on."""
        with self._changed:
            return self._iterations[since:]

    def wait_iterations(self, count: int, timeout_s: float) -> list[Iteration]:
        """Wait until `count` iterations have ended; return all that have ended.

        Raises FabricError if the job ends earlier, TimeoutError after `timeout_s`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._finished >= count or self._over, timeout_s):
                raise TimeoutError(
                    f"job {self.number}: {self._finished} of {count} iterations in {timeout_s:g} s"
                )
            if self._finished < count:
                raise FabricError(f"job {self.number} ended after {self._finished} of {count} iterations")
            return list(self._iterations)

    def wait_until_over(self, timeout_s: float) -> bool:
        """Wait until the job has ended, for at most `timeout_s`; return whether it has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._over, timeout_s)

    def move(self, connection: int, source_port: int) -> None:
        """Move a connection to another source port, as an actuator would."""
        self._order({"move": [connection, source_port]})

    def pace(self, connection: int, rate_bps: int) -> None:
        """Limit the rate of a connection; 0 removes the limit."""
        self._order({"pace": [connection, rate_bps]})

    def stop(self) -> JobResult:
        """End the job now and return its result."""
        self.hang_up()
        return self.wait()

    def hang_up(self) -> None:
        """Request the job to end, without waiting for its end."""
        self._worker.hang_up()

    def wait(self, timeout_s: float | None = None) -> JobResult:
        """Wait for the job's end and return its result. Raises FabricError if it failed or still runs."""
        self._thread.join(self.spec.duration_s + _END_GRACE_S if timeout_s is None else timeout_s)
        end = self._end
        late = self._thread.is_alive()
        self.kill()
        if end is None or "error" in end:
            why = "did not end" if late else (end or {}).get("error", "ended without a result")
            raise FabricError(f"job {self.number}: {why}")
        slots = []
        for packed in end["slots"]:
            text = array("I")
            if packed:
                text.frombytes(zlib.decompress(base64.b64decode(packed)))
            slots.append(text)
        read_keys = {"ended", "elapsed_ns", "slots"}
        return JobResult(
            spec=self.spec,
            connections=self.connections,
            iterations=list(self._iterations),
            iteration_bytes=self.iteration_bytes,
            elapsed_s=end["elapsed_ns"] / 1e9,
            slots=slots,
            **{key: value for key, value in end.items() if key not in read_keys},
        )

    def kill(self) -> None:
        """Kill the job's process, without a result."""
        self._worker.end()
        self._thread.join(5)
        self._worker.stdout.close()

    def _order(self, order: dict[str, Any]) -> None:
        try:
            self._worker.stdin.write(json.dumps(order) + "\n")
            self._worker.stdin.flush()
        except (OSError, ValueError):
            raise FabricError(f"job {self.number}: it has ended") from None

    def _listen(self) -> None:
        """Process the worker's output until it ends; runs in its own thread."""
        while line := self._worker.stdout.readline():
            lines = json.loads(line)
            with self._changed:
                for values in lines.get("iterations", ()):
                    if len(self._iterations) < _LISTED_ITERATIONS:
                        self._iterations.append(Iteration(self._finished, *values))
                    self._finished += 1
                if "ended" in lines or "error" in lines:
                    self._end = lines
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()


class Jobs(Workers[Job]):
    """Starts jobs on one testbed."""

    def nics(self, spec: JobSpec) -> list[str]:
        """Return the NIC of each rank. Raises FabricError for an unknown host, ValueError for a bad spec."""
        return [nic.nic for nic in self._ranks(spec)]

    def plan(self, spec: JobSpec) -> JobPlan:
        """Return the planned traffic of a job. Raises ValueError, and FabricError for an unknown host."""
        ranks = self._ranks(spec)
        spec.check_values(len(ranks))
        return make_job_plan(spec.kind, len(ranks), spec.connections, spec.size_bytes)

    def start(self, spec: JobSpec) -> Job:
        """Start a job; return it once it is connected. Raises ValueError for a bad spec, else FabricError."""
        ranks = self._ranks(spec)
        spec.check_values(len(ranks))
        order = asdict(spec)
        del order["hosts"]
        order |= {
            "ranks": [{"host": nic.host, "netns": nic.netns, "address": nic.address} for nic in ranks],
            "job": spec.job or f"{spec.kind}-{os.getpid()}-{time.monotonic_ns() // 1_000_000}",
        }
        return self._begin(
            "job",
            f"job {spec.kind}",
            order,
            _START_TIMEOUT_S,
            lambda number, worker, started: Job(number, spec, worker, started),
        )

    def _ranks(self, spec: JobSpec) -> list[FabricNic]:
        names = spec.hosts or tuple(dict.fromkeys(nic.host for nic in self._fabric.nics()))
        ranks = [self._fabric.nic(name) for name in names]
        if len({nic.nic for nic in ranks}) != len(ranks):
            raise ValueError(f"hosts {', '.join(names)}: expected each once")
        return ranks


def parse_size(text: str) -> int:
    """Return a size such as `2mb`, `256kib` or `4096` in bytes. Raises ValueError."""
    number = text.strip().lower()
    unit = number.lstrip("0123456789.")
    try:
        return round(float(number[: len(number) - len(unit)]) * _SIZE_UNIT[unit.strip()])
    except (KeyError, ValueError):
        raise ValueError(f"size {text!r}: expected a number and kb, mb, kib or mib, as in 2mb") from None
