"""The flow reporter of one host, or of several whose namespaces this process may enter.

In: `FlowSettings`, the hosts' NICs, the inventory, what programs register. Out: `FlowReports` of each host:
changes at once, everything each second, and `FlowRoutes`: which links they take and could take (`ways.py`).
Only flows between NICs of the fleet are told of. Counters are the kernel's own for TCP; a UDP flow or a queue
pair is told of where its sender registers it and counts.
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

from producers.bounded_producer import BoundedProducer, kafka_client
from producers.flows.intervals import FlowTable, FlowRules, Key
from producers.flows.registrations import Registrations
from producers.flows.socket_diag import SockDiag, TcpSocket
from producers.inventory.nics.nics import LookupReader
from producers.netns import in_netns
from producers.settings import FlowSettings, NicSettings
from producers.trace.flow_routes import FlowRouteTracer, Put, Wanted
from producers.trace.sockets import open_trace_sockets
from schemas import codec
from schemas.ids import nic_id
from schemas.topics import FLOW_ROUTES, FLOWS, INVENTORY
from schemas.topology import TopologyError, TopologySource

__all__ = ["AddressTable", "FlowReporter", "boot_id", "main"]

_log = logging.getLogger(__name__)

_CLOSE_S: Final = 2.0
_STATUS_S: Final = 5.0
_FILE_CHECK_S: Final = 2.0
_SURVEY_S: Final = 0.5
_TRACE_S: Final = 0.005
"""Between two turns of tracing, while anything is traced."""
_REST: Final = 25
"""Looking takes at most one part in so many of a processor: with many connections it slows down, but no more
than that all are reported in time."""


def boot_id() -> str:
    """Return the id that the kernel gave to this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class AddressTable:
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
    books: list[FlowTable] = field(default_factory=list)


