"""The service that drains and resumes nodes: reads the log, and acts at once on a verdict.

The operator decides; the effector only transmits. Nothing is stored in files: after a kill, the successor
reads the log and queries the scheduler. One process acts at a time; a lock ensures this on one machine.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from actuators.effectors.kubernetes import Kubernetes
from actuators.effectors.node_base import NodeEffector, NodeError
from actuators.effectors.slurm import Slurm
from actuators.nodes.actuator import Done, NodeActuator
from actuators.nodes.caps import NS_PER_S
from actuators.nodes.metrics import DrainMetrics
from actuators.nodes.operator import DrainOperator, OperatorSettings
from actuators.settings import ActuatorSettings, NodeSettings
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.publisher import Publisher
from schemas.kafka.reader import BEGINNING, Start, TopicReader, back
from schemas.records import ActionReport, Repair
from schemas.service_notifier import ServiceNotifier
from schemas.stop_request import StopRequest
from schemas.topics import ACTIONS, ALERTS, AUDIT, CONFIG, INVENTORY, REPAIRS, Topic

_log = logging.getLogger(__name__)

FLUSH_S: Final = 10.0
MARGIN_S: Final = 3600.0
"""Results are read from this much earlier, so that all results of a run are read if its last is."""
POLL_S: Final = 0.05
FIRST_RETRY_S, MAX_RETRY_S = 0.2, 10.0
STATUS_S: Final = 1.0
RECHECK_S: Final = 1.0
"""Time after which an obstacle to a new verdict is checked once more, s."""
EFFECTORS: Final[Mapping[str, Callable[[NodeSettings], NodeEffector]]] = {
    "slurm": lambda settings: Slurm(settings.limit_s),
    "kubernetes": lambda settings: Kubernetes(settings.kubeconfig, settings.context, settings.limit_s),
    "slinky": lambda settings: Kubernetes(
        settings.kubeconfig, settings.context, settings.limit_s, is_slinky=True
    ),
}


def effector_of(settings: NodeSettings) -> NodeEffector:
    """Return the node effector for the configured scheduler. Raises ValueError for bad settings."""
    if settings.scheduler not in EFFECTORS:
        names = "slurm, kubernetes or slinky"
        raise InputError(f"scheduler {settings.scheduler!r}: expected {names} (actuators.nodes.scheduler)")
    try:
        return EFFECTORS[settings.scheduler](settings)
    except NodeError as error:
        raise InputError(str(error)) from None


class Drains:
    """The drain operator of one scheduler, connected to a log. Use it as `with Drains.open(...)`."""

    def __init__(
        self, settings: ActuatorSettings, effector: NodeEffector, reader: TopicReader, by: str
    ) -> None:
        nodes = settings.nodes
        self._reader, self._registry = reader, settings.kafka.registry()
        self._verifier = settings.control.verifier()
        self._publisher = Publisher(settings.kafka, self._registry)
        self.operator = DrainOperator(
            OperatorSettings(
                nodes.rules_of,
                nodes.hosts,
                nodes.max_age_s * NS_PER_S,
                nodes.breaker,
                by,
                effector.how,
            )
        )
        self._actuator = NodeActuator(effector, self.operator, self)

    @classmethod
    @contextmanager
    def open(cls, settings: ActuatorSettings, effector: NodeEffector, by: str) -> Iterator[Drains]:
        """Yield a `Drains` that has read the whole log. Raises LogUnavailable, or ValueError for bad keys."""
        recent = back(settings.nodes.max_age_s + MARGIN_S)
        starts: dict[Topic[Any], Start] = {
            **dict.fromkeys((CONFIG, INVENTORY, REPAIRS, ALERTS), BEGINNING),
            **dict.fromkeys((AUDIT, ACTIONS), recent),
        }
        with TopicReader.open(settings.kafka, starts) as reader:
            drains = cls(settings, effector, reader, by)
            drains._take(reader.read_to_end())
            yield drains

    def poll(self) -> None:
        """Process the messages that arrive within a short wait. Raises LogUnavailable."""
        self._take(self._reader.poll(POLL_S, at_once=True))

    def act(self, *, observe: bool = False, is_urgent: bool = False) -> list[Done]:
        """Carry out the due actions; `is_urgent`: read only the nodes of hosts that have just failed.

        Raises NodeError, and ValueError if the log refuses a record.
        """
        return self._actuator.run_urgent() if is_urgent else self._actuator.run(observe=observe)

    def publish(self, reports: Sequence[ActionReport], repairs: Sequence[Repair]) -> None:
        """Publish the records, and return once the log has stored them. Raises ValueError."""
        for report in reports:
            self._publisher.publish(ACTIONS, report["host"], report)
        for repair in repairs:
            self._publisher.publish(REPAIRS, repair["repair_id"], repair)
        self._publisher.flush(FLUSH_S)

    def _take(self, messages: Any) -> None:
        for message, record in self._reader.decoded(messages, self._registry, _on_reject):
            if self._verifier is None or self._verifier.accepts(message, self._registry):
                self.operator.take(message.topic, message.key, record, message.append_ns)


def _on_reject(message: Any, error: codec.BadRecord) -> None:
    _log.warning("%s %d/%d: %s", message.topic, message.partition, message.offset, error)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock, so that only one process acts. Raises ValueError if another process holds it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{path}: another process acts on nodes, expected one at a time") from None
        yield
    finally:
        os.close(fd)


def act_once(settings: ActuatorSettings, by: str, *, observe: bool = False) -> list[Done]:
    """Act on the newest verdicts once. Raises ValueError if the scheduler or log does not answer."""
    effector = effector_of(settings.nodes)
    with alone(settings.node_lock_path), Drains.open(settings, effector, by) as drains:
        try:
            return drains.act(observe=observe)
        except NodeError as error:
            raise InputError(str(error)) from None


class DrainService:
    """Drains and resumes nodes until stopped, and continues after a failure of log or scheduler."""

    def __init__(self, settings: ActuatorSettings, effector: NodeEffector, stopping: StopRequest) -> None:
        self._settings, self._effector, self._stopping = settings, effector, stopping
        self._by = f"drains@{settings.host or socket.gethostname()}"[:256]
        self._notify, self._metrics = ServiceNotifier(), DrainMetrics()
        self._has_acted, self._fault = False, ""
        self._due_s = self._status_s = 0.0

    def run(self) -> None:
        """Drain and resume nodes until stopped."""
        pause_s = FIRST_RETRY_S
        while not self._stopping.is_set():
            try:
                with Drains.open(self._settings, self._effector, self._by) as drains:
                    pause_s, self._due_s, self._has_acted = FIRST_RETRY_S, 0.0, False
                    self._set_fault("")
                    self._step(drains)
                    self._notify.notify("READY=1")
                    while not self._stopping.is_set():
                        self._step(drains)
            except ValueError as error:  # the log does not answer, or refuses a record
                self._set_fault(str(error))
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)

    def _step(self, drains: Drains) -> None:
        now_s = time.monotonic()
        operator = drains.operator
        if now_s >= self._due_s or operator.is_changed:
            self._due_s = now_s + self._settings.nodes.check_s
            if self._has_acted and operator.is_idle():
                self._metrics.waiting = []
            else:
                self._act(drains, is_urgent=False)
        elif operator.urgent_hosts:
            self._act(drains, is_urgent=True)
        if now_s >= self._status_s:
            self._status_s = now_s + STATUS_S
            self._metrics.set_state(operator)
            self._notify.notify(f"STATUS={self._metrics.text()}")
            self._notify.notify("WATCHDOG=1")
        drains.poll()

    def _act(self, drains: Drains, *, is_urgent: bool) -> None:
        try:
            done = drains.act(is_urgent=is_urgent and self._has_acted)
        except NodeError as error:
            drains.operator.urgent_hosts.clear()  # the next check of the scheduler tries again
            drains.operator.is_changed = False
            self._set_fault(str(error))
            return
        self._has_acted = True
        self._set_fault("")
        if is_urgent and any(entry.outcome is None for entry in done):  # such as a node that Slurm pings now
            self._due_s = min(self._due_s, time.monotonic() + RECHECK_S)
        former = self._metrics.waiting
        self._metrics.waiting = [f"{one.step.node}: {one.text}" for one in done if one.is_waiting]
        for line in self._metrics.waiting:
            if line not in former:
                _log.info("waiting drain %s", line)
        for entry in done:
            if entry.is_new:
                self._metrics.count(entry)
                _log.info(
                    "%s %s %s: %s", entry.outcome, entry.step.action.lower(), entry.step.node, entry.text
                )

    def _set_fault(self, fault: str) -> None:
        if fault != self._fault:
            self._fault = fault
            self._notify.notify(f"X_FAULT={fault}")
            if fault:
                _log.warning("%s", fault)


def main(settings: ActuatorSettings) -> int:
    """Drain and resume nodes until SIGTERM or SIGINT. Return 0 after a stop, 2 if it cannot start."""
    stopping = StopRequest()
    stopping.set_on_signals()
    try:
        effector = effector_of(settings.nodes)
        with alone(settings.node_lock_path):
            DrainService(settings, effector, stopping).run()
    except ValueError as error:
        _log.error("%s", error)
        return 2
    return 0
