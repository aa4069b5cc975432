"""Measures a rolling restart of the workers behind a simulated fleet.

Each worker and each stage in a separate process ends by SIGTERM, one after another, and the supervisor
restarts it. A link dies for some seconds at each restart, so that the policy must decide meanwhile. The
figures count late windows, alerts about healthy subjects, decisions without an action, and jumps of fabric
time.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.operate._up import Up
from producers.sim.control import ask, socket_path
from schemas.codec import Registry
from schemas.kafka.message import Message
from schemas.kafka.reader import TopicReader
from schemas.kafka.start import END, Start
from schemas.records import AlertKind, AlertState, ClockOffsets, ClockState, Decision
from schemas.topics import ACTIONS, ALERTS, CLOCK_OFFSETS, DECISIONS, TOPICS, Topic

FLEET: Final = "sim:16"
WORKERS: Final = 4
PARTS: Final = ("links", "policy", "sink")
"""Stages with a process of their own."""
STEADY_S, QUICK_STEADY_S = 15.0, 5.0
"""Time before the first restart, and between two."""
READY_S: Final = 40.0
FAULT: Final = "blackhole leaf1>spine1 for 3s"
PLANTED: Final = "leaf1", "spine1"
TOPICS_READ: Final = (CLOCK_OFFSETS, ALERTS, DECISIONS, ACTIONS)
NS: Final = 1e9
SIGMAS: Final = 4.0
TRUE_KINDS: Final = frozenset({AlertKind.CONTENTION, AlertKind.LATENCY, AlertKind.SIMULATION})
"""Kinds of alerts that the simulated traffic or a busy machine can cause truly."""


class Watch:
    """Counts records of the log from a moment on, without I/O of its own."""

    def __init__(self) -> None:
        self.gap_s = 0.0
        """Longest time without a new window, beyond the window's length, s."""
        self.steps: list[str] = []
        self.false_alarms: list[str] = []
        self._clocks: dict[str, ClockState] = {}
        self._windows: dict[str, tuple[int, int]] = {}
        """Newest window and its append time, by shard."""
        self._decisions: dict[str, Decision] = {}
        self._reported: set[str] = set()

    def take(self, message: Message, record: Any) -> None:
        """Take a message of `fabric.clock.offsets`, alerts, decisions or actions."""
        if message.topic == CLOCK_OFFSETS.name:
            self._take_window(record, message.append_ns)
            for clock in record["clocks"]:
                self._take_clock(clock)
        elif message.topic == ALERTS.name:
            self._take_alert(record)
        elif message.topic == DECISIONS.name:
            self._decisions[record["decision_id"]] = record
        elif message.topic == ACTIONS.name:
            self._reported.add(record["decision_id"])

    def _take_window(self, record: ClockOffsets, append_ns: int) -> None:
        window, at_ns = self._windows.get(record["shard"], (record["window"], append_ns))
        if record["window"] > window:
            length_ns = record["window_end_ns"] - record["window_start_ns"]
            self.gap_s = max(self.gap_s, (append_ns - at_ns - length_ns) / NS)
        if record["window"] > window or record["shard"] not in self._windows:
            self._windows[record["shard"]] = record["window"], append_ns

    def _take_clock(self, clock: ClockState) -> None:
        """Compare a clock with its line in the previous window; a difference beyond both bounds is a step."""
        before = self._clocks.get(clock["clock"])
        self._clocks[clock["clock"]] = clock
        if before is None or clock["at_ns"] <= before["at_ns"]:
            return
        passed_s = (clock["at_ns"] - before["at_ns"]) / NS
        moved_ns = clock["offset_ns"] - before["offset_ns"] - before["drift_ppb"] * passed_s
        sigma_ppb = before["drift_sigma_ppb"] + clock["drift_sigma_ppb"]
        bound_ns = before["bound_ns"] + clock["bound_ns"] + SIGMAS * sigma_ppb * passed_s
        if abs(moved_ns) > bound_ns:
            self.steps.append(f"{clock['clock']} {moved_ns:.0f} ns, bound {bound_ns:.0f}")

    def _take_alert(self, alert: Any) -> None:
        names = " ".join([alert["subject"], *alert["links"], *alert["grouped"]])
        is_true = alert["kind"] in TRUE_KINDS or all(name in names for name in PLANTED)
        if alert["state"] == AlertState.RAISED and alert["update"] == 0 and not is_true:
            self.false_alarms.append(f"{alert['kind']} {alert['subject']}")

    @property
    def decisions(self) -> int:
        """Number of decisions."""
        return len(self._decisions)

    def lost_decisions(self) -> list[str]:
        """Return the decisions for which no actuator published a report."""
        return sorted(self._decisions.keys() - self._reported)


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Restart all workers once and return the figures, in two to four minutes."""
    arguments = ("--fleet", FLEET, "--workers", str(WORKERS))
    with tempfile.TemporaryDirectory(prefix="ft-restart-") as name, Up(Path(name), *arguments) as up:
        return _measure(up, progress, QUICK_STEADY_S if quick else STEADY_S)


def _measure(up: Up, progress: Progress, steady_s: float) -> dict[str, Value]:
    topics: dict[Topic[Any], Start] = dict.fromkeys(TOPICS_READ, END)
    with TopicReader.open(up.addresses["log"], topics) as reader:
        before, watch = Watch(), Watch()
        progress("restart: the fleet becomes steady")
        follow(reader, [], READY_S)
        follow(reader, [before], steady_s)
        begin_s = time.monotonic()
        restart_all(up, reader, [watch], progress, steady_s)
        return figures_of(before, watch, time.monotonic() - begin_s)


def restart_all(
    up: Up,
    reader: TopicReader,
    watches: Sequence[Watch],
    progress: Progress,
    steady_s: float,
    registry: Registry | None = None,
) -> None:
    """Restart each worker and stage, one after another, while a link is dead.

    `steady_s` is the undisturbed time between two restarts.
    """
    for name in _restarted(up.state()):
        progress(f"restart: {name}, {watches[0].gap_s:.1f} s late so far")
        ask(socket_path(up.directory), "fault", line=FAULT)
        _restart(up, name)
        end_s = time.monotonic() + READY_S
        while not _is_ready(up.state(), name) and time.monotonic() < end_s:
            follow(reader, watches, 0.2, registry)
        follow(reader, watches, steady_s, registry)


def _restarted(state: Mapping[str, Any]) -> list[str]:
    names = [row["name"] for row in state["children"]]
    return [name for name in names if name.startswith("worker-") or name in PARTS]


def _row(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in state["children"] if row["name"] == name)


def _is_ready(state: Mapping[str, Any], name: str) -> bool:
    return bool(_row(state, name)["state"] == "ready")


def _restart(up: Up, name: str) -> None:
    """End a process and wait until the supervisor has noticed."""
    row = _row(up.state(), name)
    os.kill(row["pid"], signal.SIGTERM)
    wait_for(lambda: _row(up.state(), name)["restarts"] != row["restarts"], READY_S, poll_s=0.05)


def follow(
    reader: TopicReader, watches: Sequence[Watch], seconds: float, registry: Registry | None = None
) -> None:
    """Pass all messages of the next `seconds` to each watch.

    `registry` has the schemas of other versions.
    """
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for message in reader.poll(0.2):
            for watch in watches:
                watch.take(message, message.decoded(TOPICS[message.topic], registry))


def figures_of(before: Watch, watch: Watch, seconds: float) -> dict[str, Value]:
    """Return the figures; `before` covers the time without a restart, for the notes."""
    lost = watch.lost_decisions()
    return {
        "rolling_restart_windows_late_s": Figure(
            watch.gap_s, note=f"{before.gap_s:.1f} s without a restart; all within {seconds:.0f} s"
        ),
        "rolling_restart_false_alarms": listed(watch.false_alarms),
        "rolling_restart_lost_decisions": Figure(float(len(lost)), note=f"of {watch.decisions} decisions"),
        "rolling_restart_clock_steps": listed(watch.steps),
    }


def listed(lines: Sequence[str]) -> Figure:
    """Return the number of lines as a figure, with the first lines as its note."""
    return Figure(float(len(lines)), note=", ".join(lines[:6]) or None)