class FlowReporter:
    """The hosts of `nics`. `look` takes the counters, `report` makes the records; neither knows Kafka.

    Raises OSError where a namespace cannot be entered or the kernel has no socket diagnosis.
    """

    def __init__(
        self,
        settings: FlowSettings,
        nics: Sequence[NicSettings],
        addresses: AddressTable,
        put: Put | None = None,
        registry: codec.Registry | None = None,
    ) -> None:
        """`put` takes topic, key and value of what is known of ways; None: nothing is traced. Raises
        TopologyError where the topology file cannot be used."""
        self.settings = settings
        self._spaces: dict[str | None, _Namespace] = {}
        self._books: list[FlowTable] = []
        self._addresses = addresses
        self._roster: dict[str, dict[str, Any]] = {}
        self._source = TopologySource(settings.topology_file)
        self._file_due_s = self._survey_s = 0.0
        self._news = 0
        self._ways: dict[str, FlowRouteTracer] = {}
        self._mine = {_plain(nic.address): nic_id(nic.host, nic.device) for nic in nics}
        # Counts up within a boot, also over restarts of this process.
        self._number = itertools.count(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        boot = boot_id()
        rules = FlowRules(
            settings.least_bytes,
            settings.changed_share,
            settings.min_changed_kbps * 1e3,
            settings.kernel_pacing,
        )
        try:
            for host in dict.fromkeys(nic.host for nic in nics):
                own = [nic for nic in nics if nic.host == host]
                local = {_plain(nic.address): nic_id(nic.host, nic.device) for nic in own}
                book = FlowTable(host, boot, own[0].shard, local, addresses.nic_of, rules)
                self._books.append(book)
                for netns in dict.fromkeys(nic.netns for nic in own):
                    if netns not in self._spaces:
                        self._spaces[netns] = _Namespace(SockDiag(netns))
                    self._spaces[netns].books.append(book)
            if settings.trace and put is not None:
                for nic in nics:
                    self._ways[nic_id(nic.host, nic.device)] = self._open_ways(nic, put, registry)
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
        registered, queue_pairs = self.registrations.flows, self.registrations.queue_pairs.values()
        for book in self._books:
            if id(book) not in unknown:
                own = {key: said for key, said in registered.items() if key[1] in book.local}
                pairs = [(key, said) for key, said in queue_pairs if key[1] in book.local]
                book.look(*sockets.get(id(book), ([], [])), own, now_ns, pairs)
        self.registrations.sweep()
        if self._ways:
            self._look_at_ways(now_ns / 1e9)

    # ---- which links they take

    def meet(self, name: str, record: dict[str, Any] | None, append_ms: int) -> None:
        """Take a message of the inventory."""
        self._addresses.take(name, record, append_ms)
        if record is None:
            self._roster.pop(name, None)
        else:
            self._roster[name] = record
        for ways in self._ways.values():
            ways.meet(name)

    def asks(self, pair: str) -> bool:
        """Return whether what is said of a pair, nic>peer, is of interest here."""
        nic, _, peer = pair.partition(">")
        return peer in self._ways or nic in self._ways

    def hear(self, pair: str, record: dict[str, Any] | None, append_ms: int) -> None:
        """Take a message of `fabric.flow-routes`: others' flows to us, and what an earlier run of this said."""
        nic, _, peer = pair.partition(">")
        now_s = time.monotonic()
        if peer in self._ways:
            self._ways[peer].hear(nic, record, now_s)
        if nic in self._ways:
            self._ways[nic].remember(peer, record, now_s)

    @property
    def tracing(self) -> bool:
        """Whether `trace` should be called again soon."""
        return self.registrations.news != self._news or any(ways.busy for ways in self._ways.values())

    @property
    def news(self) -> bool:
        """Whether links of a live flow became known, or others, since the last look."""
        return any(ways.news for ways in self._ways.values())

    def trace(self) -> None:
        """Send traces and take their answers; call often while `tracing`. It never blocks."""
        now_s = time.monotonic()
        if self.registrations.news != self._news:
            self._news = self.registrations.news
            self._want_registered(now_s)
        for ways in self._ways.values():
            ways.tick(now_s)

    def _open_ways(self, nic: NicSettings, put: Put, registry: codec.Registry | None) -> FlowRouteTracer:
        settings = self.settings
        tracers = open_trace_sockets(nic.address, nic.netns, settings.trace_tcp_with_udp)
        if len(self._ways) == 0:
            _warn_of_ports(nic.netns, settings.first_candidate_port)
            if "TCP" not in tracers:
                _log.warning(
                    "TCP flows' ways are not traced: this process lacks CAP_NET_RAW, and "
                    "flows.trace_tcp_with_udp is not set"
                )
        made = FlowRouteTracer(
            settings,
            nic=nic_id(nic.host, nic.device),
            shard=nic.shard,
            address=_plain(nic.address),
            roster=self._roster,
            tracers=tracers,
            put=put,
            registry=registry,
        )
        made.rename(self._source.topology)
        return made

    def _look_at_ways(self, now_s: float) -> None:
        wanted: dict[str, list[Wanted]] = {}
        for book in self._books:
            for nic, peer, key, may_move in book.paths():
                wanted.setdefault(nic, []).append((peer, key, may_move))
            for nic, peer, key in book.troubled():
                self._ways[nic].suspect(peer, key[2], key[4], now_s)
        for nic, flows in wanted.items():
            self._ways[nic].want(flows, now_s)
        if now_s >= self._survey_s:
            self._survey_s = now_s + _SURVEY_S
            self._check_file(now_s)
            for ways in self._ways.values():
                ways.survey(now_s)
        for ways in self._ways.values():
            ways.news = False
        for book in self._books:
            book.trace(self._hops_of)

    def _want_registered(self, now_s: float) -> None:
        """Trace flows as soon as they are registered: the next look then knows their links."""
        wanted: dict[str, list[Wanted]] = {}
        said_of = itertools.chain(self.registrations.flows.items(), self.registrations.queue_pairs.values())
        for key, said in said_of:
            nic, peer = self._mine[key[1]], self._addresses.nic_of(key[3])
            if peer is not None and peer.partition("/")[0] != nic.partition("/")[0]:
                wanted.setdefault(nic, []).append((peer, key, "MOVE" in said.can))
        for nic, flows in wanted.items():
            if nic in self._ways:
                self._ways[nic].want(flows, now_s)
                self._ways[nic].survey(now_s)

    def _hops_of(self, nic: str, peer: str, key: Key) -> Sequence[str]:
        return self._ways[nic].hops_of(peer, key)

    def _check_file(self, now_s: float) -> None:
        """Take the topology file anew where it changed; one that cannot be used changes nothing."""
        if now_s < self._file_due_s:
            return
        self._file_due_s = now_s + _FILE_CHECK_S
        try:
            if not self._source.refresh():
                return
        except TopologyError as error:
            _log.error("%s; what it said before stays", error)
            return
        for ways in self._ways.values():
            ways.rename(self._source.topology)

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
        for ways in self._ways.values():
            ways.close()
        for space in self._spaces.values():
            space.diag.close()


def main(settings: FlowSettings, nics: Sequence[NicSettings]) -> int:
    """Report until SIGTERM or SIGINT. Returns the exit code: 0 stopped, 2 cannot start."""
    stopping = threading.Event()
    _on_signals(stopping)
    addresses = AddressTable()
    registry = _registry(settings.schema_registry_url)
    client = kafka_client(settings.bootstrap)
    outlet = BoundedProducer(client, settings.queue_messages, settings.queue_bytes, settings.compression)
    try:
        reporter = FlowReporter(settings, nics, addresses, outlet.put, registry)
    except (OSError, ValueError) as error:
        _log.error("flow reporter: %s", error)
        outlet.close(0)
        return 2
    readers = [LookupReader(client, {INVENTORY: reporter.meet}, registry)]
    if settings.trace:
        readers.append(LookupReader(client, {FLOW_ROUTES: reporter.hear}, registry, only=reporter.asks))
    notify = SystemdNotifier()
    notify.notify("READY=1")

    def send(records: list[dict[str, Any]]) -> None:
        for record in records:
            outlet.put(FLOWS.name, record["host"], codec.encode(FLOWS.record, record, registry))

    flows = 0
    whole_at = status_at = 0.0
    try:
        while not stopping.is_set():
            for reader in readers:
                reader.poll()
            began, used_s = time.monotonic(), time.thread_time()
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
            poll_s = settings.poll_ms / 1e3
            rest_s = min(_REST * (time.thread_time() - used_s), settings.whole_ms / 1e3)
            _serve(reporter, began + poll_s, began + max(poll_s, rest_s), stopping)
    finally:
        notify.notify("STOPPING=1")
        left = outlet.close(_CLOSE_S)
        for reader in readers:
            reader.close()
        reporter.close()
        if left:
            _log.warning("flow reporter: %d messages could not be sent before the end", left)
    return 0


def _serve(reporter: FlowReporter, least_s: float, until_s: float, stopping: threading.Event) -> None:
    """Take registrations and trace until then, or `least_s` where a flow's links became known; notice an
    order to stop."""
    while not stopping.is_set() and (now := time.monotonic()) < (least_s if reporter.news else until_s):
        reporter.registrations.serve(min(until_s, now + (_TRACE_S if reporter.tracing else 0.02)))
        reporter.trace()


def _warn_of_ports(netns: str | None, first: int) -> None:
    """Say so where the kernel gives ports away that flows may be moved to."""
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    low, high = map(int, in_netns(netns, lambda: path.read_text(encoding="ascii")).split())
    if high >= first:
        _log.warning(
            "flows.first_candidate_port %d: the kernel gives away ports %d to %d by itself; expected"
            " above, or a move may find its port taken",
            first,
            low,
            high,
        )


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
