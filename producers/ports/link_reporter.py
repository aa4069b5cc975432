"""Publishes the link evidence of one NIC, from its probes, its port, its counters and its RDMA events.

One thread waits for all sources but the counters. Another thread reads the counters: some drivers are slow.
"""

from __future__ import annotations

import logging
import math
import queue
import select
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from native.core.probe import Engine, PathEvidence
from producers.ports.device import PortChange, PortCounters, PortWatch, rdma_ports
from producers.ports.link_events import EvidencePacer, LinkEvents
from producers.ports.verbs_events import VerbsEventReader
from producers.probe.host_probes import HostProber
from producers.settings import NicSettings, ProbeSettings
from schemas.records import LinkEvent, PathSize

_log = logging.getLogger(__name__)

_JOIN_S = 2.0
_HOSTS_S = 0.1
"""Interval at which hosts of silent peers are probed and their answers read."""

Growth = dict[str, tuple[int, int]]


class LinkReporter:
    """Publishes evidence about one NIC's links. The same thread must call `wait` and `publish`."""

    def __init__(
        self,
        engine: Engine,
        settings: ProbeSettings,
        nic: NicSettings,
        put: Callable[[LinkEvent], None],
        wake_fd: int,
        on_evidence: Callable[[Sequence[PathEvidence]], None] | None = None,
        egress: str | None = None,
        unproven_peers: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Open the sources of evidence. Raises OSError if the kernel refuses a socket.

        `wake_fd` ends a `wait` when it becomes readable. `on_evidence` receives the engine's evidence
        first. `egress` is the device by which packets to silent hosts leave, or None to send them as routed.
        `unproven_peers` returns the peers to which losses show no fault.
        """
        self._engine, self._unproven_peers = engine, unproven_peers
        self._on_evidence = on_evidence
        self._put = put
        self._events = LinkEvents(engine.nic, nic.shard, engine.run_id)
        self._pacer = EvidencePacer(
            settings.evidence_ms / 1e3, settings.evidence_calm_ms / 1e3, time.monotonic()
        )
        self._urgent = False
        self._is_port_quiet = False
        """True if the last `wait` saw nothing at the port and its result has not been used yet."""
        self._counters = _CounterThread(nic, settings.counters_s)
        try:
            self._device = PortWatch(nic.device, nic.netns)
            self._hosts = HostProber(nic.address, nic.netns, egress)
        except BaseException:
            self._counters.close()
            raise
        self._hosts_at_s = self._hosts_reported_s = self._sizes_reported_s = time.monotonic()
        self.speed_bps: int | None = None
        """Speed of the port when last seen, bit/s."""
        devices = {
            port.parent.parent.name for port in rdma_ports(nic.device, Path("/sys"), nic.netns is None)
        }
        self._verbs = [VerbsEventReader(device, settings.verbs_python) for device in sorted(devices)]
        self._polls = {urgent: select.epoll() for urgent in (False, True)}
        for poll in self._polls.values():
            poll.register(self._device.fileno(), select.EPOLLIN)
            poll.register(wake_fd, select.EPOLLIN)
            for verbs in self._verbs:
                poll.register(verbs.fileno(), select.EPOLLIN)
        self._polls[False].register(engine.evidence_fd, select.EPOLLIN)
        self._counters.start()

    @property
    def due_s(self) -> float:
        """Time at which evidence must be published, in seconds of the monotonic clock."""
        return self._pacer.due(self._urgent)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when an event would end a `wait`."""
        return self._polls[self._urgent].fileno()

    def wait(self, until: float) -> None:
        """Sleep until an event may be due, at most until the monotonic time `until`, s."""
        now = time.monotonic()
        left_s = min(until, self.due_s) - now
        # urgent evidence that is not due must not end the wait repeatedly
        ready = self._polls[self._urgent].poll(max(0, math.ceil(left_s * 1e3)) / 1e3)
        fds = {fd for fd, _ in ready}
        self._urgent = self._urgent or self._engine.evidence_fd in fds
        self._is_port_quiet = self._device.fileno() not in fds

    def publish(self, last: bool = False) -> None:
        """Publish the events that are due. With `last`, publish the probes' evidence even if not due."""
        for change in self._read_port():
            clocks = self._engine.clocks()
            if change.carrier is not None:
                self._put(self._events.carrier(change.carrier, *clocks, change.is_enabled))
            if change.speed_bps is not None:
                self.speed_bps = change.speed_bps
                self._put(self._events.speed(change.speed_bps, *clocks))
        for verbs in list(self._verbs):
            for name in verbs.read():
                self._put(self._events.verbs(name, *self._engine.clocks()))
            if verbs.ended is not None:
                self._leave(verbs)
        now = time.monotonic()
        if last or now >= self._pacer.due(self._urgent):
            self._publish_probes(now)
        self._probe_hosts(now)
        for growth, interval_ns in self._counters.drain():
            for record in self._events.counters(growth, *self._engine.clocks(), interval_ns):
                self._put(record)

    def _read_port(self) -> list[PortChange]:
        """Return the changes of the port's carrier and speed. Skip reading if `wait` just saw no change."""
        is_quiet, self._is_port_quiet = self._is_port_quiet, False
        return [] if is_quiet else self._device.read()

    def _publish_probes(self, now: float) -> None:
        """Publish the probe engine's evidence since the last call."""
        evidence = self._engine.evidence()
        if self._on_evidence is not None:
            self._on_evidence(evidence.paths)
        unproven = self._unproven_peers()
        if unproven:
            paths = [path for path in evidence.paths if path.peer not in unproven]
            evidence = replace(evidence, paths=paths)
        self._urgent = False
        self._pacer.on_evidence_taken(evidence, now)
        self._hosts.peers.update(evidence.paths, now)
        for record in self._events.probes(evidence):
            self._put(record)

    def _probe_hosts(self, now_s: float) -> None:
        """Probe the hosts of silent peers if the next probes are due, and publish the hosts' answers."""
        if now_s < self._hosts_at_s:
            return
        self._hosts_at_s = now_s + _HOSTS_S
        rows = self._hosts.step({peer.nic: peer.address for peer in self._engine.peers}, now_s)
        if rows:
            interval_ns = round((now_s - self._hosts_reported_s) * 1e9)
            self._hosts_reported_s = now_s
            self._put(self._events.hosts(rows, *self._engine.clocks(), interval_ns))

    def publish_sizes(self, sizes: Sequence[PathSize]) -> None:
        """Publish the largest packet size that passes on each path."""
        now_s = time.monotonic()
        interval_ns = round((now_s - self._sizes_reported_s) * 1e9)
        self._sizes_reported_s = now_s
        self._put(self._events.sizes(sizes, *self._engine.clocks(), interval_ns))

    @property
    def capabilities(self) -> list[str]:
        """Return the kinds of evidence that this agent can provide."""
        kinds = ["links.probes", "links.counters"]
        if self._device.known:
            kinds.append("links.carrier")
        if self._verbs:
            kinds.append("links.verbs")
        return kinds

    def _leave(self, verbs: VerbsEventReader) -> None:
        _log.warning("%s: no more events of its RDMA device: %s", self._engine.nic, verbs.ended)
        for poll in self._polls.values():
            poll.unregister(verbs.fileno())
        self._verbs.remove(verbs)
        verbs.close()

    def close(self) -> None:
        """Close the sockets, and end the counter thread and the processes that read RDMA events."""
        for verbs in self._verbs:
            verbs.close()
        self._counters.close()
        self._hosts.close()
        for poll in self._polls.values():
            poll.close()
        self._device.close()


class _CounterThread(threading.Thread):
    """Reads the port's counters periodically in a thread of its own, because some drivers are slow."""

    def __init__(self, nic: NicSettings, every_s: float) -> None:
        super().__init__(name=f"counters {nic.host}/{nic.device}", daemon=True)
        self._counters = PortCounters(nic.device, nic.netns)
        self._every_s = every_s
        self._found: queue.SimpleQueue[tuple[Growth, int]] = queue.SimpleQueue()
        self._ending = threading.Event()

    def run(self) -> None:
        last = time.monotonic_ns()
        self._counters.growth()
        while not self._ending.wait(self._every_s):
            growth, now = self._counters.growth(), time.monotonic_ns()
            if growth:
                self._found.put((growth, now - last))
            last = now

    def drain(self) -> list[tuple[Growth, int]]:
        """Return, per reading since the last call, the counters that grew and the reading's interval, ns."""
        readings = []
        while not self._found.empty():
            readings.append(self._found.get_nowait())
        return readings

    def close(self) -> None:
        """End the thread, or abandon it if it hangs in a driver."""
        self._ending.set()
        if self.ident is not None:
            self.join(_JOIN_S)
        if not self.is_alive():
            self._counters.close()
