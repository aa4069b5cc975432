"""The actuator without a log, with real endpoint sockets."""

from __future__ import annotations

import selectors
import socket
import time

from actuators.effectors.endpoints import FlowEndpoints
from actuators.flows.applier import Applier
from schemas import codec
from schemas.topics import ACTIONS, CONFIG

S = 1_000_000_000
EVERY = ["REROUTE", "RESTORE", "PACE", "UNPACE", "SLICE"]
KEY, FLOW = "sock:7", "h1/b/sock:7"


def decision(seq=0, epoch=1, to_path=50_001, lasts_s=60.0, **fields):
    now_ns = time.time_ns()
    return {
        "decision_id": f"s0/{epoch}/{seq}",
        "shard": "s0",
        "epoch": epoch,
        "seq": seq,
        "at_ns": now_ns,
        "host": "h1",
        "action": "REROUTE",
        "flow_id": FLOW,
        "from_path": None,
        "to_path": to_path,
        "expires_at_ns": now_ns + round(lasts_s * S),
        "reason": {"kind": "DOWN", "subject": "x", "seq": 1, "window_id": None},
        "config_version": 1,
        "signature": b"",
        "text": "",
        **fields,
    }


def config(host="*", version=1, mode="ACT", **fields):
    record = {"host": host, "version": version, "at_ns": 0, "by": "t", "mode": mode, **fields}
    return {"allowed_actions": EVERY, "max_actions_per_s": 1_000_000, **record}


def configs(*records):
    return {each["host"]: codec.decode(codec.encode(CONFIG.record, each), CONFIG.record) for each in records}


class Desk:
    """The actuator without a log: real endpoint sockets, one applier, and every report."""

    def __init__(self, folder, records=None, simulated_time=None, **more):
        self.path = folder / "c.sock"
        self.selector = selectors.DefaultSelector()
        take_time = None if simulated_time is None else simulated_time.take
        self.clock_ns = simulated_time or time.monotonic_ns
        self.endpoints = FlowEndpoints(
            self.path, ["h1"], self.selector, self.clock_ns, 300_000_000, take_time
        )
        self.reports, self.programs, self.now_ns = [], [], None
        self.it = Applier("h1", self.endpoints.of("h1"), self._report, self._now, time.monotonic_ns, **more)
        self.endpoints.set_listener("h1", self.it)
        self.it.take_config(configs(config()) if records is None else records)

    def _now(self):
        if self.now_ns is None and self.clock_ns is not time.monotonic_ns:
            return self.clock_ns()
        return time.time_ns() if self.now_ns is None else self.now_ns

    def _report(self, record, token):
        self.reports.append(codec.decode(codec.encode(ACTIONS.record, record), ACTIONS.record))

    def until(self, done, timeout_s=20.0):
        end_s = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < end_s, f"not in {timeout_s} s"
            for key, events in self.selector.select(0.01):
                key.data(events)
            self.endpoints.tick()
            self.it.tick()

    def connect(self, *lines):
        program = socket.socket(socket.AF_UNIX)
        self.programs.append(program)
        program.connect(str(self.path))
        program.settimeout(5)
        for line in lines:
            program.sendall(line.encode() + b"\n")
        return program

    def own(self, *lines):
        """A program that has announced its flows."""
        before = self.endpoints.flows()
        program = self.connect(*lines)
        self.until(lambda: self.endpoints.flows() == before + len(lines))
        return program

    def close(self):
        for program in self.programs:
            program.close()
        self.endpoints.close()
        self.selector.close()

    @property
    def outcomes(self):
        return [(each["decision_id"], each["outcome"]) for each in self.reports]


def heard(program):
    return program.recv(65_536).decode().splitlines()
