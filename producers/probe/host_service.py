"""Runs the probers of all NICs of one host in one process, which share one connection to each broker.

One thread serves all NICs: it waits for their deadlines and link events together. Each NIC's engine has a
thread in C. A NIC without its address, or a NIC that was recreated, is opened again separately.
"""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections.abc import Mapping, Sequence
from typing import Final

from producers.addresses import CHECK_S, AddressWatch
from producers.inventory.nics import LookupReader, RecordHandler
from producers.probe.base import REFUSED_COUNTERS, ProbePublisher, ProbeTransport
from producers.probe.service import ProbeService, open_reader
from producers.settings import NicSettings, ProbeSettings
from schemas.ids import nic_id
from schemas.process_part import Part, own_process
from schemas.records import Nic
from schemas.service_notifier import ServiceNotifier
from schemas.topics import INVENTORY, Topic
from schemas.units import counted

_log = logging.getLogger(__name__)

IDLE_S: Final = 0.2
"""Longest wait of the loop, in which NICs without a prober are checked as well."""


class HostPublisher(ProbePublisher):
    """Publishes for all probers of a host over one Kafka producer, with the sums of their counters."""

    def __init__(self, settings: ProbeSettings, notifier: ServiceNotifier) -> None:
        super().__init__(settings)
        self.supervisor = _Silent()
        self._notifier = notifier
        self._states: dict[str, tuple[int, Mapping[str, float]]] = {}

    def report_status(self, transport: ProbeTransport, peers: int, details: str = "") -> None:
        """Send one status line for all NICs; ignore `details`, which concern one NIC."""
        self._states[transport.name] = peers, transport.counters()
        counts = [counters for _, counters in self._states.values()]
        samples, lost = (sum(count.get(key, 0) for count in counts) for key in ("samples", "lost"))
        refused = sum(count.get(name, 0) for count in counts for name in REFUSED_COUNTERS)
        fewest = min(state[0] for state in self._states.values())
        self._notifier.notify(
            f"STATUS={counted(len(counts), 'NIC')}, at least {counted(fewest, 'peer')} each, "
            f"{samples:.0f} samples, {lost:.0f} lost, {refused:.0f} refused, {self.producer.status}"
        )

    def forget(self, name: str) -> None:
        """Remove the NIC `name` from the status line."""
        self._states.pop(name, None)


class _Silent(ServiceNotifier):
    """A service notifier that sends nothing: one prober of several does not decide the process's state."""

    def notify(self, state: str) -> None:
        """Ignore the state of one prober."""


class HostLog:
    """The Kafka producer, peer table and reader that a host's probers, its `members`, share."""

    def __init__(self, settings: ProbeSettings, host: str, notifier: ServiceNotifier) -> None:
        self._publisher = HostPublisher(settings, notifier)
        self.publisher: ProbePublisher = self._publisher
        self._host = host
        self._members: list[ProbeService] = []
        self._reader: LookupReader | None = None

    def set_members(self, members: Sequence[ProbeService]) -> None:
        """Pass records to these probers, and read all topics again, because new probers need all records."""
        self._members = list(members)
        self._close_reader()
        if self._members:
            topics = dict.fromkeys(topic for member in self._members for topic in member.handlers())
            handlers = {topic: self._handler(topic) for topic in topics}
            self._reader = open_reader(self.publisher, handlers, self._host)

    def remove(self, name: str, members: Sequence[ProbeService]) -> None:
        """Remove a NIC from the status line, and pass records only to the remaining `members`."""
        self._publisher.forget(name)
        self.set_members(members)

    def poll(self) -> object:
        """Pass messages that have arrived to all probers."""
        return None if self._reader is None else self._reader.poll()

    def _handler(self, topic: Topic) -> RecordHandler:
        handlers = [member.handlers()[topic] for member in self._members]

        def deliver(name: str, record: Nic | None, append_ms: int) -> None:
            if topic is INVENTORY:
                self.publisher.peers.update(name, record, append_ms)
            for handle in handlers:
                handle(name, record, append_ms)

        return deliver

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def close(self) -> None:
        """Send the waiting messages and close all Kafka connections."""
        self._close_reader()
        self.publisher.close(self._host)


class HostProbers:
    """The probers of a host's NICs. Call `step` until a stop is requested, then `close`."""

    def __init__(self, settings: ProbeSettings, nics: Sequence[NicSettings], part: Part) -> None:
        self._settings = settings
        self._stop, self._notifier = part
        self._nics = {nic_id(nic.host, nic.device): nic for nic in nics}
        self._addresses = AddressWatch(nics, self._notifier.notify)
        self._log = HostLog(settings, nics[0].host, self._notifier)
        self._probers: dict[str, ProbeService] = {}
        self._open_at_s = 0.0

    def step(self) -> None:
        """Open probers that can be opened, do all due work, and wait until more work is due."""
        self._open()
        for name, prober in list(self._probers.items()):
            if not prober.is_usable():
                self._close(name)
            elif prober.wake_at_s <= time.monotonic() or prober.link_reporter.due_s <= time.monotonic():
                prober.step_at_once()
        self._log.publisher.producer.poll()
        self._wait()

    def _open(self) -> None:
        """Open probers for NICs without one that have their address. Raises ValueError for a bad setting."""
        now_s = time.monotonic()
        if len(self._probers) == len(self._nics) or now_s < self._open_at_s:
            return
        self._open_at_s = now_s + CHECK_S
        problems = self._addresses.check()
        opened = []
        for name, nic in self._nics.items():
            if name in problems or name in self._probers:
                continue
            try:
                self._probers[name] = ProbeService(
                    self._settings, nic, self._stop, self._addresses, self._log
                )
            except OSError as error:
                _log.error("%s: %s; tried again every %.0f s", name, error, CHECK_S)
                continue
            opened.append(name)
        if opened:
            self._log.set_members(list(self._probers.values()))
        for name in opened:
            self._probers[name].start()
        self._notifier.notify("READY=1")

    def _wait(self) -> None:
        """Wait for a deadline, a link event or a stop request; serve the probers that have link events."""
        probers = list(self._probers.values())
        until_s = min(
            (min(prober.wake_at_s, prober.link_reporter.due_s) for prober in probers), default=float("inf")
        )
        left_s = max(0.0, min(until_s - time.monotonic(), IDLE_S))
        by_fd = {prober.link_reporter.fileno(): prober for prober in probers}
        ready, _, _ = select.select([self._stop.fd, *by_fd], [], [], left_s)
        for fd in ready:
            if fd in by_fd:
                by_fd[fd].step_at_once()

    def _close(self, name: str) -> None:
        prober = self._probers.pop(name)
        prober.finish()
        prober.close()
        self._log.remove(name, list(self._probers.values()))
        self._open_at_s = 0.0

    def close(self) -> None:
        """Announce that all NICs leave, and close the probers and the connections."""
        self._notifier.notify("STOPPING=1")
        for prober in self._probers.values():
            prober.finish()
        for prober in self._probers.values():
            prober.close()
        self._log.close()


def main(settings: ProbeSettings, nics: Sequence[NicSettings], part: Part | None = None) -> int:
    """Probe from all NICs until a stop is requested. Return the exit code: 0 stopped, 2 cannot start."""
    part = part or own_process()
    with contextlib.closing(HostProbers(settings, nics, part)) as probers:
        while not part.stop.is_set():
            try:
                probers.step()
            except ValueError as error:
                _log.error("%s", error)
                return 2
    return 0
