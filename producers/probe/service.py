"""The prober service: one NIC's engine, its batches to the log, its peers from the inventory.

In: `ProbeSettings`, `NicSettings`. Out: `Nic` announcements, and `ProbeBatch`es (publish = raw) or
`ClockFits` and `PathDelays` (publish = reduced); `LinkEvent`s in both, at once. The engine's thread runs no
Python; this one wakes every `flush_ms`, and for what is urgent.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from sdnotify import SystemdNotifier

from native.core import encode_probe_batch
from native.core.columns import ProbeColumns
from native.core.probe import Engine, Link, Peer, Sockets, TestClock, link_of, open_socket, open_sockets
from producers.bounded_producer import Delivered, BoundedProducer, kafka_client
from producers.inventory.nics.nics import LookupReader, PeerTable, RecordHandler, addresses_of, nic_record
from producers.netns import in_netns
from producers.trace.source_ports.link_reporter import LinkReporter
from producers.probe.flow_prober import FlowProber
from producers.probe.keys import read_key
from producers.probe.path_status import PathStatusTracker, PathStatusReporter
from producers.probe.peers import choose_peers, hashes_of
from producers.probe.reduced import ClockView, Reducer
from producers.probe.schedule import ScheduleFollower, slot_of
from producers.settings import ClockSettings, NicSettings, ProbeSettings, flush_ms_of
from producers.trace.probe_routes import ProbeRouteTracer
from schemas import codec
from schemas.ids import nic_id
from schemas.topics import (
    CLOCK_FITS,
    CLOCK_OFFSETS,
    DELAYS,
    FLOWS,
    INVENTORY,
    LINKS,
    PROBE_SCHEDULES,
    PROBES,
    Topic,
)

__all__ = ["Prober", "main", "test_clock"]

_log = logging.getLogger(__name__)

_CLOSE_S = 2.0
_STATUS_S = 5.0
_TURN_NS = 33_000_000
"""What a sample takes until all of its stamps are fetched, and a little more."""


def test_clock(settings: ClockSettings | None) -> TestClock | None:
    """Return the clock that a test gives to a NIC; epoch_ns 0 becomes now."""
    if settings is None:
        return None
    return TestClock(
        offset_ns=settings.offset_ns,
        drift_ppb=settings.drift_ppb,
        wander_ppb_per_sqrt_s=settings.wander_ppb_per_sqrt_s,
        epoch_ns=settings.epoch_ns or time.time_ns(),
        seed=settings.seed,
        step_ns=settings.step_ns,
        step_at_ns=settings.step_at_ns,
    )


test_clock.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a test by its name


class Prober:
    """One NIC's engine with what it needs around it. `tick` is to be called every `flush_ms`."""

    def __init__(self, settings: ProbeSettings, nic: NicSettings) -> None:
        self.settings = settings
        self.nic = nic
        self.name = nic_id(nic.host, nic.device)
        self.since_ns = time.time_ns()
        key = read_key(settings.key_file)

        def open_all() -> tuple[Sockets, Link]:
            sockets = open_sockets(
                nic.address,
                settings.udp_port,
                settings.first_path_port,
                settings.paths,
                spare=settings.spare_paths,
            )
            return sockets, link_of(sockets.responder, nic.device)

        sockets, self.link = in_netns(nic.netns, open_all)
        self.port = sockets.port
        self.engine = Engine(
            sockets,
            nic=self.name,
            key=key,
            rate_pps=settings.rate_pps,
            max_pps=settings.max_pps,
            answer_max_pps=settings.answer_max_pps,
            spacing_ns=settings.spacing_ns,
            singles=settings.singles,
            spare=settings.spare_paths,
            flow_pps=settings.flow_pps,
            timeout_ms=settings.timeout_ms,
            overdue_ms=settings.overdue_ms,
            cpu_starved_ms=settings.cpu_starved_ms,
            collect_delay_ms=min(5.0, settings.timeout_ms / 4),
            max_age_s=settings.max_age_s,
            clock=test_clock(nic.clock),
            device=nic.device if settings.hardware_stamps else None,
            max_peers=max(32, 3 * settings.peers),
        )
        self.pace = slot_of(settings)
        self.first_hop: str | None = None
        self.failure: BaseException | None = None
        self.capabilities: list[str] = []
        self._known: tuple[dict[str, tuple[str, int]], frozenset[str]] = ({}, frozenset())
        self._thread = threading.Thread(target=self._run, name=f"probe {self.name}", daemon=True)

    def start(self) -> None:
        """Start to answer, and to ask once there are peers."""
        self._thread.start()

    def close(self) -> None:
        """Stop and put everything back as it was found."""
        self.engine.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self.engine.close()

    def record(self) -> dict[str, Any]:
        """Return the NIC's announcement as of now."""
        return nic_record(
            self.nic,
            run=self.engine.run_id,
            probe_port=self.port,
            phc_index=self.engine.phc_index,
            speed_bps=self.link.speed_bps,
            mtu_bytes=self.link.mtu_bytes,
            since_ns=self.since_ns,
            announced_ns=time.time_ns(),
            capabilities=self.capabilities,
            path_ports=self.engine.path_ports,
            first_hop=self.first_hop,
            pace=self.pace,
        )

    def meet(self, roster: PeerTable, besides: frozenset[str] = frozenset()) -> int:
        """Choose the peers anew from who is alive, and as many of `besides` as peers at most; return how many
        there are."""
        known = addresses_of(roster.alive(self.nic.shard).values(), self.nic.address)
        known.pop(self.name, None)
        if (known, besides) == self._known:
            return len(self.engine.peers)
        self._known = (known, besides)
        names = sorted(known)
        seed = self.settings.peers_seed
        chosen = choose_peers(self.name, names, self.settings.peers, seed, hashes_of(names, seed))
        chosen += [name for name in sorted(besides & known.keys()) if name not in chosen][
            : self.settings.peers
        ]
        self.engine.set_peers([Peer(name, *known[name]) for name in chosen])
        return len(chosen)

    def open_candidates(self, ports: Sequence[int]) -> list[socket.socket]:
        """Return bound sockets like the paths' on those of `ports` that are free; port 0: any. For path
        probes to be traced from, and taken over by the engine."""

        def open_all() -> list[socket.socket]:
            found = []
            for port in ports:
                try:
                    found.append(open_socket(self.nic.address, port))
                except OSError as error:
                    if error.errno == errno.EMFILE:
                        break
            return found

        return in_netns(self.nic.netns, open_all)

    def _run(self) -> None:
        try:
            self.engine.run()
        except BaseException as error:  # noqa: BLE001  # carried to the service's thread, which ends with it
            self.failure = error


