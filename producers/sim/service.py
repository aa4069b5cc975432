"""Runs the simulated fleet as a service, at the pace of real time.

It publishes on the topics that real agents write, and `fabric.truth`. It follows probe schedules, accepts
faults over the control socket, and waits for workers that fall behind. If the machine or the workers cannot
keep the pace, the status line shows by how much.
"""

from __future__ import annotations

import gc
import logging
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from sdnotify import SystemdNotifier

from producers.bounded_producer import BoundedProducer
from producers.inventory.nics import LookupReader, RecordHandler
from producers.sim.announcements import nic_announcements
from producers.sim.control import ControlServer, Request
from producers.sim.fault_injection import SimFault
from producers.sim.flow_endpoint import SimFlowEndpoint
from producers.sim.settings import SimSettings
from producers.sim.simulation import TICK_NS, Simulation
from producers.stop_request import StopRequest
from schemas import codec
from schemas.kafka.publisher import PARTITIONER
from schemas.kafka.settings import service_options
from schemas.records import ClockOffsets, ProbeSchedule, TrueFault
from schemas.topics import CLOCK_OFFSETS, INVENTORY, PROBE_SCHEDULES, Topic

__all__ = ["RealTimePacer", "WorkerProgress", "main"]

_log = logging.getLogger(__name__)

_STATUS_S: Final = 2.0
_WARN_EVERY_S: Final = 30.0
_POLL_S: Final = 0.2
_WAIT_S: Final = 0.05
_CLOSE_S: Final = 3.0
_MAX_BEHIND_S: Final = 1.0
"""Lag behind real time above which the rest is skipped."""
_MAX_LATE_S: Final = 5.0
"""Lag of the workers above which the simulation waits for them."""
_STALL_TIMEOUT_S: Final = 30.0
"""Workers without a new window for this long are gone, and the simulation no longer waits."""
_TRACES_PER_TICK: Final = 60
_IN_FLIGHT: Final = 20_000
_WAITING: Final = 60_000
_WAITING_BYTES: Final = 256 << 20


class RealTimePacer:
    """Keeps the simulation at real time. Pure; times are monotonic seconds."""

    def __init__(self, now_s: float, tick_s: float) -> None:
        self._tick_s = tick_s
        self._due_s = now_s
        self._marks = [(now_s, 0)]
        self.ticks = 0
        self.lost_s = 0.0
        """Skipped real time."""

    def wait_s(self, now_s: float) -> float:
        """Return the time until the next tick is due, 0 if it is."""
        return max(0.0, self._due_s + self._tick_s - now_s)

    def done(self, now_s: float) -> None:
        """Note that a tick has run."""
        self.ticks += 1
        self._due_s += self._tick_s
        behind_s = now_s - self._due_s
        if behind_s > _MAX_BEHIND_S:
            self.lost_s += behind_s
            self._due_s = now_s
        self._mark(now_s)

    def on_pause(self, now_s: float) -> None:
        """Note that no tick ran up to now; the time since the last due tick is skipped."""
        self.lost_s += max(0.0, now_s - self._due_s - self._tick_s)
        self._due_s = now_s - self._tick_s
        self._mark(now_s)

    def _mark(self, now_s: float) -> None:
        if now_s - self._marks[-1][0] >= 1.0:
            self._marks = [*self._marks[-5:], (now_s, self.ticks)]

    def factor(self, now_s: float) -> float:
        """Return simulated over real time in the last five seconds or so; 1 means full pace."""
        then_s, ticks = self._marks[0]
        return (self.ticks - ticks) * self._tick_s / max(now_s - then_s, 1e-9)


class WorkerProgress:
    """Tracks how far the workers are behind, by the newest window that they solved.

    Pure; times are seconds of the log's clock. Before the first window the simulation does not wait.
    """

    def __init__(self, start_s: float) -> None:
        self.solved_s: float | None = None
        self._start_s = self._heard_s = start_s

    def solved(self, window_end_s: float, now_s: float) -> None:
        """Note that the window that ended then is solved; windows of an earlier fleet are ignored."""
        if window_end_s > (self.solved_s or self._start_s):
            self.solved_s, self._heard_s = window_end_s, now_s

    def late(self, sent_s: float, now_s: float) -> bool:
        """Return True if the simulation must wait after it published up to `sent_s`."""
        if self.solved_s is None or now_s - self._heard_s > _STALL_TIMEOUT_S:
            return False
        return sent_s - self.solved_s > _MAX_LATE_S


