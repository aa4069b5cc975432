"""Runs the flow reporter of one host, or of several hosts whose namespaces this process may enter.

It publishes `FlowReports` of each host: changes at once and all flows each second. It also publishes
`FlowRoutes`: the links that flows take and could take (`trace/flow_routes.py`). Only flows between NICs of
the fleet are reported. TCP counters are the kernel's. A UDP flow or queue pair is reported if its sender
registers it and counts its bytes.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from producers.addresses import CHECK_S, AddressWatch
from producers.boot import boot_id
from producers.flows.intervals import FlowRules, FlowTable, Key
from producers.flows.registrations import Registrations
from producers.flows.socket_diag import SockDiag, TcpSocket
from producers.inventory.nics import LookupReader, RecordHandler
from producers.netns import in_netns
from producers.nic_identity import NicIdentities
from producers.nic_network import read_nic_network
from producers.settings import FlowSettings, NicSettings
from producers.trace.flow_routes import FlowRouteTracer, Wanted
from producers.trace.route_tracer import Put, TracedNic
from producers.trace.sockets import open_trace_sockets
from producers.trace.topology_watch import TopologyWatch
from schemas import codec
from schemas.ids import host_of, nic_id
from schemas.kafka.bounded_producer import BoundedProducer
from schemas.process_part import Part, own_process
from schemas.records import FlowReports, FlowRoutes, Nic
from schemas.service_notifier import ServiceNotifier
from schemas.socket_access import access_of
from schemas.stop_request import StopRequest
from schemas.topics import FLOW_ROUTES, FLOWS, INVENTORY, Topic

_log = logging.getLogger(__name__)

_CLOSE_S: Final = 2.0
_STATUS_S: Final = 5.0

_MS_PER_S: Final = 1e3
_REFRESH_S: Final = 0.5
_TRACE_S: Final = 0.005
"""Interval of trace steps while any trace is in progress."""
_READ_COST_FACTOR: Final = 25
"""Readings use at most 1/25 of a processor. Their interval grows with connections, up to full reports'."""


class AddressTable:
    """Maps IP addresses to NICs. The inventory messages may arrive in any order."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._addresses_of: dict[str, list[str]] = {}

    def update(self, name: str, record: Nic | None, append_ms: int) -> None:
        """Apply a NIC's announcement, appended at `append_ms`; a record of None removes the NIC."""
        for address in self._addresses_of.pop(name, []):
            if self._of.get(address) == name:
                del self._of[address]
        if record is None:
            return
        self._addresses_of[name] = [_plain(address) for address in record["addresses"]]
        for address in self._addresses_of[name]:
            self._of[address] = name

    def nic_of(self, address: str) -> str | None:
        """Return the name of the NIC with this address; None if no NIC of the fleet has it."""
        return self._of.get(address)


@dataclass(slots=True)
class _Namespace:
    """A network namespace and the hosts whose NICs are in it."""

    diag: SockDiag
    tables: list[FlowTable] = field(default_factory=list)