def main(settings: ProbeSettings, nic: NicSettings) -> int:
    """Probe until SIGTERM or SIGINT. Returns the exit code: 0 stopped, 1 failed at work, 2 cannot start."""
    stopping = _Stopping()
    _on_signals(stopping)
    try:
        prober = Prober(settings, nic)
    except (OSError, ValueError) as error:
        _log.error("%s/%s: %s", nic.host, nic.device, error)
        return 2
    registry = _registry(settings.schema_registry_url)
    client = kafka_client(settings.bootstrap)
    roster = PeerTable(settings.silent_s)
    outlet = BoundedProducer(client, settings.queue_messages, settings.queue_bytes, settings.compression)
    try:
        paths = ProbeRouteTracer(
            prober.engine,
            settings,
            nic=prober.name,
            shard=nic.shard,
            address=nic.address,
            put=outlet.put,
            open_candidates=prober.open_candidates,
            registry=registry,
        )
    except ValueError as error:
        prober.close()
        _log.error("%s: %s", prober.name, error)
        return 2
    before: list[int] = []

    def take(name: str, record: codec.Record | None, append_ms: int) -> None:
        if name == prober.name and record is not None and record["run"] != prober.engine.run_id:
            before[:] = record["path_ports"]
        roster.take(name, record, append_ms)

    turns = ScheduleFollower(prober.engine, prober.name, prober.pace)
    views: dict[Topic, RecordHandler] = {INVENTORY: take}
    if settings.turns:
        views[PROBE_SCHEDULES] = turns.take
    reader = LookupReader(client, views, registry)
    aimer = FlowProber(prober.engine, settings, paths, turns, prober.name) if settings.flow_pps else None
    flows = None
    if aimer is not None:
        flows = LookupReader(client, {FLOWS: aimer.take}, registry, tail=True, key=nic.host)
    publisher: _Raw | _Reduced
    if settings.publish == "raw":
        publisher = _Raw(prober, outlet, registry)
    else:
        publisher = _Reduced(prober, outlet, registry, roster, client)

    def put_event(record: codec.Record) -> None:
        value = codec.encode(LINKS.record, record, registry)
        outlet.put(LINKS.name, record["shard"], value, urgent=True)

    words: PathStatusReporter | None = None
    if settings.local_repair_socket is not None:
        words = PathStatusReporter(settings.local_repair_socket, PathStatusTracker(prober.name, prober.engine.run_id, paths.links_of))
    try:
        heard = None if words is None else words.tell
        reporter = LinkReporter(prober.engine, settings, nic, put_event, stopping.fd, heard)
    except OSError as error:
        _log.error("%s: %s", prober.name, error)
        return 2
    notify = SystemdNotifier()
    prober.start()
    _log.info(
        "%s: answers on %s UDP port %d, run %d", prober.name, nic.address, prober.port, prober.engine.run_id
    )
    notify.notify("READY=1")
    flush_ms = flush_ms_of(settings.flush_ms, roster.fleet)
    due = time.monotonic() + until_flush_s(flush_ms, time.time_ns())
    announce_at = status_at = rest_until = trace_at = 0.0

    def announce(record: codec.Record) -> None:
        value = codec.encode(INVENTORY.record, record, registry)
        outlet.put(INVENTORY.name, prober.name, value, publisher.log_time())

    meet_at, peers = float("inf"), 0
    try:
        while not stopping.is_set() and prober.failure is None:
            reporter.tell()
            now = time.monotonic()
            if now < min(due, trace_at):
                outlet.poll()
                reporter.wait(min(due, trace_at))
                continue
            if reporter.speed_bps not in (None, prober.link.speed_bps):
                prober.link = Link(reporter.speed_bps, prober.link.mtu_bytes)
                announce_at = now
            if now >= announce_at:
                prober.capabilities = reporter.capabilities
                announce(prober.record())
                announce_at = now + settings.announce_s
                # who fell silent shows only when somebody else speaks
                meet_at = min(meet_at, max(now + 1, rest_until))
            if reader.poll():
                meet_at = min(meet_at, max(now + flush_ms / 1e3, rest_until))
            if flows is not None and peers:
                flows.poll()
            if now >= meet_at:
                meet_at = float("inf")
                if before and not peers:
                    paths.adopt(before)
                peers = prober.meet(roster, aimer.peers if aimer is not None else frozenset())
                if words is not None:
                    words.forget([peer.nic for peer in prober.engine.peers])
                paths.meet(roster.alive(nic.shard), roster.fleet)
                took_s = time.monotonic() - now
                # choosing costs at most 2% of a processor
                rest_until = now + max(flush_ms / 1e3, 50 * took_s)
            if now >= due:
                batch = publisher.flush()
                if batch is not None:
                    paths.observe(batch, now)
                turns.keep()
                if aimer is not None and aimer.keep(now):
                    meet_at = min(meet_at, max(now + flush_ms / 1e3, rest_until))
                flush_ms = flush_ms_of(settings.flush_ms, roster.fleet)
                due = time.monotonic() + until_flush_s(flush_ms, time.time_ns())
            trace_at = time.monotonic() + paths.tick(time.monotonic())
            if paths.news:
                paths.news, prober.first_hop = False, paths.first_hop
                announce(prober.record())
            outlet.poll()
            if now >= status_at:
                status_at = now + _STATUS_S
                notify.notify(f"STATUS={_status(prober, peers, turns, aimer, outlet)}")
        if prober.failure is not None:
            _log.error("%s: %s", prober.name, prober.failure)
        reporter.tell(last=True)
        publisher.flush()
        publisher.end()
        # A goodbye: peers stop asking now instead of losing probes until the silence shows.
        announce(prober.record() | {"probe_port": 0})
    finally:
        notify.notify("STOPPING=1")
        reporter.close()
        if words is not None:
            words.close()
        paths.close()
        prober.close()
        left = outlet.close(_CLOSE_S)
        reader.close()
        if flows is not None:
            flows.close()
        publisher.close()
        if left:
            _log.warning("%s: %d messages could not be sent before the end", prober.name, left)
    return 0 if prober.failure is None else 1


