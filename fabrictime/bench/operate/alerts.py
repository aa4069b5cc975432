"""Measures whether alerts reach a receiver while the notifier is killed at random moments.

Alerts are raised and cleared on a real embedded log. The notifier runs as a separate process and is killed
with SIGKILL, after a random time or right at a request, before the receiver has answered. The receiver is
down for a part of the time. An alert is lost if the receiver does not have its last state at the end. A
repeat is a notification that the receiver had already accepted with the same alert and state.

Each alert is a group of its own, so that one notification reports one change.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from bisect import bisect
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._pipeline import Service, embedded_log
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.operate._receiver import HttpReceiver
from schemas.kafka.publisher import Publisher
from schemas.records import Alert, AlertKind, AlertState, Severity
from schemas.topics import ALERTS

KILLS, QUICK_KILLS = 200, 4
UP_S: Final = (0.02, 1.5)
"""Time that a notifier runs once it is ready, s: drawn evenly."""
OUTAGE_S, QUICK_OUTAGE_S = 60.0, 1.0
"""Time for which the receiver is down, s."""
CLEAR_SHARE: Final = 0.45
SETTLE_S: Final = 60.0
RAISE_EVERY_S: Final = 0.2
AT_REQUEST_SHARE: Final = 0.5
"""Share of the kills that strike while a request is under way."""
SEED: Final = 42


@dataclass(slots=True)
class _Source:
    """Publishes alerts, and keeps the last state of each alert."""

    publisher: Publisher
    draw: random.Random
    open: list[Alert] = field(default_factory=list)
    states: dict[str, AlertState] = field(default_factory=dict)
    published_s: dict[tuple[str, str], float] = field(default_factory=dict)
    number: int = 0

    def step(self) -> None:
        """Raise or clear one alert, and wait until the log has it."""
        if self.open and self.draw.random() < CLEAR_SHARE:
            alert = self.open.pop(self.draw.randrange(len(self.open)))
            now_ns = time.time_ns()
            cleared: Alert = {**alert, "state": AlertState.CLEARED, "update": 1, "cleared_ns": now_ns}
            self._publish({**cleared, "updated_ns": now_ns})
            return
        self.number += 1
        alert = _alert(self.number)
        self.open.append(alert)
        self._publish(alert)

    def _publish(self, alert: Alert) -> None:
        self.publisher.publish(ALERTS, alert["alert_id"], alert)
        self.publisher.flush(10)
        self.states[alert["alert_id"]] = alert["state"]
        self.published_s[alert["alert_id"], _status(alert["state"])] = time.monotonic()


def _status(state: AlertState) -> str:
    return "resolved" if state == AlertState.CLEARED else "firing"


def _alert(number: int) -> Alert:
    now_ns = time.time_ns()
    subject = f"leaf{number}:p1<>spine1:p{number}"
    return {
        "alert_id": f"LINK_DOWN:{subject}:{now_ns}",
        "subject": subject,
        "kind": AlertKind.LINK_DOWN,
        "state": AlertState.RAISED,
        "severity": Severity.CRITICAL,
        "shard": f"s{number}",
        "update": 0,
        "raised_ns": now_ns,
        "updated_ns": now_ns,
        "cleared_ns": None,
        "text": f"{subject} is down",
        "links": [subject],
        "nics": [],
        "jobs": [],
        "grouped": [],
        "evidence": [],
    }


class _Publishing(threading.Thread):
    """Publishes alerts at even intervals until it is stopped."""

    def __init__(self, source: _Source) -> None:
        super().__init__(daemon=True)
        self.source, self._stop_event = source, threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        """Publish alerts at even intervals until `end`."""
        try:
            while not self._stop_event.wait(RAISE_EVERY_S):
                self.source.step()
        except Exception as error:  # noqa: BLE001 - raised again by `end`
            self.error = error

    def end(self) -> None:
        """Stop the thread; raise the exception that ended it, if any."""
        self._stop_event.set()
        self.join()
        if self.error is not None:
            raise self.error


class _Notifier:
    """The notifier's process; with `kill_at_request` the next request at a receiver kills it."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._settings = {
            "kafka": {"bootstrap": bootstrap},
            "group_wait_s": 0,
            "group_interval_s": 0,
            "max_per_minute": 100_000,
            "retry_max_s": 0.5,
        }
        self._folder = folder
        self.receivers: dict[str, dict[str, object]] = {}
        self.kills_s: list[float] = []
        """Times of the kills."""
        self.kill_at_request = False
        self._service: Service | None = None
        self._lock = threading.Lock()
        self.killed = threading.Event()

    def start(self) -> None:
        """Start the process, and wait until it is ready."""
        self.killed.clear()
        settings = {**self._settings, "receivers": self.receivers}
        started = Service("actuators.notify", settings, self._folder)
        with self._lock:
            self._service = started
        try:
            started.wait_ready()
        except RuntimeError:
            if not self.killed.is_set():
                raise

    def on_request(self) -> None:
        """Kill the process if `kill_at_request` is set."""
        if self.kill_at_request:
            self.kill_at_request = False
            self.kill()

    def kill(self) -> None:
        """Kill the process."""
        with self._lock:
            if self._service is not None and not self.killed.is_set():
                self._service.process.kill()
                self.killed.set()
                self.kills_s.append(time.monotonic())

    @property
    def kills(self) -> int:
        """Number of kills so far."""
        return len(self.kills_s)

    def stop(self) -> None:
        """Collect the exit code; end the process if it lives."""
        with self._lock:
            started, self._service = self._service, None
        if started is not None:
            started.stop()


