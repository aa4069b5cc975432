"""The hand of a host, or of all hosts that live here: carries decisions out and tells what came of them.

In: `ActuatorSettings`, the hosts; decisions, fallbacks and config from the log; owners of flows on the
control socket; words of probers. Out: commands to owners, reports on `fabric.actions`, until SIGTERM or
SIGINT: then it lets go of the rates that it holds, and moves stay. One thread acts and waits for no log,
another reads and writes there. A process beside the one that keeps the clock pages: neither waits for the
other's interpreter.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import signal
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from sdnotify import SystemdNotifier

from actuators.applier import Applier, key_of, read_decision
from actuators.command_io import Orders, Taken
from actuators.effectors.endpoints import Owners
from actuators.effectors.kernel_pacing import KernelPaces
from actuators.fabric_time import FabricTime
from actuators.journal import Journal
from actuators.kafka_clients import kafka_client, registry_of
from actuators.local_repair import Links, Reflex
from actuators.owned_sockets import leave, receive_at, received
from actuators.settings import ActuatorSettings, HostSettings
from schemas import codec
from schemas.limits import EVERYONE
from schemas.sanity import check_epoch
from schemas.topics import CONFIG, FALLBACKS, FLOWS, MAX_ELEMENTS

__all__ = ["Hand", "main"]

_log = logging.getLogger(__name__)

_STATUS_S: Final = 5.0
_IDLE_S: Final = 0.25
_AGAIN_S: Final = 0.02
_LEAST_S: Final = 0.001
"""Between two turns that nothing calls for but the time: a due time that is over and stays costs a twentieth
of a processor then, and not, in the real-time class, all of it."""
_FLUSH_S: Final = 2.0
_WORD_BYTES: Final = 1 << 20
_WORDS_BYTES: Final = 4 << 20
_WORDS_MOST: Final = 64
"""Words that are taken at once, before anything else is looked at."""
_WARNED_MOST: Final = 20
_TAKEN_MOST: Final = 256
"""Messages of the log that are taken before owners and leases are looked at again."""

Record = dict[str, Any]


class Hand:
    """The hosts' flows and what is done to them, without the log: `orders` stands for it."""

    def __init__(
        self, settings: ActuatorSettings, hosts: Sequence[HostSettings], name: str, orders: Orders, *,
        simulated: bool = False, registry: codec.Registry | None = None,
    ) -> None:  # fmt: skip
        """Listen for owners, and take up what a former process noted. Raises OSError."""
        self.name, self.orders, self._registry = name, orders, registry
        self.run = secrets.randbits(62)
        self.selector = selectors.DefaultSelector()
        self.now_ns = FabricTime([host.clock_file for host in hosts])
        names = [host.host for host in hosts]
        self.owners = Owners(
            settings.control_path, names, self.selector, time.monotonic_ns, settings.answer_ms * 1_000_000
        )
        try:  # not before: another one that listens there writes the journal
            self.journal = Journal(settings.acts_path)
        except BaseException:
            self.owners.close()
            raise
        boot = None if simulated else _boot()
        states = _of_hosts(self.journal.states)
        self._kernels: dict[str, KernelPaces] = {}
        if settings.kernel_nics:
            self._kernels = {
                host.host: KernelPaces(
                    host.host, self.owners.of(host.host), settings.kernel_nics, host.netns
                )
                for host in hosts
            }  # fmt: skip
        self.appliers: dict[str, Applier] = {}
        for host in names:
            applier = self.appliers[host] = Applier(
                host, self._kernels.get(host) or self.owners.of(host), self._report, self.now_ns,
                time.monotonic_ns, notes=self.journal, states=states.get(host, {}), boot=boot,
            )  # fmt: skip
            applier.settled = False
            self.owners.tell(host, applier)
        self._records: dict[str, Record] = {}
        self.ready = False
        """Whether the config has been read: nothing is done before."""
        self._settle_s = time.monotonic() + settings.settle_ms / 1000
        self._settled = False
        self._announce_s: float | None = None
        self._announce_by_s = 0.0
        self.reports: dict[str, int] = {}
        """Reports so far, by outcome."""
        self.selector.register(orders.wake_fd, selectors.EVENT_READ, self._woken)
        self.links = Links()
        self._reflexes: dict[str, Reflex] = {}
        self._words: socket.socket | None = None
        self._words_path = settings.reflex_path
        self.words = self.words_refused = 0
        """Words of probers that were heard, and that made no sense."""
        if settings.reflex_ms is not None:
            self._reflexes = {host: Reflex(settings.reflex_ms * 1_000_000) for host in names}
            self._words = receive_at(self._words_path, _WORDS_BYTES)
            self.selector.register(self._words, selectors.EVENT_READ, self._hear)

    def turn(self, most_s: float = _IDLE_S) -> None:
        """Do what is due, and wait for more, at most so long."""
        for key, events in self.selector.select(self._wait_s(most_s)):
            key.data(events)
        self._take_some()
        self.owners.tick()
        self._reflex()
        now_s = time.monotonic()
        if not self._settled and self.ready and now_s >= self._settle_s:
            self._settled = True
            for host, kernel in self._kernels.items():
                kernel.resume(self.appliers[host].rates())
            for applier in self.appliers.values():
                applier.settle()
        for applier in self.appliers.values():
            applier.tick()
        if self._announce_s is not None and now_s >= self._announce_s:
            self._announce(now_s)

    def announce(self, *, soon: bool = False) -> None:
        """Tell what the actuator is at; `soon`: once commands that are on their way are answered."""
        if soon:
            self._announce_s = time.monotonic()
            self._announce_by_s = self._announce_s + 1.0
        else:
            self._tell(ending=False)

    def end(self) -> None:
        """Let go of all rates and say so; moves stay."""
        for applier in self.appliers.values():
            applier.release("the actuator ends")
        until_s = time.monotonic() + 2 * self.owners.answer_s
        while any(applier.busy for applier in self.appliers.values()) and time.monotonic() < until_s:
            for key, events in self.selector.select(0.01):
                key.data(events)
            self.owners.tick()
        self._tell(ending=True)
        left = self.orders.flush(_FLUSH_S)
        if left:
            _log.warning("%d messages could not be sent before the end", left)
        while (taken := self.orders.next()) is not None:
            if taken.kind == "told":
                self._take(taken)

    def close(self) -> None:
        """Hang up."""
        if self._words is not None:
            leave(self._words_path, self._words)
        for kernel in self._kernels.values():
            kernel.close()
        self.owners.close()
        self.selector.close()
        self.journal.close()

    @property
    def status(self) -> str:
        """One line for people."""
        moved = sum(applier.in_force for applier in self.appliers.values())
        modes = [applier.limits.act for applier in self.appliers.values()]
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.reports.items()))
        return (
            f"{len(modes)} hosts, {sum(modes)} ACT, {self.owners.flows()} flows of "
            f"{self.owners.connected} owners, {moved} actions in force; reports: {counts or 'none'}; "
            f"{self.words} words of probers, {len(self.links.dead_at(time.monotonic_ns()))} dead links; "
            f"{self.orders.rejected} refused, {self.owners.refused} lines unreadable"
        )

    # --- inside ---

    def _wait_s(self, most_s: float) -> float:
        if self.orders.urgent or (self.ready and self.orders.taken):
            return 0.0
        waits = [most_s]
        due_ns = self.owners.due_ns()
        if due_ns is not None:
            waits.append((due_ns - time.monotonic_ns()) / 1e9)
        leases = [due for applier in self.appliers.values() if (due := applier.due_ns()) is not None]
        if leases:
            waits.append((min(leases) - self.now_ns()) / 1e9)
        waits += [
            (due - time.monotonic_ns()) / 1e9
            for reflex in self._reflexes.values()
            if (due := reflex.due_ns()) is not None
        ]
        if self._announce_s is not None:
            waits.append(self._announce_s - time.monotonic())
        if not self._settled:
            waits.append(max(0.01, self._settle_s - time.monotonic()))
        return max(_LEAST_S, min(waits))

    def _woken(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.orders.wake_fd)

    def _hear(self, events: int) -> None:
        """Take the words of probers that have come."""
        for _ in range(_WORDS_MOST):
            if self._words is None:
                return
            try:
                data = received(self._words, _WORD_BYTES)
                if data is None:
                    return
                word = codec.decode(data, "PathStatusReport")
                if word["nic"].partition("/")[0] not in self._reflexes:
                    raise ValueError(f"{word['nic']!r}: no NIC of a host that is served here")
                self.links.take(word, time.monotonic_ns())
                self.words += 1
            except (codec.BadRecord, ValueError, PermissionError) as error:
                self.words_refused += 1
                if self.words_refused <= _WARNED_MOST:
                    _log.warning("word of a prober: %s", error)

    def _reflex(self) -> None:
        """Lead flows away from what is dead, where nobody decided."""
        if not self.ready:
            return
        now_ns = time.monotonic_ns()
        dead = self.links.dead_at(now_ns)
        for host, reflex in self._reflexes.items():
            if not dead:
                reflex.look(dead, {}, {}, now_ns)
                continue
            applier = self.appliers[host]
            flows = list(reflex.flows())
            paths = {flow: self.owners.path_of(host, key_of(flow)) for flow in flows}
            fences = {flow: applier.fence_of(flow) for flow in flows}
            for wanted in reflex.look(dead, paths, fences, now_ns):
                applier.reflex(*wanted, len(flows))

    def _take_fallbacks(self, taken: Taken) -> None:
        host = (taken.key or b"").decode("utf-8", "replace")
        if host not in self._reflexes:
            return
        try:
            record = None
            if taken.value is not None:
                record = codec.decode(taken.value, FALLBACKS.record, self._registry)
                if record["host"] != host:
                    raise codec.BadRecord("WRONG_KEY", f"key {host!r}, expected {record['host']!r}")
                check_epoch(record, taken.append_ms)
        except codec.BadRecord as bad:
            self.orders.reject(taken.message, bad)
            return
        if record is not None:
            self.appliers[host].see_epoch(record["shard"], record["epoch"])
        self._reflexes[host].take_fallbacks(record)

    def _take_flows(self, taken: Taken) -> None:
        """Take what a host reports of its flows: those that the kernel may pace."""
        kernel = self._kernels.get((taken.key or b"").decode("utf-8", "replace"))
        if kernel is None or taken.value is None:
            return
        try:
            record = codec.decode(taken.value, FLOWS.record, self._registry)
        except codec.BadRecord:  # whoever keeps flows tells of it
            return
        for key in kernel.take_flows(record):
            self.appliers[kernel.host].seen(key)

    def _take_some(self) -> None:
        """Take what the log said, all config first; of the rest nothing before that, and not too much."""
        for _ in range(_TAKEN_MOST):
            while self.orders.urgent:
                self._take(self.orders.urgent.popleft())
            taken = self.orders.next() if self.ready else None
            if taken is None:
                return
            self._take(taken)

    def _take(self, taken: Taken) -> None:
        if taken.kind == "told" and taken.record is not None:
            self.appliers[taken.record["host"]].told(taken.record)
        elif taken.kind == "config":
            self._take_config(taken)
        elif taken.kind == "flows":
            self._take_flows(taken)
        elif taken.kind == "fallbacks":
            self._take_fallbacks(taken)
        elif taken.kind == "ready":
            self.ready = True
            self._set_config()
        elif taken.kind == "decision":
            self._take_decision(taken)

    def _take_config(self, taken: Taken) -> None:
        key = (taken.key or b"").decode("utf-8", "replace")
        if key != EVERYONE and key not in self.appliers:
            return
        try:
            if taken.value is None:
                self._records.pop(key, None)
            else:
                record = codec.decode(taken.value, CONFIG.record, self._registry)
                if record["host"] != key:
                    raise codec.BadRecord(
                        "WRONG_KEY", f"key {key!r}, expected the record's {record['host']!r}"
                    )
                self._records[key] = record
        except codec.BadRecord as bad:
            self.orders.reject(taken.message, bad)
            return
        if self.ready:
            self._set_config()

    def _set_config(self) -> None:
        for applier in self.appliers.values():
            applier.take_config(self._records)
        self.announce(soon=True)

    def _take_decision(self, taken: Taken) -> None:
        done = partial(self.orders.done, taken.message)
        if taken.value is None or (taken.key or b"").decode("utf-8", "replace") not in self.appliers:
            done()
            return
        try:
            decision = read_decision(taken.key, taken.value, self._registry)
            check_epoch(decision, taken.append_ms)
        except codec.BadRecord as bad:
            self.orders.reject(taken.message, bad)
            done()
            return
        self.appliers[decision["host"]].take(decision, done)

    def _report(self, record: Record, done: Any) -> None:
        self.reports[record["outcome"]] = self.reports.get(record["outcome"], 0) + 1
        self.orders.report(record, done or _nothing)

    def _announce(self, now_s: float) -> None:
        """Tell once no command is on its way, and again until what is to be undone is."""
        busy = any(applier.busy or applier.reverting for applier in self.appliers.values())
        if busy and now_s < self._announce_by_s:
            self._announce_s = now_s + _AGAIN_S
            return
        self._announce_s = None
        self._tell(ending=False)

    def _tell(self, *, ending: bool) -> None:
        rows = [
            {
                "host": host, "mode": "ACT" if applier.limits.act else "OBSERVE",
                "config_version": applier.limits.version, "flows": self.owners.flows(host),
                "in_force": applier.in_force, "reverting": applier.reverting,
            }
            for host, applier in self.appliers.items()
        ]  # fmt: skip
        at_ns, parts = self.now_ns(), max(1, -(-len(rows) // MAX_ELEMENTS))
        for part in range(parts):
            self.orders.state({
                "actuator": self.name, "run": self.run, "at_ns": at_ns, "part": part, "parts": parts,
                "ending": ending, "hosts": rows[part * MAX_ELEMENTS : (part + 1) * MAX_ELEMENTS],
            })  # fmt: skip


def main(
    settings: ActuatorSettings, hosts: Sequence[HostSettings], *, name: str | None = None,
    simulated: bool = False,
) -> int:  # fmt: skip
    """Act for `hosts` until SIGTERM or SIGINT; `simulated`: their flows are of any boot.

    Returns the exit code: 0 stopped, 2 cannot start.
    """
    stopping = threading.Event()
    _on_signals(stopping)
    found = name or (hosts[0].host if len(hosts) == 1 else socket.gethostname())
    registry = registry_of(settings)
    orders = Orders(
        kafka_client(settings), found, [host.host for host in hosts], registry,
        flows=bool(settings.kernel_nics),
    )  # fmt: skip
    try:
        hand = Hand(settings, hosts, found, orders, simulated=simulated, registry=registry)
    except OSError as error:
        _log.error("%s", ": ".join(filter(None, (error.filename, error.strerror or str(error)))))
        return 2
    notify = SystemdNotifier()
    orders.start()
    ready, status_s = False, 0.0
    try:
        while not stopping.is_set():
            hand.turn()
            now_s = time.monotonic()
            if hand.ready and not ready:
                ready = True
                _log.info(
                    "%s: acts for %d hosts, owners come to %s", found, len(hosts), settings.control_path
                )
                notify.notify("READY=1")
            if now_s >= status_s:
                status_s = now_s + _STATUS_S
                notify.notify(f"STATUS={hand.status}")
                notify.notify("WATCHDOG=1")
                if hand.ready:
                    hand.announce()
        hand.end()
    finally:
        notify.notify("STOPPING=1")
        orders.close()
        hand.close()
    return 0


def _nothing() -> None:
    pass


def _of_hosts(states: dict[str, Record]) -> dict[str, dict[str, Record]]:
    """Return what was noted, by host."""
    found: dict[str, dict[str, Record]] = {}
    for name, state in states.items():
        host = name.partition(" ")[2].partition("/")[0]
        found.setdefault(host, {})[name] = state
    return found


def _boot() -> str:
    """Return this boot's id as flows carry it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _on_signals(stopping: threading.Event) -> None:
    """Stop on SIGTERM and SIGINT, where this is the process's main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
