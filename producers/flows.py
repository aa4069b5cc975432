"""The flow reporter of one host, or of several whose namespaces this process may enter.

In: `FlowSettings`, the hosts' NICs, the inventory, what programs register. Out: `FlowReports` of each host:
changes at once, everything each second. Only flows between NICs of the fleet are told of. Counters are the
kernel's own for TCP; a UDP flow or a queue pair is told of where its sender registers it and counts.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from sdnotify import SystemdNotifier

from producers.diag import SockDiag, TcpSocket
from producers.flowbook import FlowBook, FlowRules
from producers.inventory import LookupReader
from producers.outlet import Outlet, kafka_client
from producers.registrations import Registrations
from producers.settings import FlowSettings, NicSettings
from schemas import codec
from schemas.ids import nic_id
from schemas.topics import FLOWS, INVENTORY

__all__ = ["Addresses", "FlowReporter", "boot_id", "main"]

_log = logging.getLogger(__name__)

_CLOSE_S: Final = 2.0
_STATUS_S: Final = 5.0
_REST: Final = 25
"""Looking takes at most one part in so many of a processor: with many connections it slows down."""


def boot_id() -> str:
    """Return the id that the kernel gave to this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Addresses:
    """IP address to NIC, from the inventory's messages in any order."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._held: dict[str, list[str]] = {}

    def take(self, name: str, record: dict[str, Any] | None, append_ms: int) -> None:
        """Note an announcement, or with `record` None that the NIC was removed."""
        for address in self._held.pop(name, []):
            if self._of.get(address) == name:
                del self._of[address]
        if record is None:
            return
        self._held[name] = [_plain(address) for address in record["addresses"]]
        for address in self._held[name]:
            self._of[address] = name

    def nic_of(self, address: str) -> str | None:
        """Return the NIC that has an address; None where no NIC of the fleet has it."""
        return self._of.get(address)


@dataclass(slots=True)
class _Namespace:
    """What is looked at together: the hosts whose NICs stand in one namespace."""

    diag: SockDiag
    books: list[FlowBook] = field(default_factory=list)


class FlowReporter:
    """The hosts of `nics`. `look` takes the counters, `report` makes the records; neither knows Kafka.

    Raises OSError where a namespace cannot be entered or the kernel has no socket diagnosis.
    """

    def __init__(self, settings: FlowSettings, nics: Sequence[NicSettings], addresses: Addresses) -> None:
        self.settings = settings
        self._spaces: dict[str | None, _Namespace] = {}
        self._books: list[FlowBook] = []
        self._mine = {_plain(nic.address): nic_id(nic.host, nic.device) for nic in nics}
        # Counts up within a boot, also over restarts of this process.
        self._number = itertools.count(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        boot = boot_id()
        rules = FlowRules(settings.least_bytes, settings.changed_share, settings.changed_least_kbps * 1e3)
        try:
            for host in dict.fromkeys(nic.host for nic in nics):
                own = [nic for nic in nics if nic.host == host]
                local = {_plain(nic.address): nic_id(nic.host, nic.device) for nic in own}
                book = FlowBook(host, boot, own[0].shard, local, addresses.nic_of, rules)
                self._books.append(book)
                for netns in dict.fromkeys(nic.netns for nic in own):
                    if netns not in self._spaces:
                        self._spaces[netns] = _Namespace(SockDiag(netns))
                    self._spaces[netns].books.append(book)
            self.registrations = Registrations(settings.socket, self._mine.__contains__)
        except BaseException:
            self._close_spaces()
            raise
        self.failed_looks = 0

    def look(self) -> None:
        """Take the counters of now. A namespace that cannot be asked keeps its flows as they were."""
        sockets: dict[int, tuple[list[TcpSocket], list[TcpSocket]]] = {}
        unknown: set[int] = set()
        for netns, space in self._spaces.items():
            try:
                found, ended = space.diag.open_sockets(), space.diag.ended()
            except OSError as error:
                self.failed_looks += 1
                unknown.update(id(book) for book in space.books)
                if self.failed_looks == 1:
                    _log.warning("namespace %s: %s", netns or "here", error)
                continue
            for book in space.books:
                opened, closed = sockets.setdefault(id(book), ([], []))
                opened += [each for each in found if each.source in book.local]
                closed += [each for each in ended if each.source in book.local]
        now_ns = time.monotonic_ns()
        registered, queue_pairs = self.registrations.flows, self.registrations.queue_pairs
        for book in self._books:
            if id(book) not in unknown:
                own = {key: said for key, said in registered.items() if key[1] in book.local}
                pairs = {name: pair for name, pair in queue_pairs.items() if pair[0][1] in book.local}
                book.look(*sockets.get(id(book), ([], [])), own, now_ns, pairs)
        self.registrations.sweep()

    def report(self, whole: bool) -> list[dict[str, Any]]:
        """Return the records to send now."""
        return [
            record
            for book in self._books
            for record in book.report(whole, time.time_ns(), self._number.__next__)
        ]

    def close(self) -> None:
        """Let go of all sockets."""
        self.registrations.close()
        self._close_spaces()

    def _close_spaces(self) -> None:
        for space in self._spaces.values():
            space.diag.close()


def main(settings: FlowSettings, nics: Sequence[NicSettings]) -> int:
    """Report until SIGTERM or SIGINT. Returns the exit code: 0 stopped, 2 cannot start."""
    stopping = threading.Event()
    _on_signals(stopping)
    addresses = Addresses()
    try:
        reporter = FlowReporter(settings, nics, addresses)
    except (OSError, ValueError) as error:
        _log.error("flow reporter: %s", error)
        return 2
    registry = _registry(settings.schema_registry_url)
    client = kafka_client(settings.bootstrap)
    reader = LookupReader(client, {INVENTORY: addresses.take}, registry)
    outlet = Outlet(client, settings.queue_messages, settings.queue_bytes, settings.compression)
    notify = SystemdNotifier()
    notify.notify("READY=1")

    def send(records: list[dict[str, Any]]) -> None:
        for record in records:
            outlet.put(FLOWS.name, record["host"], codec.encode(FLOWS.record, record, registry))

    flows = 0
    whole_at = status_at = 0.0
    try:
        while not stopping.is_set():
            reader.poll()
            began = time.monotonic()
            reporter.look()
            whole = began >= whole_at
            records = reporter.report(whole)
            send(records)
            if whole:
                whole_at = max(whole_at + settings.whole_ms / 1e3, began)
                flows = sum(len(record["flows"]) for record in records)
            if began >= status_at:
                status_at = began + _STATUS_S
                notify.notify(
                    f"STATUS={flows} flows, {outlet.waiting} messages wait, {outlet.dropped} dropped"
                )
            outlet.poll()
            took_s = time.monotonic() - began
            _serve(reporter.registrations, began + max(settings.poll_ms / 1e3, _REST * took_s), stopping)
    finally:
        notify.notify("STOPPING=1")
        left = outlet.close(_CLOSE_S)
        reader.close()
        reporter.close()
        if left:
            _log.warning("flow reporter: %d messages could not be sent before the end", left)
    return 0


def _serve(registrations: Registrations, until_s: float, stopping: threading.Event) -> None:
    """Take registrations until then, and notice an order to stop."""
    while not stopping.is_set() and (now := time.monotonic()) < until_s:
        registrations.serve(min(until_s, now + 0.2))


def _plain(address: str) -> str:
    """Return an address as the kernel would write it."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address


def _registry(url: str | None) -> codec.Registry | None:
    if url is None:
        return None
    from schemas.registry import ConfluentRegistry

    return ConfluentRegistry(url)


def _on_signals(stopping: threading.Event) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