def _run_killed(notifier: _Notifier, draw: random.Random) -> None:
    """Start the notifier and kill it, at a request or after a random time."""
    notifier.kill_at_request = draw.random() < AT_REQUEST_SHARE
    try:
        notifier.start()
        notifier.killed.wait(draw.uniform(*UP_S))
        notifier.kill_at_request = False
        notifier.kill()
    finally:
        notifier.stop()


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure for one run; return the figures by key."""
    kills = QUICK_KILLS if quick else KILLS
    draw = random.Random(SEED)  # noqa: S311 - moments of kills, no secret
    with tempfile.TemporaryDirectory(prefix="ft-alerts-") as name:
        folder = Path(name)
        with embedded_log(folder, partitions=4) as bootstrap:
            notifier = _Notifier(bootstrap, folder)
            with HttpReceiver(notifier.on_request) as receiver:
                notifier.receivers = {"people": {"type": "webhook", "url": f"{receiver.url}/hook"}}
                source = _Source(Publisher(bootstrap), draw)
                publishing = _Publishing(source)
                notifier.start()
                notifier.stop()  # it has committed its first positions: what comes later is not to be lost
                publishing.start()
                _kill_all(progress, notifier, receiver, kills, QUICK_OUTAGE_S if quick else OUTAGE_S, draw)
                publishing.end()
                _settle(notifier, receiver, source)
                return _figures(progress, notifier, receiver, source)


def _kill_all(
    progress: Progress,
    notifier: _Notifier,
    receiver: HttpReceiver,
    kills: int,
    outage_s: float,
    draw: random.Random,
) -> None:
    """Kill the notifier `kills` times, including a period halfway in which the receiver is down."""
    up_s = 0.0
    while notifier.kills < kills:
        if up_s == 0 and notifier.kills >= kills // 2:
            receiver.down()
            up_s = time.monotonic() + outage_s
            progress(f"{notifier.kills} kills, receiver down for {outage_s:g} s")
        if receiver.is_down and time.monotonic() >= up_s:
            receiver.up()
            progress(f"{notifier.kills} kills, receiver up again")
        _run_killed(notifier, draw)
        if notifier.kills % 20 == 0:
            progress(f"{notifier.kills} kills, {len(receiver.received)} notifications")
    if receiver.is_down:
        time.sleep(max(0.0, up_s - time.monotonic()))
        receiver.up()


def _settle(notifier: _Notifier, receiver: HttpReceiver, source: _Source) -> None:
    """Run the notifier without kills until the receiver has every last state, at most `SETTLE_S`."""
    notifier.start()
    try:
        wait_for(lambda: not _lost(receiver, source), SETTLE_S)
    finally:
        notifier.stop()


def _changes(receiver: HttpReceiver) -> list[tuple[str, str, float]]:
    """Return (alert, state, time) of each accepted notification."""
    return [
        (row["annotations"]["alert_id"], row["status"], request.at_s)
        for request in list(receiver.received)
        for row in request.content["alerts"]
    ]


def _lost(receiver: HttpReceiver, source: _Source) -> set[str]:
    """Return the alerts whose last state the receiver does not have."""
    accepted = {(name, status) for name, status, _ in _changes(receiver)}
    return {name for name, state in source.states.items() if (name, _status(state)) not in accepted}


def _figures(
    progress: Progress, notifier: _Notifier, receiver: HttpReceiver, source: _Source
) -> dict[str, Value]:
    changes = _changes(receiver)
    first_s: dict[tuple[str, str], float] = {}
    after_kill: Counter[int] = Counter()
    for name, status, at_s in changes:
        if (name, status) in first_s:
            after_kill[bisect(notifier.kills_s, at_s)] += 1
        first_s.setdefault((name, status), at_s)
    repeats = after_kill.total()
    delays = [at_s - source.published_s[key] for key, at_s in first_s.items() if key in source.published_s]
    lost = _lost(receiver, source)
    text = f"{len(source.states)} alerts, {len(changes)} notifications, {repeats} repeats, {receiver.refused}"
    progress(f"{text} refused; lost: {sorted(lost)[:3]}")
    return {
        "alert_delivery_lost": Figure(len(lost), note=f"of {len(source.states)} alerts"),
        "alert_repeats_per_kill": Figure(
            max(after_kill.values(), default=0),
            note=f"after the worst kill; {repeats} repeats in {notifier.kills} kills",
        ),
        "alert_notifier_kills": Figure(notifier.kills),
        "alert_delivery_s_p50": Figure(float(np.median(delays)) if delays else float("nan"), unit="s"),
    }
