"""Fixtures: a simulated host for clocks, and a real log, flow endpoints and the service process for
actions.

The simulated host has oscillators, a system clock under NTP, PTP clocks and their published records. Its
times are true ns, as fabric time is: an error is a difference to `now_ns`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actuators.clock.host_clock import HostClock, PageParameters
from actuators.clock.timescale import CrossTimestamp
from tests.actuators.desk import Desk
from tests.embedded_log import EmbeddedLog, log_fixture, read_fixture  # noqa: F401  pytest finds fixtures

S = 1_000_000_000
EPOCH = 1_760_000_000 * S
RAW_AT_EPOCH = 5_000 * S


@dataclass
class FakeClock:
    """Reads true + offset_ns + drift_ppb since EPOCH, with changes of its rate and steps."""

    offset_ns: float = 0
    drift_ppb: float = 0.0
    rates: list[tuple[int, float]] = field(default_factory=list)
    """(true time, ppb) from which the rate differs by this much."""
    steps: list[tuple[int, int]] = field(default_factory=list)

    def reading(self, true_ns: int) -> int:
        t = true_ns - EPOCH
        extra = sum(ppb * 1e-9 * (true_ns - at) for at, ppb in self.rates if true_ns > at)
        stepped = sum(step for at, step in self.steps if true_ns >= at)
        return true_ns + round(self.offset_ns) + round(self.drift_ppb * 1e-9 * t + extra) + stepped

    def rate_ppb(self, true_ns: int) -> float:
        return self.drift_ppb + sum(ppb for at, ppb in self.rates if true_ns > at)


class FakeHost:
    """A host with clocks that are read every 200 ms, and a record per second that arrives 1.3 s late."""

    def __init__(self, **given: Any) -> None:
        self.now_ns = EPOCH
        self.raw = FakeClock(RAW_AT_EPOCH - EPOCH, 12_000.0)
        self.system = FakeClock(250_000, 9_000.0)
        self.others: dict[str, FakeClock] = {}
        self.published = ["system"]
        self.states: dict[str, dict[str, Any]] = {}
        self.error_ns: Callable[[str, int], float] = lambda name, window: 0.0
        self.bound_ns = 100.0
        self.half_ns = 30.0
        self.solving = True
        self.delay_ns = 1_300_000_000
        self.clock = HostClock("h1", PageParameters(**given))
        self.contents: list[Any] = []
        self._next_window = EPOCH // S

    def of(self, name: str) -> FakeClock:
        return self.system if name == "system" else self.others[name]

    def raw_ns(self) -> int:
        return self.raw.reading(self.now_ns)

    def record(self, window: int) -> dict[str, Any]:
        middle_ns = window * S + S // 2
        clocks = []
        for name in self.published:
            clock = self.of(name)
            at_ns = clock.reading(middle_ns)
            rate = 1 + clock.rate_ppb(middle_ns) * 1e-9
            clocks.append(
                {
                    "clock": f"h1/{name}",
                    "at_ns": at_ns,
                    "offset_ns": middle_ns - at_ns + round(self.error_ns(name, window)),
                    "offset_fraction_ns": 0.0,
                    "drift_ppb": (1 / rate - 1) * 1e9,
                    "bound_ns": self.bound_ns,
                    "state": "SYNCED",
                    "drift_sigma_ppb": 5.0,
                    "event": "NONE",
                    **self.states.get(name, {}),
                }
            )
        return {
            "shard": "fabric",
            "window": window,
            "part": 0,
            "parts": 1,
            "domain": "a",
            "window_start_ns": window * S,
            "window_end_ns": window * S + S,
            "log_offset_ns": 0,
            "solved_ns": 0,
            "clocks": clocks,
        }

    def step(self) -> Any:
        """Advance by 200 ms and return the page's content."""
        self.now_ns += 200_000_000
        while self.solving and (self._next_window + 1) * S + self.delay_ns - S <= self.now_ns:
            self.clock.take_offsets(self.record(self._next_window), self.raw_ns())
            self._next_window += 1
        if not self.solving:
            self._next_window = self.now_ns // S
        self.clock.take_boot_time(CrossTimestamp(self.raw_ns(), self.now_ns, self.half_ns))
        for name in ["system", *self.others]:
            cross_timestamp = CrossTimestamp(self.raw_ns(), self.of(name).reading(self.now_ns), self.half_ns)
            self.clock.add_cross_timestamp(name, cross_timestamp)
        self.contents.append(self.clock.content(self.raw_ns()))
        self.clock.written()
        return self.contents[-1]

    def run(self, seconds: float) -> Any:
        for _ in range(round(seconds * 5)):
            content = self.step()
        return content

    def fabric_error_ns(self, content: Any, ahead_ns: int = 0) -> float:
        """The error of the page's fabric time, and its bound, `ahead_ns` from now."""
        whole, rest = content.slewed.fabric_ns(self.raw.reading(self.now_ns + ahead_ns))
        return whole - (self.now_ns + ahead_ns) + rest

    def row_error_ns(self, row: Any, name: str, away_ns: int = 0) -> float:
        """The conversion error of a stamp of clock `name`, given `away_ns` from now."""
        stamp_ns = self.of(name).reading(self.now_ns + away_ns)
        converted = stamp_ns - (self.now_ns + away_ns) + row.offset_ns + row.offset_fraction_ns
        return converted + row.drift_ppb * 1e-9 * (stamp_ns - row.at_ns)


