"""The flow actuator: carries out the decisions for the hosts that it serves, and reports the results.

It takes decisions, fallbacks and config from Kafka, and path status reports from the hosts' probers. It sends
commands to flow endpoints and publishes reports on `fabric.actions`. On SIGTERM or SIGINT it ends all leases;
moves stay in force. One thread acts and never waits for Kafka; another does the Kafka I/O. The clock pages
are written by a process of their own, so that neither service waits for the other's interpreter lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actuators.clock.fabric_time import FabricTime, SimulatedHostTime
from actuators.effectors.endpoints import FlowEndpoints
from actuators.flows.applier import Applier
from actuators.flows.command_io import CommandIO, CommandItem
from actuators.flows.local_repair import DeadLinks, LocalRepair
from actuators.flows.metrics import FlowMetrics
from actuators.flows.pending import PendingMessages
from actuators.flows.signed_input import SignedInput
from actuators.flows.state import MOVES, key_of
from actuators.journal import Journal, State
from actuators.settings import ActuatorSettings, HostSettings
from schemas import codec
from schemas.ids import host_of
from schemas.ipc import SocketFile, receive_at, received
from schemas.kafka.message import Message
from schemas.kafka.schema_log import FollowedSchemas, SchemaUnread
from schemas.limits import EVERYONE
from schemas.log_fields import log_fields
from schemas.process_part import Part, own_process
from schemas.records import ActionOutcome, ActionReport, ActuatorConfig, PathStatusReport
from schemas.topics import CONFIG, DECISIONS, FALLBACKS, FLOWS, MAX_ELEMENTS
from schemas.unexpected import DATA_ERRORS, refusal

if TYPE_CHECKING:
    from actuators.effectors.kernel_pacing import KernelPacing

_log = logging.getLogger(__name__)

_STATUS_S: Final = 5.0
_IDLE_S: Final = 0.25
_RETRY_S: Final = 0.02
_MIN_WAIT_S: Final = 0.001
"""Minimum wait, s. If a due time stays in the past, it limits the load to a twentieth of a processor."""
_FLUSH_S: Final = 2.0
_STATUS_BYTES: Final = 1 << 20
_STATUS_BUFFER_BYTES: Final = 4 << 20
_MAX_STATUSES_AT_ONCE: Final = 64
"""Number of path status reports processed at once before anything else is served."""
_MAX_WARNINGS: Final = 20
_MAX_MESSAGES_AT_ONCE: Final = 256
"""Number of Kafka messages processed at once before endpoints and leases are served."""


class FlowActuator:
    """The acting thread of the flow actuator. `command_io` exchanges its messages with Kafka."""

    def __init__(
        self,
        settings: ActuatorSettings,
        hosts: Sequence[HostSettings],
        name: str,
        command_io: CommandIO,
        *,
        simulated: bool = False,
        registry: codec.Registry | None = None,
    ) -> None:
        """Listen for flow endpoints and restore the state of a former process. Raises OSError."""
        self.name, self.command_io, self._registry = name, command_io, registry
        self.run = secrets.randbits(62)
        self.selector = selectors.DefaultSelector()
        simulated_time = SimulatedHostTime() if simulated else None
        self.now_ns = simulated_time or FabricTime([host.clock_file for host in hosts])
        self._answer_clock_ns = simulated_time or time.monotonic_ns
        """Clock that measures the time limit for answers: a slow simulation answers in its own time."""
        names = [host.host for host in hosts]
        self.endpoints = FlowEndpoints(
            settings.control_path,
            names,
            self.selector,
            self._answer_clock_ns,
            settings.answer_ms * 1_000_000,
            None if simulated_time is None else simulated_time.take,
        )
        try:  # after listening, because the process that listens owns the journal
            self.journal = Journal(settings.journal_path)
        except BaseException:
            self.endpoints.close()
            raise
        self._inputs = SignedInput(settings.control, self.journal, registry, command_io.reject)
        handlers = (self._take_config, self._take_fallbacks, self._take_decision)
        kinds = ("config", "fallbacks", "decision")
        self._pending = PendingMessages(dict(zip(kinds, handlers, strict=True)), command_io)
        boot = None if simulated else _boot()
        states = _of_hosts(self.journal.states)
        self._kernels: dict[str, KernelPacing] = {}
        if settings.kernel_nics:
            from actuators.effectors.kernel_pacing import KernelPacing

            self._kernels = {
                host.host: KernelPacing(
                    host.host, self.endpoints.of(host.host), settings.kernel_nics, host.netns
                )
                for host in hosts
            }
        self.appliers: dict[str, Applier] = {}
        for host in names:
            applier = self.appliers[host] = Applier(
                host,
                self._kernels.get(host) or self.endpoints.of(host),
                self._report,
                self.now_ns,
                time.monotonic_ns,
                store=self.journal,
                states=states.get(host, {}),
                boot=boot,
            )
            applier.settled = False
            self.endpoints.set_listener(host, applier)
        self._records: dict[str, ActuatorConfig] = {}
        self.ready = False
        """True once the config has been read; before, nothing is done."""
        self._settle_s = time.monotonic() + settings.settle_ms / 1000
        self._settled = False
        self._announce_s: float | None = None
        self._announce_by_s = 0.0
        self.reports: dict[str, int] = {}
        """Maps outcome to the number of reports so far."""
        self.selector.register(command_io.wake_fd, selectors.EVENT_READ, self._woken)
        self.links = DeadLinks()
        self._repairs: dict[str, LocalRepair] = {}
        self._status_file: SocketFile | None = None
        self.statuses_received = self.statuses_refused = 0
        """Numbers of path status reports received, and of those refused."""
        if settings.local_repair_ms is not None:
            self._repairs = {host: LocalRepair(settings.local_repair_ms * 1_000_000) for host in names}
            self._status_file = SocketFile(
                settings.path_status_path, partial(receive_at, buffer_bytes=_STATUS_BUFFER_BYTES)
            )
            self.selector.register(self._status_file.socket, selectors.EVENT_READ, self._receive_status)
        self._metrics = FlowMetrics(self.endpoints, self.appliers.values(), self.reports)

    def step(self, max_wait_s: float = _IDLE_S) -> None:
        """Process messages, answers and timers that are due; wait for them up to `max_wait_s`."""
        for key, events in self.selector.select(self._wait_s(max_wait_s)):
            key.data(events)
        self._take_some()
        self._pending.refuse_late()
        self.endpoints.tick()
        self._repair()
        now_s = time.monotonic()
        if self._status_file is not None:
            self._status_file.check(now_s, self.selector)
        if not self._settled and self.ready and now_s >= self._settle_s:
            self._settled = True
            for host, kernel in self._kernels.items():
                kernel.restore(self.appliers[host].rates())
            for applier in self.appliers.values():
                applier.settle()
        for applier in self.appliers.values():
            applier.tick()
        if self._announce_s is not None and now_s >= self._announce_s:
            self._announce_when_idle(now_s)

    def announce_state(self, *, soon: bool = False) -> None:
        """Publish the actuator's state; with `soon`, once the pending commands are answered."""
        if soon:
            self._announce_s = time.monotonic()
            self._announce_by_s = self._announce_s + 1.0
        else:
            self._publish_state(ending=False)

    def end(self) -> None:
        """End all leases and publish the state. Moves stay in force."""
        for applier in self.appliers.values():
            applier.release("the actuator ends")
        until_s = time.monotonic() + 2 * self.endpoints.answer_s
        while any(applier.busy for applier in self.appliers.values()) and time.monotonic() < until_s:
            for key, events in self.selector.select(0.01):
                key.data(events)
            self.endpoints.tick()
        self._publish_state(ending=True)
        left = self.command_io.flush(_FLUSH_S)
        if left:
            _log.warning("%d messages could not be sent before the end", left)
        while (incoming := self.command_io.next()) is not None:
            if incoming.kind == "published":
                self._take(incoming)

    def close(self) -> None:
        """Close all sockets and files."""
        self._metrics.close()
        if self._status_file is not None:
            self._status_file.close()
        for kernel in self._kernels.values():
            kernel.close()
        self.endpoints.close()
        self.selector.close()
        self.journal.close()

    @property
    def fault(self) -> str:
        """A line about a socket file that was removed and cannot be recreated; empty if there is none."""
        status_fault = self._status_file.fault if self._status_file is not None else None
        return "; ".join(filter(None, (self.endpoints.fault, status_fault)))

    @property
    def status(self) -> str:
        """A one-line summary for the service manager."""
        moved = sum(applier.in_force for applier in self.appliers.values())
        modes = [applier.limits.act for applier in self.appliers.values()]
        dead = len(self.links.dead_at(time.monotonic_ns()))
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.reports.items()))
        return (
            f"{len(modes)} hosts, {sum(modes)} ACT, {self.endpoints.flows()} flows of "
            f"{self.endpoints.connected} endpoints, {moved} actions in force; reports: {counts or 'none'}; "
            f"{self.statuses_received} path status reports, {dead} dead links; "
            f"{self.command_io.rejected} refused, {len(self._pending)} waiting for their schema, "
            f"{self.endpoints.refused} lines unreadable"
        )

    # --- internals ---

    def _wait_s(self, max_wait_s: float) -> float:
        if self.command_io.urgent or (self.ready and self.command_io.queued):
            return 0.0
        waits = [max_wait_s]
        due_ns = self.endpoints.due_ns()
        if due_ns is not None:
            waits.append((due_ns - self._answer_clock_ns()) / 1e9)
        leases = [due for applier in self.appliers.values() if (due := applier.due_ns()) is not None]
        if leases:
            waits.append((min(leases) - self.now_ns()) / 1e9)
        waits += [
            (due - time.monotonic_ns()) / 1e9
            for repair in self._repairs.values()
            if (due := repair.due_ns()) is not None
        ]
        if self._announce_s is not None:
            waits.append(self._announce_s - time.monotonic())
        if not self._settled:
            waits.append(max(0.01, self._settle_s - time.monotonic()))
        return max(_MIN_WAIT_S, min(waits))

    def _woken(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.command_io.wake_fd)

    def _receive_status(self, events: int) -> None:
        """Process the path status reports that have arrived."""
        for _ in range(_MAX_STATUSES_AT_ONCE):
            if self._status_file is None:
                return
            try:
                data = received(self._status_file.socket, _STATUS_BYTES)
                if data is None:
                    return
                status = codec.decode(data, PathStatusReport)
                if host_of(status["nic"]) not in self._repairs:
                    raise ValueError(f"{status['nic']!r}: not a NIC of a host served here")
                self.links.take(status, time.monotonic_ns())
                self.statuses_received += 1
            except (codec.BadRecord, ValueError, PermissionError) as error:
                self.statuses_refused += 1
                if self.statuses_refused <= _MAX_WARNINGS:
                    _log.warning("path status report: %s", error)

    def _repair(self) -> None:
        """Make local repairs of flows for which no decision has arrived in time."""
        if not self.ready:
            return
        now_ns = time.monotonic_ns()
        dead = self.links.dead_at(now_ns)
        for host, repair in self._repairs.items():
            if not dead:
                repair.due(dead, {}, {}, now_ns)
                continue
            applier = self.appliers[host]
            flows = list(repair.flows())
            paths = {flow: self.endpoints.path_of(host, key_of(flow)) for flow in flows}
            fences = {flow: applier.fence_of(flow) for flow in flows}
            for due_repair in repair.due(dead, paths, fences, now_ns):
                applier.repair(*due_repair, len(flows))

    def _take_fallbacks(self, message: Message) -> None:
        host = message.key
        if host not in self._repairs:
            return
        try:
            record = self._inputs.decoded(FALLBACKS, message)
        except DATA_ERRORS as error:
            self.command_io.reject(message, refusal(error))
            return
        if record is None:
            self._pending.supersede(message)
        else:
            self.appliers[host].see_epoch(record["shard"], record["epoch"])
        self._repairs[host].take_fallbacks(record)

    def _take_flows(self, message: Message) -> None:
        """Process a host's flow report, so that the kernel can pace the host's flows."""
        kernel = self._kernels.get(message.key)
        if kernel is None or message.value is None:
            return
        try:
            record = codec.decode(message.value, FLOWS.type, self._registry)
        except (codec.BadRecord, SchemaUnread):  # the reader that keeps flows rejects it
            return
        for key in kernel.take_flows(record):
            self.appliers[kernel.host].seen(key)

    def _take_some(self) -> None:
        """Process a bounded number of queued messages; until the config is complete, only config."""
        for _ in range(_MAX_MESSAGES_AT_ONCE):
            while self.command_io.urgent:
                self._take(self.command_io.urgent.popleft())
            incoming = self.command_io.next() if self.ready else None
            if incoming is None:
                return
            self._take(incoming)

    def _take(self, incoming: CommandItem) -> None:
        if incoming.record is not None:
            self.appliers[incoming.record["host"]].published(incoming.record)
        elif incoming.kind == "schemas":
            self._pending.retry(incoming.whole_at_s)
        elif incoming.message is None:
            self.ready = True
            self._set_config()
        elif incoming.kind == "flows":
            self._take_flows(incoming.message)
        else:
            self._pending.process(incoming.kind, incoming.message)

    def _take_config(self, message: Message) -> None:
        key = message.key
        if key != EVERYONE and key not in self.appliers:
            return
        try:
            record = self._inputs.decoded(CONFIG, message)
        except DATA_ERRORS as error:
            self.command_io.reject(message, refusal(error))
            return
        if record is None:
            self._records.pop(key, None)
        else:
            self._records[key] = record
        self._pending.supersede(message)
        if self.ready:
            self._set_config()

    def _set_config(self) -> None:
        for applier in self.appliers.values():
            applier.take_config(self._records)
        self.announce_state(soon=True)

    def _take_decision(self, message: Message) -> None:
        done = partial(self.command_io.done, message)
        decision = None
        try:
            if message.key in self.appliers:
                decision = self._inputs.decoded(DECISIONS, message)
        except DATA_ERRORS as error:
            self.command_io.reject(message, refusal(error))
        if decision is None:
            done()
        else:
            self.appliers[decision["host"]].take(decision, done)

    def _report(self, record: ActionReport, done: Any) -> None:
        self._inputs.reported(record, done)
        self.reports[record["outcome"]] = self.reports.get(record["outcome"], 0) + 1
        _log_action(record)
        self.command_io.report(record, done or _nothing)

    def _announce_when_idle(self, now_s: float) -> None:
        """Publish the state once no command is pending and nothing remains to revert, or time is up."""
        busy = any(applier.busy or applier.reverting for applier in self.appliers.values())
        if busy and now_s < self._announce_by_s:
            self._announce_s = now_s + _RETRY_S
            return
        self._announce_s = None
        self._publish_state(ending=False)

    def _publish_state(self, *, ending: bool) -> None:
        rows = [applier.state(self.endpoints.flows(host)) for host, applier in self.appliers.items()]
        at_ns, parts = self.now_ns(), max(1, -(-len(rows) // MAX_ELEMENTS))
        for part in range(parts):
            self.command_io.state(
                {
                    "actuator": self.name,
                    "run": self.run,
                    "at_ns": at_ns,
                    "part": part,
                    "parts": parts,
                    "ending": ending,
                    "hosts": rows[part * MAX_ELEMENTS : (part + 1) * MAX_ELEMENTS],
                }
            )


def main(
    settings: ActuatorSettings,
    hosts: Sequence[HostSettings],
    *,
    name: str | None = None,
    simulated: bool = False,
    part: Part | None = None,
) -> int:
    """Carry out decisions for `hosts` until stopped. Return 0 after a stop, 2 if unable to start.

    `simulated`: accept flows of any boot, and the time of their simulation.
    """
    stopping, notifier = part or own_process()
    actuator_name = name or (hosts[0].host if len(hosts) == 1 else socket.gethostname())
    is_followed = settings.kafka.schema_registry_url is None
    registry: codec.Registry = FollowedSchemas() if is_followed else settings.kafka.registry()
    command_io = CommandIO(
        settings.kafka,
        actuator_name,
        [host.host for host in hosts],
        registry,
        flows=bool(settings.kernel_nics),
    )
    try:
        actuator = FlowActuator(
            settings, hosts, actuator_name, command_io, simulated=simulated, registry=registry
        )
    except OSError as error:
        _log.error("%s", ": ".join(filter(None, (error.filename, error.strerror or str(error)))))
        return 2
    except ValueError as error:  # unusable keys
        _log.error("%s", error)
        return 2
    command_io.start()
    ready, status_s, fault = False, 0.0, ""
    try:
        while not stopping.is_set():
            actuator.step()
            now_s = time.monotonic()
            if actuator.ready and not ready:
                ready = True
                _log.info(
                    "%s: acts for %d hosts, flow endpoints connect to %s",
                    actuator_name,
                    len(hosts),
                    settings.control_path,
                )
                notifier.notify("READY=1")
            if actuator.fault != fault:
                fault = actuator.fault
                notifier.notify(f"X_FAULT={fault}")
            if now_s >= status_s:
                status_s = now_s + _STATUS_S
                notifier.notify(f"STATUS={actuator.status}")
                notifier.notify("WATCHDOG=1")
                if actuator.ready:
                    actuator.announce_state()
        actuator.end()
    finally:
        notifier.notify("STOPPING=1")
        command_io.close()
        actuator.close()
    return 0


def _log_action(record: ActionReport) -> None:
    """Log the outcome of a move; rate changes are too frequent to log."""
    if record["action"] in MOVES and record["outcome"] != ActionOutcome.DUPLICATE:
        text = f"{record['action']} {record['flow_id']}: {record['outcome']} {record['detail']}"
        _log.info("%s", text, extra=log_fields(record))


def _nothing() -> None:
    pass


def _of_hosts(states: dict[str, State]) -> dict[str, dict[str, State]]:
    """Return the saved states of flows and hosts, grouped by host."""
    states_by_host: dict[str, dict[str, State]] = {}
    for name, state in states.items():
        host = name.partition(" ")[2].partition("/")[0]
        states_by_host.setdefault(host, {})[name] = state
    return states_by_host


def _boot() -> str:
    """Return the boot id in the format used in flow ids."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
