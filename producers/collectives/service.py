"""Runs the service `collectives`: reports the operations of jobs on one or several hosts of this machine.

It publishes a `CollectiveBatch` of each connected process about once a second. Without a job it sleeps.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final

from producers.boot import boot_id
from producers.collectives.host import HostReporter, ReportedHost
from producers.collectives.listener import socket_of
from producers.collectives.settings import CollectiveSettings
from producers.settings import NicSettings
from schemas.kafka.bounded_producer import BoundedProducer
from schemas.process_part import Part, own_process
from schemas.service_notifier import ServiceNotifier
from schemas.stop_request import StopRequest
from schemas.topics import COLLECTIVES

_log = logging.getLogger(__name__)

_CLOSE_S: Final = 2.0
_STATUS_S: Final = 5.0
_RETRY_S: Final = 1.0
_MAX_WAIT_S: Final = 1.0
_UNLIMITED: Final = 1 << 30
"""Limit of the producer that is never reached, so that it drops no record. `queue_bytes` is the limit."""


def reported_hosts(
    settings: CollectiveSettings, nics: Sequence[NicSettings], clock_files: Mapping[str, Path]
) -> list[ReportedHost]:
    """Return the hosts to which `nics` belong, each with its socket and clock page."""
    names = list(dict.fromkeys(nic.host for nic in nics))
    boot = boot_id()
    return [
        ReportedHost(
            name,
            boot,
            tuple(nic for nic in nics if nic.host == name),
            socket_of(settings.socket, name, len(names)),
            clock_files.get(name),
            number == 0,
        )
        for number, name in enumerate(names)
    ]


class _Queue:
    """The records that the log has not acknowledged yet.

    A record that failed is sent again with the same number, by which readers recognise the duplicate.
    """

    def __init__(self, producer: BoundedProducer, max_bytes: int) -> None:
        self._producer, self._max_bytes = producer, max_bytes
        self._waiting: dict[int, tuple[str, bytes, Callable[[], None]]] = {}
        self._bytes = self._number = self._failed = 0
        self._retry_at_s = 0.0

    def put(self, job: str, value: bytes, acknowledged: Callable[[], None]) -> None:
        """Send a record and keep it until the log acknowledges it; then call `acknowledged`."""
        self._number += 1
        self._waiting[self._number] = job, value, acknowledged
        self._bytes += len(value)
        self._send(self._number)

    def may_put(self) -> bool:
        """Return whether the queue accepts another record."""
        return self._bytes < self._max_bytes

    def poll(self, now_s: float) -> None:
        """Process acknowledgements, and send failed records again."""
        self._producer.poll()
        if self._producer.failed != self._failed:
            self._failed, self._retry_at_s = self._producer.failed, now_s + _RETRY_S
        if self._retry_at_s and now_s >= self._retry_at_s and not self._producer.waiting:
            self._retry_at_s = 0.0
            for number in list(self._waiting):
                self._send(number)

    def __len__(self) -> int:
        return len(self._waiting)

    def _send(self, number: int) -> None:
        job, value, _ = self._waiting[number]
        self._producer.put(COLLECTIVES.name, job, value, lambda append_ns: self._delivered(number))

    def _delivered(self, number: int) -> None:
        entry = self._waiting.pop(number, None)
        if entry is not None:
            _, value, acknowledged = entry
            self._bytes -= len(value)
            acknowledged()


def main(
    settings: CollectiveSettings,
    nics: Sequence[NicSettings],
    clock_files: Mapping[str, Path] | None = None,
    part: Part | None = None,
) -> int:
    """Report operations until a stop is requested. Return the exit code: 0 stopped, 2 cannot start.

    `clock_files` maps hosts to their clock pages; a host without an entry uses the machine's default page.
    """
    stop, supervisor = part or own_process()
    registry = settings.kafka.registry()
    selector = selectors.DefaultSelector()
    selector.register(stop.fd, selectors.EVENT_READ, lambda number: None)
    hosts: list[HostReporter] = []
    try:
        for host in reported_hosts(settings, nics, clock_files or {}):
            hosts.append(HostReporter(settings, host, selector, registry))
    except (OSError, ValueError) as error:
        _log.error("collectives: %s", error)
        for reporter in hosts:
            reporter.close()
        return 2
    producer = BoundedProducer(settings.kafka, _UNLIMITED, _UNLIMITED, settings.compression)
    queue = _Queue(producer, settings.queue_bytes)
    supervisor.notify("READY=1")
    try:
        _run(hosts, selector, queue, supervisor, stop)
    finally:
        supervisor.notify("STOPPING=1")
        left = producer.close(_CLOSE_S)
        for reporter in hosts:
            reporter.close()
        if left:
            _log.warning("collectives: %d records could not be sent before the end", left)
    return 0


def _run(
    hosts: Sequence[HostReporter],
    selector: selectors.BaseSelector,
    queue: _Queue,
    supervisor: ServiceNotifier,
    stop: StopRequest,
) -> None:
    status_at_s = 0.0
    fault = ""
    next_s = time.monotonic()
    while not stop.is_set():
        wait_s = min(max(0.0, next_s - time.monotonic()), _MAX_WAIT_S)
        for ready, _ in selector.select(wait_s):
            ready.data(ready.fd)
        now_s = time.monotonic()
        next_s = min(reporter.step(now_s, queue.put, queue.may_put) for reporter in hosts)
        queue.poll(now_s)
        before, fault = fault, "; ".join(reporter.fault for reporter in hosts if reporter.fault)
        if fault != before:
            supervisor.notify(f"X_FAULT={fault}")
        if now_s >= status_at_s:
            status_at_s = now_s + _STATUS_S
            supervisor.notify(f"STATUS={_status(hosts, len(queue))}")


def _status(hosts: Sequence[HostReporter], waiting: int) -> str:
    counts = [reporter.counts for reporter in hosts]
    jobs = frozenset[str]().union(*(count.jobs for count in counts))
    processes, dropped, invalid, refused = (sum(map(itemgetter(at), counts)) for at in range(1, 5))
    return (
        f"{len(jobs)} jobs, {processes} processes, {waiting} records wait, {dropped} events dropped, "
        f"{invalid} invalid, {refused} connections refused"
    )