def main(settings: SimSettings, socket: Path | None = None, actuator: Path | None = None) -> int:
    """Simulate until SIGTERM or SIGINT, and answer on the control socket.

    `actuator` is the socket of the flows' actuator; without it, no flow is moved or paced. Returns the exit
    code: 0 stopped, 2 cannot start.
    """
    stop = StopRequest()
    stop.set_on_signals()
    registry = settings.kafka.registry()
    start_ns = time.time_ns() // TICK_NS * TICK_NS
    try:
        run = Simulation(settings, start_ns=start_ns, traces_per_tick=_TRACES_PER_TICK)
        control = None if socket is None else ControlServer(socket, _Commands(run).table())
    except (OSError, ValueError) as error:
        _log.error("simulated fleet: %s", error)
        return 2
    owner = None if actuator is None else SimFlowEndpoint(actuator, run)
    producer = _open_producer(settings)
    progress = WorkerProgress(time.time())
    takes: dict[Topic, RecordHandler] = {
        PROBE_SCHEDULES: _on_schedule(run),
        CLOCK_OFFSETS: _on_offsets(settings.shard, progress),
    }
    reader = LookupReader(settings.kafka, takes, registry)
    notify = SystemdNotifier()
    notify.notify("READY=1")
    fleet = run.fleet
    _log.info(
        "%d NICs, %d links, %d flows, steps of %d us",
        fleet.nics,
        fleet.links,
        len(run.flows()),
        settings.step_ns // 1000,
    )
    gc.freeze()  # paths and names stay for good, so garbage collection can skip them
    pace = RealTimePacer(time.monotonic(), TICK_NS / 1e9)
    status_at = warn_at = poll_at_s = 0.0
    sent_s = time.time()
    try:
        while not stop.is_set():
            now_s = time.monotonic()
            wait_s = pace.wait_s(now_s)
            if wait_s > 0:
                producer.poll()
                if owner is None:
                    stop.wait(wait_s)
                else:
                    owner.wait(wait_s)
                continue
            if owner is not None:
                owner.serve()
            if control is not None:
                control.serve()
            if now_s >= poll_at_s:
                poll_at_s = now_s + _POLL_S
                reader.poll()
            if progress.late(sent_s, time.time()):
                producer.poll()
                stop.wait(_WAIT_S)
                pace.on_pause(time.monotonic())
            else:
                for out in run.tick():
                    producer.put(out.topic.name, out.key, out.value(registry))
                producer.poll()
                sent_s = time.time()
                pace.done(time.monotonic())
            now_s = time.monotonic()
            factor = pace.factor(now_s)
            if now_s >= status_at:
                status_at = now_s + _STATUS_S
                notify.notify(f"STATUS={_status(run, pace, factor, producer)}")
                if factor < 0.97 and pace.ticks > 500 and now_s >= warn_at:
                    warn_at = now_s + _WARN_EVERY_S
                    _log.warning("falls behind: %.2f of real time, %.1f s skipped", factor, pace.lost_s)
        _announce_end(run, producer, registry)
    finally:
        notify.notify("STOPPING=1")
        if control is not None:
            control.close()
        if owner is not None:
            owner.close()
        reader.close()
        left = producer.close(_CLOSE_S)
        if left:
            _log.warning("%d messages could not be sent before the end", left)
    return 0


def _on_schedule(run: Simulation) -> RecordHandler:
    def take(nic: str, record: ProbeSchedule | None, append_ms: int) -> None:
        if record is not None:
            try:
                run.probes.follow_schedule(record)
            except ValueError as error:
                _log.warning("%s", error)

    return take


def _on_offsets(shard: str, progress: WorkerProgress) -> RecordHandler:
    def take(key: str, record: ClockOffsets | None, append_ms: int) -> None:
        if record is not None and record["shard"] == shard:
            progress.solved((record["window_end_ns"] - record["log_offset_ns"]) / 1e9, time.time())

    return take


def _open_producer(settings: SimSettings) -> BoundedProducer:
    """Return a producer for a whole fleet's messages, which may wait some milliseconds to share a request."""
    producer = Producer(
        {
            **service_options(settings.kafka),
            "partitioner": PARTITIONER,
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "none",
            "message.timeout.ms": 0,
            "message.max.bytes": 4_000_000,
            "queue.buffering.max.messages": 2 * _IN_FLIGHT,
        }
    )
    return BoundedProducer(settings.kafka, _WAITING, _WAITING_BYTES, producer=producer, in_flight=_IN_FLIGHT)


def _status(run: Simulation, pace: RealTimePacer, factor: float, producer: BoundedProducer) -> str:
    broken = sum(fault.end_ns is None for fault in run.faults)
    behind = "" if factor >= 0.97 else f" (behind: {pace.lost_s:.0f} s skipped)"
    return (
        f"{factor:.2f} of real time{behind}, {run.fleet.nics} NICs, {len(run.book.flows)} flows, "
        f"{broken} faults, {len(run.contention())} queues persist, {producer.waiting} messages wait, "
        f"{producer.dropped} dropped"
    )


def _announce_end(run: Simulation, producer: BoundedProducer, registry: codec.Registry | None) -> None:
    """Announce every NIC as one that answers no probes, as real agents do when they stop."""
    for record in nic_announcements(run):
        value = codec.encode(INVENTORY.type, {**record, "probe_port": 0}, registry)
        producer.put(INVENTORY.name, record["nic"], value)


class _Commands:
    """The commands of the control socket."""

    def __init__(self, run: Simulation) -> None:
        self._run = run

    def table(self) -> dict[str, Any]:
        return {"status": self._status, "fault": self._fault, "clear": self._clear}

    def _status(self, request: Request) -> dict[str, object]:
        run = self._run
        sent, answered, lost, _ = run.kernel.totals()
        return {
            "nics": run.fleet.nics,
            "links": run.fleet.links,
            "now_ns": run.now_ns,
            "start_ns": run.start_ns,
            "probes": {"sent": sent, "answered": answered, "lost": lost},
            "flows": len(run.book.flows),
            "jobs": run.job_state(),
            "contention": run.contention(),
            "faults": [self._row(fault) for fault in run.faults if fault.end_ns is None],
        }

    def _fault(self, request: Request) -> TrueFault:
        return self._row(self._run.fault(_text(request, "line")))

    def _clear(self, request: Request) -> list[TrueFault]:
        which = None if request.get("fault") is None else _text(request, "fault")
        return [self._row(fault) for fault in self._run.clear(which)]

    def _row(self, fault: SimFault) -> TrueFault:
        return fault.record(self._run.fleet.link_ids)


def _text(request: Request, key: str) -> str:
    value = request[key]
    if not isinstance(value, str | int):
        raise ValueError(f"{key} {value!r}: expected text")
    return str(value)