class FlowReporter:
    """Reports the flows of the hosts to which `nics` belong.

    `read` reads the counters and `report` builds the records; neither uses Kafka. Raises OSError if a
    namespace cannot be entered or the kernel has no socket diagnosis.
    """

    def __init__(
        self,
        settings: FlowSettings,
        nics: Sequence[NicSettings],
        addresses: AddressTable,
        put: Put | None = None,
        registry: codec.Registry | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Open the hosts' tables and sockets. Raises TopologyError if the topology file cannot be used.

        `put` publishes routes under topic, key and value; None disables tracing. `notify` sends a line to the
        service manager. The flows of a NIC without an address are traced once the NIC has an address.
        """
        self.settings = settings
        self._spaces: dict[str | None, _Namespace] = {}
        self._tables: list[FlowTable] = []
        self._addresses = addresses
        self._peers: dict[str, Nic] = {}
        self._watch = TopologyWatch(settings.topology_file)
        self._refresh_at_s = 0.0
        self._registration_changes = 0
        self._tracers: dict[str, FlowRouteTracer] = {}
        self._put, self._registry = put, registry
        self._nics = {nic_id(nic.host, nic.device): nic for nic in nics}
        self._watch_addresses = AddressWatch(nics, notify)
        self._nic_by_address = {_plain(nic.address): nic_id(nic.host, nic.device) for nic in nics}
        # grows within a boot, also across restarts of this process
        self._number = itertools.count(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        try:
            self._open_tables(nics)
            self.registrations = Registrations(
                settings.socket, self._nic_by_address.__contains__, access_of(settings.socket_users)
            )
            self.check_addresses()
        except BaseException:
            self._close_spaces()
            raise
        self.failed_reads = 0

    def _open_tables(self, nics: Sequence[NicSettings]) -> None:
        """Create a flow table for each host, and open the socket diagnosis of each namespace."""
        settings, boot = self.settings, boot_id()
        rules = FlowRules(
            settings.min_bytes,
            settings.changed_share,
            settings.min_changed_kbps * 1e3,
            settings.kernel_pacing,
        )
        for host in dict.fromkeys(nic.host for nic in nics):
            own = [nic for nic in nics if nic.host == host]
            local = {_plain(nic.address): nic_id(nic.host, nic.device) for nic in own}
            table = FlowTable(host, boot, own[0].shard, local, self._addresses.nic_of, rules)
            self._tables.append(table)
            for netns in dict.fromkeys(nic.netns for nic in own):
                if netns not in self._spaces:
                    self._spaces[netns] = _Namespace(SockDiag(netns))
                self._spaces[netns].tables.append(table)

    def read(self) -> None:
        """Read the counters of all flows; flows of a namespace that cannot be read keep their last values."""
        sockets: dict[int, tuple[list[TcpSocket], list[TcpSocket]]] = {}
        unknown: set[int] = set()
        for netns, space in self._spaces.items():
            try:
                connected, ended = space.diag.open_sockets(), space.diag.ended()
            except (OSError, ValueError) as error:  # a ValueError: a truncated message
                self.failed_reads += 1
                unknown.update(id(table) for table in space.tables)
                if self.failed_reads == 1:
                    _log.warning("namespace %s: %s", netns or "here", error)
                continue
            for table in space.tables:
                opened, closed = sockets.setdefault(id(table), ([], []))
                opened += [tcp_socket for tcp_socket in connected if tcp_socket.source in table.local]
                closed += [tcp_socket for tcp_socket in ended if tcp_socket.source in table.local]
        now_ns = time.monotonic_ns()
        for table in self._tables:
            if id(table) not in unknown:
                self._read_table(table, *sockets.get(id(table), ([], [])), now_ns)
        self.registrations.sweep()
        if self._tracers:
            self._trace_flows(now_ns / 1e9)

    def check_addresses(self) -> None:
        """Report NICs whose address is missing, and start tracing the flows of NICs that now have an address.

        The socket for programs' registrations is checked as well: if its file was removed, it is recreated.
        """
        self._watch_addresses.report("flows", self.registrations.check())
        missing = self._watch_addresses.check()
        if self.settings.trace and self._put is not None:
            for name, nic in self._nics.items():
                if name not in missing and name not in self._tracers:
                    self._tracers[name] = self._open_tracer(nic, self._put, self._registry)

    def _read_table(
        self, table: FlowTable, sockets: list[TcpSocket], ended: list[TcpSocket], now_ns: int
    ) -> None:
        """Update one host's flows with its sockets' counters and its registered flows."""
        registered, queue_pairs = self.registrations.flows, self.registrations.queue_pairs.values()
        own = {key: registration for key, registration in registered.items() if key[1] in table.local}
        pairs = [(key, registration) for key, registration in queue_pairs if key[1] in table.local]
        table.read(sockets, ended, own, now_ns, pairs)

    # ---- routes of the flows

    def on_announcement(self, name: str, record: Nic | None, append_ms: int) -> None:
        """Apply a NIC's announcement in the inventory; a record of None removes the NIC."""
        self._addresses.update(name, record, append_ms)
        if record is None:
            self._peers.pop(name, None)
        else:
            self._peers[name] = record
        now_s = time.monotonic()
        for tracer in self._tracers.values():
            tracer.on_announcement(name, now_s)

    def wants_routes(self, pair: str) -> bool:
        """Return whether this reporter needs the routes of a pair, named nic>peer."""
        nic, _, peer = pair.partition(">")
        return peer in self._tracers or nic in self._tracers

    def on_routes(self, pair: str, record: FlowRoutes | None, append_ms: int) -> None:
        """Apply a message of the flow route topic: a peer's flows to our NICs, or an earlier run's record."""
        nic, _, peer = pair.partition(">")
        now_s = time.monotonic()
        if peer in self._tracers:
            self._tracers[peer].on_peer_routes(nic, record, now_s)
        if nic in self._tracers:
            self._tracers[nic].on_own_routes(peer, record, now_s)

    @property
    def nics(self) -> list[NicSettings]:
        """The NICs of all hosts whose flows are reported."""
        return list(self._nics.values())

    @property
    def tracing(self) -> bool:
        """Whether `trace` should be called again soon: traces are open, or registrations changed."""
        return self.registrations.changes != self._registration_changes or any(
            tracer.busy for tracer in self._tracers.values()
        )

    @property
    def changes(self) -> bool:
        """Whether links of a live flow became known or changed since the last reading."""
        return any(tracer.links_changed for tracer in self._tracers.values())

    def trace(self) -> None:
        """Send trace packets and receive answers, without blocking. Call often while `tracing`."""
        now_s = time.monotonic()
        if self.registrations.changes != self._registration_changes:
            self._registration_changes = self.registrations.changes
            self._trace_registered(now_s)
        for tracer in self._tracers.values():
            tracer.tick(now_s)

    def reopen(self) -> None:
        """Open all sockets again after a NIC or its namespace was recreated; keep the registrations."""
        for netns, space in self._spaces.items():
            try:
                diag = SockDiag(netns)
            except OSError as error:
                _log.warning("namespace %s: %s", netns or "here", error)
                continue
            space.diag.close()
            space.diag = diag
        for name in list(self._tracers):
            self._tracers.pop(name).close()
        self.check_addresses()

    def _open_tracer(self, nic: NicSettings, put: Put, registry: codec.Registry | None) -> FlowRouteTracer:
        settings = self.settings
        sockets = open_trace_sockets(
            nic.address, nic.netns, settings.trace_tcp_with_udp, read_nic_network(nic).device
        )
        if len(self._tracers) == 0:
            _warn_of_ports(nic.netns, settings.first_candidate_port)
            if "TCP" not in sockets:
                _log.warning(
                    "routes of TCP flows are not traced: this process lacks CAP_NET_RAW, and "
                    "flows.trace_tcp_with_udp is not set"
                )
        tracer = FlowRouteTracer(
            settings,
            TracedNic(nic_id(nic.host, nic.device), nic.shard, _plain(nic.address), put, registry),
            peers=self._peers,
            sockets=sockets,
        )
        tracer.set_topology(self._watch.topology, time.monotonic())
        return tracer

    def _trace_flows(self, now_s: float) -> None:
        flows_by_nic: dict[str, list[Wanted]] = {}
        for table in self._tables:
            for nic, peer, key, may_move in table.paths():
                flows_by_nic.setdefault(nic, []).append((peer, key, may_move))
            for nic, peer, key in table.troubled():
                if nic in self._tracers:
                    self._tracers[nic].trace_soon(peer, key[2], key[4], now_s)
        for nic, flows in flows_by_nic.items():
            if nic in self._tracers:
                self._tracers[nic].trace_flows(flows, now_s)
        if now_s >= self._refresh_at_s:
            self._refresh_at_s = now_s + _REFRESH_S
            is_new = self._watch.check(now_s)
            for tracer in self._tracers.values():
                if is_new:
                    tracer.set_topology(self._watch.topology, now_s)
                tracer.refresh(now_s)
        for tracer in self._tracers.values():
            tracer.links_changed = False
        for table in self._tables:
            table.trace(self._links_of)

    def _trace_registered(self, now_s: float) -> None:
        """Trace flows as soon as they are registered, so that the next reading has their links."""
        flows_by_nic: dict[str, list[Wanted]] = {}
        registrations = itertools.chain(
            self.registrations.flows.items(), self.registrations.queue_pairs.values()
        )
        for key, registration in registrations:
            own, peer = self._nic_by_address[key[1]], self._addresses.nic_of(key[3])
            if peer is not None and host_of(peer) != host_of(own):
                flows_by_nic.setdefault(own, []).append((peer, key, "MOVE" in registration.can))
        for nic, wanted_flows in flows_by_nic.items():
            if nic in self._tracers:
                self._tracers[nic].trace_flows(wanted_flows, now_s)
                self._tracers[nic].refresh(now_s)

    def _links_of(self, nic: str, peer: str, key: Key) -> Sequence[str]:
        return self._tracers[nic].links_of(peer, key) if nic in self._tracers else ()

    def report(self, is_complete: bool) -> list[FlowReports]:
        """Return the `FlowReports` to publish now: all flows if `is_complete`, else the changed flows."""
        return [
            record
            for table in self._tables
            for record in table.report(is_complete, time.time_ns(), self._number.__next__)
        ]

    def close(self) -> None:
        """Close all sockets for counters, traces and registrations."""
        self.registrations.close()
        self._close_spaces()

    def _close_spaces(self) -> None:
        for tracer in self._tracers.values():
            tracer.close()
        for space in self._spaces.values():
            space.diag.close()


def main(settings: FlowSettings, nics: Sequence[NicSettings], part: Part | None = None) -> int:
    """Report flows until a stop is requested. Return the exit code: 0 if stopped, 2 if it cannot start."""
    stop, supervisor = part or own_process()
    registry = settings.kafka.registry()
    producer = BoundedProducer(
        settings.kafka, settings.queue_messages, settings.queue_bytes, settings.compression
    )
    try:
        reporter = FlowReporter(settings, nics, AddressTable(), producer.put, registry, supervisor.notify)
    except (OSError, ValueError) as error:
        _log.error("flow reporter: %s", error)
        producer.close(0)
        return 2
    handlers: dict[Topic, RecordHandler] = {INVENTORY: reporter.on_announcement}
    if settings.trace:
        handlers[FLOW_ROUTES] = reporter.on_routes
    wants_key = {FLOW_ROUTES: reporter.wants_routes}
    reader = LookupReader(settings.kafka, handlers, registry, wants_key=wants_key)
    supervisor.notify("READY=1")
    try:
        _run(settings, reporter, reader, producer, registry, supervisor, stop)
    finally:
        supervisor.notify("STOPPING=1")
        left = producer.close(_CLOSE_S)
        reader.close()
        reporter.close()
        if left:
            _log.warning("flow reporter: %d messages could not be sent before the end", left)
    return 0


def _run(
    settings: FlowSettings,
    reporter: FlowReporter,
    reader: LookupReader,
    producer: BoundedProducer,
    registry: codec.Registry | None,
    supervisor: ServiceNotifier,
    stop: StopRequest,
) -> None:
    poll_s, full_s = settings.poll_ms / _MS_PER_S, settings.whole_ms / _MS_PER_S
    flows = 0
    full_at_s = status_at_s = addresses_at_s = 0.0
    identities = NicIdentities(reporter.nics)
    while not stop.is_set():
        reader.poll()
        if (remade := identities.changed(time.monotonic())) is not None:
            _log.warning("%s; sockets are opened again", remade)
            reporter.reopen()
            identities = NicIdentities(reporter.nics)
        began_s, used_s = time.monotonic(), time.thread_time()
        reporter.read()
        is_full = began_s >= full_at_s
        records = reporter.report(is_full)
        for record in records:
            producer.put(FLOWS.name, record["host"], codec.encode(FLOWS.type, record, registry))
        if is_full:
            full_at_s = max(full_at_s + full_s, began_s)
            flows = sum(len(record["flows"]) for record in records)
        if began_s >= status_at_s:
            status_at_s = began_s + _STATUS_S
            refused = reporter.registrations.refused
            supervisor.notify(f"STATUS={flows} flows, {producer.status}, {refused} registrations refused")
        if began_s >= addresses_at_s:
            addresses_at_s = began_s + CHECK_S
            reporter.check_addresses()
        producer.poll()
        rest_s = min(_READ_COST_FACTOR * (time.thread_time() - used_s), full_s)
        _serve(reporter, began_s + poll_s, began_s + max(poll_s, rest_s), stop)


def _serve(reporter: FlowReporter, min_s: float, until_s: float, stop: StopRequest) -> None:
    """Receive registrations and trace until `until_s`, or `min_s` if links of a flow became known."""
    while not stop.is_set() and (now := time.monotonic()) < (min_s if reporter.changes else until_s):
        reporter.registrations.serve(min(until_s, now + (_TRACE_S if reporter.tracing else 0.02)))
        reporter.trace()


def _warn_of_ports(netns: str | None, first: int) -> None:
    """Log a warning if the kernel may assign ports to sockets that are reserved for moved flows."""
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    low, high = map(int, in_netns(netns, lambda: path.read_text(encoding="ascii")).split())
    if high >= first:
        _log.warning(
            "flows.first_candidate_port %d: the kernel assigns ports %d to %d to sockets; expected"
            " above, otherwise a move may find its port taken",
            first,
            low,
            high,
        )


def _plain(address: str) -> str:
    """Return an IP address in the kernel's notation, such as an IPv6 address in its shortest spelling."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address
