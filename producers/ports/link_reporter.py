"""From what a NIC's agent sees of its links to fabric.links: the thin side of `producers.ports.link_events`.

In: the probe engine, the NIC's port. Out: `LinkEvent` records, given to `put` as they come up. One thread
waits here for all of them; counters, which some drivers are slow to give, are read by a thread of their own.
"""

from __future__ import annotations

import logging
import math
import queue
import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from native.core.probe import Engine, PathEvidence
from producers.ports.device import PortCounters, PortWatch, rdma_ports
from producers.ports.link_events import LinkEvents, EvidencePacer
from producers.ports.verbs_events import VerbsEventReader
from producers.settings import NicSettings, ProbeSettings

__all__ = ["LinkReporter"]

_log = logging.getLogger(__name__)

_JOIN_S = 2.0

Grown = dict[str, tuple[int, int]]


class LinkReporter:
    """Tells of one NIC's links. `wait` sleeps and `tell` takes; both for one thread."""

    def __init__(
        self,
        engine: Engine,
        settings: ProbeSettings,
        nic: NicSettings,
        put: Callable[[dict[str, Any]], None],
        wake_fd: int,
        heard: Callable[[Sequence[PathEvidence]], None] | None = None,
    ) -> None:
        """`wake_fd`: ends a `wait` when it is readable; `heard` is told what paths lost and answered, behind
        `put`, which has further to go. Raises OSError where the kernel refuses a socket."""
        self._engine = engine
        self._heard = heard
        self._put = put
        self._events = LinkEvents(engine.nic, nic.shard, engine.run_id)
        self._pace = EvidencePacer(settings.evidence_ms / 1e3, settings.evidence_calm_ms / 1e3, time.monotonic())
        self._urgent = False
        self._counters = _CounterThread(nic, settings.counters_s)
        try:
            self._device = PortWatch(nic.device, nic.netns)
        except BaseException:
            self._counters.close()
            raise
        self.speed_bps: int | None = None
        """The port's speed as last seen, bit/s."""
        devices = {
            port.parent.parent.name for port in rdma_ports(nic.device, Path("/sys"), nic.netns is None)
        }
        self._verbs = [VerbsEventReader(device, settings.verbs_python) for device in sorted(devices)]
        self._polls = {urgent: select.poll() for urgent in (False, True)}
        for poll in self._polls.values():
            poll.register(self._device.fileno(), select.POLLIN)
            poll.register(wake_fd, select.POLLIN)
            for verbs in self._verbs:
                poll.register(verbs.fileno(), select.POLLIN)
        self._polls[False].register(engine.evidence_fd, select.POLLIN)
        self._counters.start()

    def wait(self, until: float) -> None:
        """Sleep until there may be something to tell, or until this time of the monotonic clock, s."""
        now = time.monotonic()
        left_s = min(until, self._pace.due(self._urgent)) - now
        # What is urgent and not due yet must not end the wait again and again.
        ready = self._polls[self._urgent].poll(max(0, math.ceil(left_s * 1e3)))
        self._urgent = self._urgent or any(fd == self._engine.evidence_fd for fd, _ in ready)

    def tell(self, last: bool = False) -> None:
        """Put what is due; with `last` all there is."""
        for seen in self._device.read():
            clocks = self._engine.clocks()
            if seen.carrier is not None:
                self._put(self._events.carrier(seen.carrier, *clocks))
            if seen.speed_bps is not None:
                self.speed_bps = seen.speed_bps
                self._put(self._events.speed(seen.speed_bps, *clocks))
        for verbs in list(self._verbs):
            for name in verbs.read():
                self._put(self._events.verbs(name, *self._engine.clocks()))
            if verbs.ended is not None:
                self._leave(verbs)
        now = time.monotonic()
        if last or now >= self._pace.due(self._urgent):
            evidence = self._engine.evidence()
            self._urgent = False
            self._pace.taken(evidence, now)
            for record in self._events.probes(evidence):
                self._put(record)
            if self._heard is not None:
                self._heard(evidence.paths)
        for grown, interval_ns in self._counters.taken():
            for record in self._events.counters(grown, *self._engine.clocks(), interval_ns):
                self._put(record)

    @property
    def capabilities(self) -> list[str]:
        """What of its links this agent can tell."""
        found = ["links.probes", "links.counters"]
        if self._device.known:
            found.append("links.carrier")
        if self._verbs:
            found.append("links.verbs")
        return found

    def _leave(self, verbs: VerbsEventReader) -> None:
        _log.warning("%s: no events of its RDMA device: %s", self._engine.nic, verbs.ended)
        for poll in self._polls.values():
            poll.unregister(verbs.fileno())
        self._verbs.remove(verbs)
        verbs.close()

    def close(self) -> None:
        """Close the sockets, end the thread and the processes."""
        for verbs in self._verbs:
            verbs.close()
        self._counters.close()
        self._device.close()


class _CounterThread(threading.Thread):
    """Reads the port's counters every so often."""

    def __init__(self, nic: NicSettings, every_s: float) -> None:
        super().__init__(name=f"counters {nic.host}/{nic.device}", daemon=True)
        self._counters = PortCounters(nic.device, nic.netns)
        self._every_s = every_s
        self._found: queue.SimpleQueue[tuple[Grown, int]] = queue.SimpleQueue()
        self._ending = threading.Event()

    def run(self) -> None:
        last = time.monotonic_ns()
        self._counters.grown()
        while not self._ending.wait(self._every_s):
            grown, now = self._counters.grown(), time.monotonic_ns()
            if grown:
                self._found.put((grown, now - last))
            last = now

    def taken(self) -> list[tuple[Grown, int]]:
        """Return what has grown since the last call, with the interval of each reading, ns."""
        found = []
        while True:
            try:
                found.append(self._found.get_nowait())
            except queue.Empty:
                return found

    def close(self) -> None:
        """End the thread; one that hangs in a driver is left behind."""
        self._ending.set()
        if self.ident is not None:
            self.join(_JOIN_S)
        if not self.is_alive():
            self._counters.close()
