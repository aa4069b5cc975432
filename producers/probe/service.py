"""Runs the prober of one NIC: probes its peers, publishes measurements, link events and routes.

The engine's thread sends and receives. The service's thread wakes at each flush, and at once for link events.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from native.core.probe import Link, PathEvidence
from producers.addresses import AddressWatch, wait_for_address
from producers.inventory.nics import LookupReader, RecordHandler
from producers.nic_identity import NicIdentities
from producers.ports.link_reporter import LinkReporter
from producers.probe.base import STATUS_S, ProbeMetrics, ProbePublisher
from producers.probe.flow_prober import FlowProber
from producers.probe.nic_watch import NicWatch
from producers.probe.path_status import PathStatusReporter, PathStatusTracker
from producers.probe.publishers import MeasurementPublisher, RawPublisher, ReducedPublisher
from producers.probe.schedule import ScheduleFollower
from producers.probe.size_prober import SizeProber
from producers.probe.udp import UdpTransport
from producers.settings import NicSettings, ProbeSettings, flush_ms_of
from producers.trace.probe_routes import ProbeRouteTracer
from producers.trace.route_tracer import TracedNic
from schemas import codec
from schemas.records import LinkEvent, Nic
from schemas.service_notifier import ServiceNotifier
from schemas.stop_request import StopRequest
from schemas.topics import FLOWS, INVENTORY, LINKS, PROBE_SCHEDULES, Topic

_log = logging.getLogger(__name__)

TIMESTAMPS_COMPLETE_NS = 33_000_000
"""Time after which all timestamps of a sample have been fetched, including a margin."""
MAX_PEER_SHARE = 0.02
"""Maximum share of one processor that choosing peers may use."""
MIN_PEER_GAP_S = 1.0
"""Delay between an announcement and the next choice of peers."""
ALONE_S = 30.0
"""Time without a peer after which a NIC counts as unmeasured."""
MS_PER_S = 1e3


class LogAccess(Protocol):
    """A publisher and a reader of the log that the probers of several NICs share."""

    publisher: ProbePublisher

    def poll(self) -> object:
        """Pass messages that have arrived to all probers."""
        ...


class ProbeService:
    """Runs one NIC's prober: `start`, then `step` until a stop is requested, then `close`."""

    def __init__(
        self,
        settings: ProbeSettings,
        nic: NicSettings,
        stop: StopRequest,
        addresses: AddressWatch,
        shared: LogAccess | None = None,
    ) -> None:
        """Open the engine, sockets and readers. Raises OSError or ValueError if one cannot be opened.

        `shared`: access to the log that other probers of this process use too; None opens a separate access.
        """
        self.settings, self.nic, self.stop = settings, nic, stop
        self._addresses = addresses
        self._identities = NicIdentities([nic])
        self.remade: str | None = None
        """Why the sockets must be opened again: the NIC was made anew."""
        self.transport = UdpTransport(settings, nic)
        self._shared = shared
        self.publisher = ProbePublisher(settings) if shared is None else shared.publisher
        self.name = self.transport.name
        engine = self.transport.engine
        try:
            self.tracer = ProbeRouteTracer(
                engine,
                settings,
                TracedNic(
                    self.name, nic.shard, nic.address, self.publisher.producer.put, self.publisher.registry
                ),
                self.transport.open_candidates,
            )
        except ValueError:
            self.transport.close()
            raise
        self.schedule = ScheduleFollower(engine, self.name, self.transport.slot)
        self.flow_prober = (
            FlowProber(engine, settings, self.tracer, self.schedule, self.name) if settings.flow_pps else None
        )
        self.size_prober = (
            SizeProber(engine, nic.address, settings.size_pps, settings.timeout_ms)
            if settings.size_pps
            else None
        )
        self.nic_watch = NicWatch(nic, self.transport.network)
        self._former_ports: list[int] = []
        """Ports of an earlier run of this prober, from its last announcement."""
        self._reader: LogAccess | LookupReader = self._open_reader() if shared is None else shared
        self.measurements: MeasurementPublisher = (
            RawPublisher(self.transport, self.publisher)
            if settings.publish == "raw"
            else ReducedPublisher(self.transport, self.publisher)
        )
        self.path_status = self._open_path_status()
        self.link_reporter = LinkReporter(
            engine,
            settings,
            nic,
            self._publish_link_event,
            stop.fd,
            self._on_evidence,
            self.transport.network.device,
            lambda: self.transport.unproven_peers,
        )
        self._peers = self._announcements = self._seen_announcements = 0
        self._metrics = ProbeMetrics(self.transport, lambda: self._peers)
        self._alone_since_s = time.monotonic()
        self._flush_ms = flush_ms_of(settings.flush_ms, 0)
        self._flush_at_s = self._announce_at_s = self._status_at_s = self._trace_at_s = 0.0
        self._peers_at_s, self._peers_rest_s = math.inf, 0.0

    def start(self) -> None:
        """Start answering the probes of other NICs."""
        self.transport.start()
        _log.info(
            "%s: answers on %s UDP port %d, run %d",
            self.name,
            self.nic.address,
            self.transport.port,
            self.transport.engine.run_id,
        )
        self.publisher.supervisor.notify("READY=1")
        self._set_next_flush()

    def run(self) -> None:
        """Call `step` until a stop is requested, the NIC was recreated, or the engine fails."""
        while not self.stop.is_set() and self.is_usable():
            self.step()
        self.finish()

    def is_usable(self) -> bool:
        """Return whether the engine works and the NIC was not recreated since its sockets were opened."""
        self.remade = self._identities.changed(time.monotonic())
        return self.transport.failure is None and self.remade is None

    def finish(self) -> None:
        """Log why probing ended, publish the last measurements, and announce that this NIC leaves."""
        if self.remade is not None:
            _log.warning("%s; its sockets are opened again", self.remade)
        if self.transport.failure is not None:
            _log.error("%s: %s", self.name, self.transport.failure)
        self.link_reporter.publish(last=True)
        self.measurements.flush()
        self.measurements.finish()
        # peers stop at once, instead of losing probes until the silence shows
        self.publisher.announce({**self.transport.record(), "probe_port": 0})

    @property
    def wake_at_s(self) -> float:
        """Monotonic time of the next deadline, s; a link event may need work earlier."""
        wake_at_s = min(self._flush_at_s, self._trace_at_s)
        return wake_at_s if self.size_prober is None else min(wake_at_s, self.size_prober.due_s)

    def step(self) -> None:
        """Publish link events, then wait for the next deadline or do the work that is due."""
        self.link_reporter.publish()
        if time.monotonic() < self.wake_at_s:
            self.publisher.producer.poll()
            self.link_reporter.wait(self.wake_at_s)
        else:
            self._work()

    def step_at_once(self) -> None:
        """Publish link events and do the work that is due, but never wait."""
        self.link_reporter.wait(0.0)
        self.link_reporter.publish()
        if time.monotonic() >= self.wake_at_s:
            self._work()

    def _work(self) -> None:
        now_s = time.monotonic()
        self._announce_if_due(now_s)
        self._poll_reader(now_s)
        if now_s >= self._peers_at_s:
            self._update_peers(now_s)
        if now_s >= self._flush_at_s:
            self._flush(now_s)
        self._trace()
        self._probe_sizes(now_s)
        if now_s >= self._status_at_s:
            self._status_at_s = now_s + STATUS_S
            self._watch_nic(now_s)
            self._report_status()

    def close(self) -> None:
        """Close the engine, sockets and readers."""
        self.publisher.supervisor.notify("STOPPING=1")
        self.link_reporter.close()
        self.nic_watch.close()
        if self.path_status is not None:
            self.path_status.close()
        self.tracer.close()
        self._metrics.close()
        self.transport.close()
        if isinstance(self._reader, LookupReader):
            self.publisher.close(self.name)
            self._reader.close()
        self.measurements.close()

    # ---- parts

    def handlers(self) -> Mapping[Topic, RecordHandler]:
        """Return, by topic, the function that receives its records."""
        handlers: dict[Topic, RecordHandler] = {INVENTORY: self._on_announcement}
        if self.settings.scheduled:
            handlers[PROBE_SCHEDULES] = self.schedule.on_schedule
        if self.flow_prober is not None:
            handlers[FLOWS] = self.flow_prober.on_report
        return handlers

    def _open_reader(self) -> LookupReader:
        return open_reader(self.publisher, self.handlers(), self.nic.host)

    def _open_path_status(self) -> PathStatusReporter | None:
        if self.settings.path_status_socket is None:
            return None
        tracker = PathStatusTracker(self.name, self.transport.engine.run_id, self.tracer.links_of)
        return PathStatusReporter(self.settings.path_status_socket, tracker)

    def _on_announcement(self, name: str, record: Nic | None, append_ms: int) -> None:
        if name == self.name and record is not None and record["run"] != self.transport.engine.run_id:
            self._former_ports = record["path_ports"]
        if self._shared is None:
            self.publisher.peers.update(name, record, append_ms)
        self._announcements += 1

    def _publish_link_event(self, record: LinkEvent) -> None:
        value = codec.encode(LINKS.type, record, self.publisher.registry)
        self.publisher.producer.put(LINKS.name, record["shard"], value, urgent=True)

    # ---- work that is due

    def _announce(self) -> None:
        self.publisher.announce(self.transport.record(), self.measurements.append_time_callback())

    def _announce_if_due(self, now_s: float) -> None:
        speed_bps = self.link_reporter.speed_bps
        if speed_bps not in (None, self.transport.link.speed_bps):
            self.transport.link = Link(speed_bps, self.transport.link.mtu_bytes)
            self._announce_at_s = now_s
        if now_s < self._announce_at_s:
            return
        self.transport.capabilities = self.link_reporter.capabilities
        self._announce()
        self._announce_at_s = now_s + self.settings.announce_s
        # log time, and so the silence of a peer, advances only with other messages
        self._update_peers_after(now_s, MIN_PEER_GAP_S)

    def _update_peers_after(self, now_s: float, delay_s: float) -> None:
        self._peers_at_s = min(self._peers_at_s, max(now_s + delay_s, self._peers_rest_s))

    def _poll_reader(self, now_s: float) -> None:
        self._reader.poll()
        if self._announcements != self._seen_announcements:
            self._seen_announcements = self._announcements
            self._update_peers_after(now_s, self._flush_ms / MS_PER_S)

    def _update_peers(self, now_s: float) -> None:
        self._peers_at_s = math.inf
        table = self.publisher.peers
        if self._former_ports and not self._peers:
            self.tracer.ports.restore(self._former_ports)
        extra = self.flow_prober.peers if self.flow_prober is not None else frozenset()
        self._peers = self.transport.update_peers(table, extra)
        if self.path_status is not None:
            self.path_status.keep_only([peer.nic for peer in self.transport.engine.peers])
        self.tracer.set_fleet(table.alive(self.nic.shard), table.fleet_nics)
        self._set_mtus()
        used_s = time.monotonic() - now_s
        self._peers_rest_s = now_s + max(self._flush_ms / MS_PER_S, used_s / MAX_PEER_SHARE)

    def _flush(self, now_s: float) -> None:
        batch = self.measurements.flush()
        if batch is not None:
            self.tracer.observe(batch, now_s)
        self.schedule.refresh()
        if self.flow_prober is not None and self.flow_prober.refresh(now_s):
            self._update_peers_after(now_s, self._flush_ms / MS_PER_S)
        self._set_next_flush()

    def _set_next_flush(self) -> None:
        self._flush_ms = flush_ms_of(self.settings.flush_ms, self.publisher.peers.fleet_nics)
        self._flush_at_s = time.monotonic() + until_flush_s(self._flush_ms, time.time_ns())

    def _trace(self) -> None:
        self._trace_at_s = time.monotonic() + self.tracer.tick(time.monotonic())
        if self.tracer.announcement_changed:
            self.tracer.announcement_changed = False
            self.transport.first_hop = self.tracer.first_hop
            self._announce()

    def _probe_sizes(self, now_s: float) -> None:
        sizes = [] if self.size_prober is None else self.size_prober.step(now_s)
        if sizes:
            self.link_reporter.publish_sizes(sizes)

    def _set_mtus(self) -> None:
        if self.size_prober is not None:
            alive = self.publisher.peers.alive(self.nic.shard)
            of_peers = {name: record["mtu_bytes"] for name, record in alive.items()}
            self.size_prober.set_mtus(self.transport.link.mtu_bytes, of_peers)

    def _on_evidence(self, paths: Sequence[PathEvidence]) -> None:
        self.transport.rails.update(paths)
        if self.path_status is not None:
            unproven = self.transport.unproven_peers
            self.path_status.update([path for path in paths if path.peer not in unproven])

    def _watch_nic(self, now_s: float) -> None:
        """Check by which device the NIC's packets leave and arrive; announce the NIC if it has changed."""
        peers = [peer.address for peer in self.transport.engine.peers]
        counters = self.transport.counters()
        problem = self.nic_watch.check(peers, int(counters["wrong_device"]), int(counters["dscp_changed"]))
        self._addresses.report(self.name, problem or self._peer_problem(now_s))
        self._addresses.check()
        if self.transport.egress != self.nic_watch.egress:
            self.transport.egress = self.nic_watch.egress
            self._announce_at_s = now_s
        if self.transport.mtu_changed():
            self._set_mtus()
            self._announce_at_s = now_s

    def _peer_problem(self, now_s: float) -> str | None:
        """Return one line of text if for long no NIC of another host has been a peer; else None."""
        alive = self.publisher.peers.alive(self.nic.shard)
        hosts = {record["host"] for record in alive.values()} - {self.nic.host}
        if self._peers or not hosts:
            self._alone_since_s = now_s
            return None
        if now_s - self._alone_since_s < ALONE_S:
            return None
        return (
            f"no peer among the NICs of {len(hosts)} other hosts: nobody measures it; check the routes "
            "between rails and the kind of its address"
        )

    def _report_status(self) -> None:
        scheduled = "scheduled, " if self.schedule.is_active else ""
        flows = "" if self.flow_prober is None else self.flow_prober.status
        throttle = self.transport.counters()["throttle"]
        silent = ", ".join(sorted(self.transport.silent_rails))
        rails = f"no answers from {silent}, " if silent else ""
        details = f"{scheduled}{flows}{rails}throttle {throttle:.2f}, "
        self.publisher.report_status(self.transport, self._peers, details)