@pytest.fixture
def sim() -> SimpleNamespace:
    return SimpleNamespace(Clock=FakeClock, Host=FakeHost, S=S, EPOCH=EPOCH, RAW_AT_EPOCH=RAW_AT_EPOCH)


_ACT = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
from actuators.flows.actuator import main
from actuators.settings import ActuatorSettings, HostSettings
settings, hosts = json.loads(sys.argv[1])
sys.exit(main(ActuatorSettings(**settings), [HostSettings(**host) for host in hosts], simulated=True))
"""


class Owner:
    """A flow endpoint that reconnects and carries out commands. Commands wait in `waiting` while `holding`;
    commands in `silent` are carried out but never answered.
    """

    def __init__(self, path: Path, host: str, flows: dict[str, int], how: str = "SOCKET") -> None:
        self.path, self.host, self.how = path, host, how
        self.flows, self.rates = dict(flows), {}
        self.done: list[tuple[str, str, int]] = []
        self.waiting: list[tuple[str, ...]] = []
        self.errors: list[str] = []
        self.holding = self.silent = False
        self._connection: socket.socket | None = None
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(0.02):
            try:
                connection = socket.socket(socket.AF_UNIX)
                with connection:
                    connection.connect(str(self.path))
                    self._connection = connection
                    for key in self.flows:
                        self.send_line(f"FLOW {key} {self.flows[key]} MOVE,PACE {self.host}")
                    with connection.makefile("r") as lines:
                        for line in lines:
                            self._heard(line.split())
            except OSError:
                continue

    def send_line(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(line.encode() + b"\n")

    def _heard(self, statuses_received: list[str]) -> None:
        if statuses_received[0] == "ERROR":
            self.errors.append(" ".join(statuses_received))
            return
        with self._lock:
            verb, number, key, value = (
                statuses_received[0],
                statuses_received[1],
                statuses_received[2],
                int(statuses_received[3]),
            )
            if self.holding:
                self.waiting.append(tuple(statuses_received))
                return
            self.done.append((verb, key, value))
            (self.flows if verb == "MOVE" else self.rates)[key] = value
        if not self.silent:
            self.send_line(f"DONE {number} {value} {self.how if verb == 'MOVE' else 'PACING'}")

    def answer(self) -> None:
        """Carry out and answer the waiting commands."""
        self.holding = False
        while self.waiting:
            self._heard(list(self.waiting.pop(0)))

    @property
    def moves(self) -> list[tuple[str, int]]:
        return [(key, value) for verb, key, value in self.done if verb == "MOVE"]

    def close(self) -> None:
        self._ending.set()
        with contextlib.suppress(OSError, AttributeError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)


class ActProcess:
    """The flow actuator in a process of its own."""

    def __init__(self, settings: dict[str, Any], hosts: list[dict[str, Any]]) -> None:
        self.settings = settings
        self.arguments = [sys.executable, "-c", _ACT, json.dumps([settings, hosts])]
        self.start()

    def start(self) -> None:
        root = str(Path(__file__).parents[2])
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                self.arguments, cwd=root, env=os.environ | {"PYTHONPATH": root}, stderr=output
            )

    @property
    def _output(self) -> Path:
        return self.control.with_name("act.log")

    @property
    def output(self) -> str:
        return self._output.read_text()

    def end(self, number: int = signal.SIGTERM, timeout_s: float = 20) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(timeout=timeout_s)
        return self.process.returncode, self.output

    @property
    def control(self) -> Path:
        return Path(self.settings["control_socket"])

    @property
    def store(self) -> str:
        """The content of its journal."""
        path = self.control.with_name("journal.jsonl")
        return path.read_text() if path.exists() else ""


@pytest.fixture
def start_act(log: EmbeddedLog, tmp_path: Path) -> Iterator[Callable[..., ActProcess]]:
    made: list[ActProcess] = []

    def start(*hosts: str, netns: str | None = None, **settings: Any) -> ActProcess:
        given = {
            "kafka": {"bootstrap": log.bootstrap},
            "control_socket": str(tmp_path / "c.sock"),
            "settle_ms": 3000,
        }
        rows = [
            {"host": host, "clock_file": str(tmp_path / "clock" / host), "netns": netns} for host in hosts
        ]
        made.append(ActProcess({**given, **settings}, rows))
        return made[-1]

    yield start
    for process in made:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)
        sys.stderr.write(process.output)  # shown if the test fails


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    made: list[Owner] = []

    def start(host: str, how: str = "SOCKET", **flows: int) -> Owner:
        keys = {key.replace("_", ":"): port for key, port in flows.items()}
        made.append(Owner(tmp_path / "c.sock", host, keys, how))
        return made[-1]

    yield start
    for owner in made:
        owner.close()


@pytest.fixture
def desk(tmp_path):
    with contextlib.closing(Desk(tmp_path)) as made:
        yield made