def until_flush_s(flush_ms: int, system_ns: int) -> float:
    """Return s from `system_ns`, the system clock, to the next flush.

    All NICs flush together, as far as their hosts' clocks agree: what is told of a time is whole as soon as
    the last has flushed. They do so 33 ms after round times, when the stamps of what was sent by then are in.
    """
    every_ns = flush_ms * 1_000_000
    left_ns = every_ns - (system_ns - _TURN_NS) % every_ns
    # woken a little early, the clock shows the turn that was just taken
    return (left_ns if left_ns > every_ns // 8 else left_ns + every_ns) / 1e9


def _status(prober: Prober, peers: int, turns: ScheduleFollower, aimer: FlowProber | None, outlet: BoundedProducer) -> str:
    counters = prober.engine.counters()
    refused = sum(counters[name] for name in ("malformed", "bad_mac", "wrong_nic", "stale_time"))
    return (
        f"{peers} peers{', in turns' if turns.taken else ''}, {'' if aimer is None else aimer.says}"
        f"{counters['samples']:.0f} samples, {counters['lost']:.0f} lost, "
        f"{refused:.0f} refused, throttle {counters['throttle']:.2f}, "
        f"{outlet.waiting} messages wait, {outlet.dropped} dropped"
    )


class _Raw:
    """Publishes the samples themselves."""

    def __init__(self, prober: Prober, outlet: BoundedProducer, registry: codec.Registry | None) -> None:
        self._prober, self._outlet = prober, outlet
        self._head = codec.header(PROBES.record, registry)

    def flush(self) -> ProbeColumns | None:
        """Put what was measured since the last call, and return it."""
        batch = self._prober.engine.drain()
        self._outlet.put(PROBES.name, self._prober.name, self._head + encode_probe_batch(batch))
        return batch

    def log_time(self) -> Delivered | None:
        """Return what wants to know a message's append time."""
        return None

    def end(self) -> None:
        """Put what is still open: nothing."""

    def close(self) -> None:
        """Let go of everything: nothing."""


class _Reduced:
    """Publishes each window's fits and delays, by its own view of inventory and clocks."""

    def __init__(
        self,
        prober: Prober,
        outlet: BoundedProducer,
        registry: codec.Registry | None,
        roster: PeerTable,
        client: dict[str, Any],
    ) -> None:
        self._prober, self._outlet, self._registry, self._roster = prober, outlet, registry, roster
        view = ClockView(window_ns=prober.settings.window_ms * 1_000_000)
        shard = prober.nic.shard

        def take(key: str, record: dict[str, Any] | None, append_ms: int) -> None:
            if record is not None and record["shard"] == shard:
                view.take(record, append_ms * 1_000_000)

        self._offsets = LookupReader(client, {CLOCK_OFFSETS: take}, registry, tail=True)
        clock = prober.record()["clock"]
        self._reducer = Reducer(prober.name, shard, clock, prober.settings.window_ms * 1_000_000, view)
        self._log_offset_ns: int | None = None
        """The log's clock minus ours; None until the log has acknowledged something."""

    def flush(self) -> ProbeColumns | None:
        """Take what was measured since the last call, and return it; put the window that it closed.

        Windows are cut by the log's clock: until that is known, samples wait in the engine.
        """
        self._offsets.poll()
        if self._log_offset_ns is None:
            return None
        batch = self._prober.engine.drain()
        self._put(*self._reducer.add(batch, time.time_ns() + self._log_offset_ns, self._clocks()))
        return batch

    def log_time(self) -> Delivered | None:
        """Return what learns from a message's append time how far the log's clock is from ours."""
        sent_ns = time.time_ns()

        def learn(append_ns: int) -> None:
            self._log_offset_ns = append_ns - (sent_ns + time.time_ns()) // 2

        return learn

    def end(self) -> None:
        """Put the window that is still open."""
        self._put(*self._reducer.close(self._clocks()))

    def close(self) -> None:
        """Let go of the reader."""
        self._offsets.close()

    def _clocks(self) -> dict[str, str]:
        shard = self._prober.nic.shard
        return {name: record["clock"] for name, record in self._roster.alive(shard).items()}

    def _put(self, fits: list[dict[str, Any]], delays: list[dict[str, Any]]) -> None:
        for record in fits:
            data = codec.encode(CLOCK_FITS.record, record, self._registry)
            self._outlet.put(CLOCK_FITS.name, record["shard"], data)
        for record in delays:
            self._outlet.put(DELAYS.name, record["nic"], codec.encode(DELAYS.record, record, self._registry))


def _registry(url: str | None) -> codec.Registry | None:
    if url is None:
        return None
    from schemas.registry import ConfluentRegistry

    return ConfluentRegistry(url)


class _Stopping:
    """A request to stop that also ends a poll on `fd`."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._set = False

    def set(self) -> None:
        self._set = True
        os.eventfd_write(self.fd, 1)

    def is_set(self) -> bool:
        return self._set


def _on_signals(stopping: _Stopping) -> None:
    """Stop on SIGTERM and SIGINT, where this is the process's main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
    elif os.environ.get("NOTIFY_SOCKET"):
        _log.warning("prober runs outside the main thread: signals are not its own")