def open_reader(
    publisher: ProbePublisher, handlers: Mapping[Topic, RecordHandler], host: str
) -> LookupReader:
    """Open a reader of the topics in `handlers`, as the probers of `host` need them."""
    return LookupReader(
        publisher.kafka,
        handlers,
        publisher.registry,
        from_end=(FLOWS,),
        keys={FLOWS: (host,)},
    )


def main(settings: ProbeSettings, nic: NicSettings) -> int:
    """Probe until SIGTERM or SIGINT. Return the exit code: 0 stopped, 1 failed, 2 cannot start."""
    stop = StopRequest()
    if not stop.set_on_signals() and os.environ.get("NOTIFY_SOCKET"):
        _log.warning("prober runs outside the main thread and does not handle signals")
    notify = ServiceNotifier().notify
    addresses = AddressWatch([nic], notify)
    while wait_for_address(addresses, notify, stop):
        try:
            service = ProbeService(settings, nic, stop, addresses)
        except (OSError, ValueError) as error:
            _log.error("%s/%s: %s", nic.host, nic.device, error)
            return 2
        service.start()
        try:
            service.run()
        finally:
            service.close()
        if service.remade is None:
            return 0 if service.transport.failure is None else 1
    return 0


def until_flush_s(flush_ms: int, system_ns: int) -> float:
    """Return the time from `system_ns`, a reading of the system clock, to the next flush, s.

    All NICs flush at the same time, as far as their hosts' clocks agree. Data of an interval are thus
    complete when the last NIC has flushed. The flush is 33 ms after round times. By then, all timestamps of
    packets sent before the round time have been fetched.
    """
    every_ns = flush_ms * 1_000_000
    left_ns = every_ns - (system_ns - TIMESTAMPS_COMPLETE_NS) % every_ns
    # a wake-up that is a little early belongs to the flush that was just done
    return (left_ns if left_ns > every_ns // 8 else left_ns + every_ns) / 1e9
