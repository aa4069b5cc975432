"""The simulated fleet as a service: what all its agents would publish, at the pace of real time.

In: `SimSettings`, `fabric.probe-schedules`, `fabric.clock.offsets`, which tell how far behind the workers are, and
faults over the control socket. Out: acknowledged Kafka messages on the topics that real agents write, and
`fabric.truth`. Where the machine cannot keep the pace, or the workers cannot, it says by how much.
"""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from confluent_kafka import Producer
from sdnotify import SystemdNotifier

from producers.bounded_producer import BoundedProducer, kafka_client
from producers.inventory.nics import LookupReader, RecordHandler
from producers.sim.control import ControlServer
from producers.sim.flow_endpoint import SimFlowEndpoint
from producers.sim.settings import SimSettings
from producers.sim.simulation import TICK_NS, SimFault, Simulation
from schemas import codec
from schemas.topics import CLOCK_OFFSETS, INVENTORY, PROBE_SCHEDULES

__all__ = ["RealTimePacer", "WorkerProgress", "main"]

_log = logging.getLogger(__name__)

_STATUS_S: Final = 2.0
_WARN_EVERY_S: Final = 30.0
_TOLD_S: Final = 0.2
_HOLD_S: Final = 0.05
_CLOSE_S: Final = 3.0
_BEHIND_MOST_S: Final = 1.0
"""Further behind real time than this, it lets the rest go and carries on from there."""
_LATE_MOST_S: Final = 5.0
"""Workers that are further behind what was sent are waited for."""
_PATIENCE_S: Final = 30.0
"""Not for longer than this without a new window of theirs: they are gone, it seems."""
_TRACES_PER_TICK: Final = 60
_IN_FLIGHT: Final = 20_000
_WAITING: Final = 60_000
_WAITING_BYTES: Final = 256 << 20

Record = dict[str, Any]


class RealTimePacer:
    """How the simulation keeps to real time. Pure: it is told the time (s, monotonic)."""

    def __init__(self, now_s: float, tick_s: float) -> None:
        self._tick_s = tick_s
        self._due_s = now_s
        self._marks = [(now_s, 0)]
        self.ticks = 0
        self.lost_s = 0.0
        """Real time that was given up, since it could not be caught up."""

    def wait_s(self, now_s: float) -> float:
        """Return how long until the next tick may run, 0 where it is due."""
        return max(0.0, self._due_s + self._tick_s - now_s)

    def done(self, now_s: float) -> None:
        """Note that a tick has run."""
        self.ticks += 1
        self._due_s += self._tick_s
        behind_s = now_s - self._due_s
        if behind_s > _BEHIND_MOST_S:
            self.lost_s += behind_s
            self._due_s = now_s
        self._mark(now_s)

    def held(self, now_s: float) -> None:
        """Note that no tick ran up to now: the time since the last one was due is given up."""
        self.lost_s += max(0.0, now_s - self._due_s - self._tick_s)
        self._due_s = now_s - self._tick_s
        self._mark(now_s)

    def _mark(self, now_s: float) -> None:
        if now_s - self._marks[-1][0] >= 1.0:
            self._marks = [*self._marks[-5:], (now_s, self.ticks)]

    def factor(self, now_s: float) -> float:
        """Return simulated over real time, of the last some five seconds; 1: it keeps the pace."""
        then_s, ticks = self._marks[0]
        return (self.ticks - ticks) * self._tick_s / max(now_s - then_s, 1e-9)


class WorkerProgress:
    """How far the workers are behind what was sent to them, by the newest window that they solved. Pure: it
    is told the times, s of the log's clock; nobody is waited for before the first window."""

    def __init__(self, start_s: float) -> None:
        self.solved_s: float | None = None
        self._start_s = self._heard_s = start_s

    def solved(self, window_end_s: float, now_s: float) -> None:
        """Take that the window that ended then has been solved; those of an earlier fleet say nothing."""
        if window_end_s > (self.solved_s or self._start_s):
            self.solved_s, self._heard_s = window_end_s, now_s

    def late(self, sent_s: float, now_s: float) -> bool:
        """Whether to wait for them with what comes after what was sent at `sent_s`."""
        if self.solved_s is None or now_s - self._heard_s > _PATIENCE_S:
            return False
        return sent_s - self.solved_s > _LATE_MOST_S


def main(settings: SimSettings, socket: Path | None = None, actuator: Path | None = None) -> int:
    """Simulate until SIGTERM or SIGINT, and answer on the control socket. `actuator`: where the actuator of
    the flows listens, None: nobody acts on them.

    Returns the exit code: 0 stopped, 2 cannot start.
    """
    stopping = threading.Event()
    _on_signals(stopping)
    registry = _registry(settings.schema_registry_url)
    start_ns = time.time_ns() // TICK_NS * TICK_NS
    try:
        run = Simulation(settings, start_ns=start_ns, traces_per_tick=_TRACES_PER_TICK)
        control = None if socket is None else ControlServer(socket, _Commands(run).table())
    except (OSError, ValueError) as error:
        _log.error("simulated fleet: %s", error)
        return 2
    owner = None if actuator is None else SimFlowEndpoint(actuator, run)
    outlet = _outlet(settings)
    readers = WorkerProgress(time.time())
    takes = {PROBE_SCHEDULES: _take_turns(run), CLOCK_OFFSETS: _take_offsets(settings.shard, readers)}
    told = LookupReader(kafka_client(settings.bootstrap), takes, registry)
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
    gc.freeze()  # paths and names stay for good: nothing to look through again and again
    pace = RealTimePacer(time.monotonic(), TICK_NS / 1e9)
    status_at = warn_at = told_at = 0.0
    sent_s = time.time()
    try:
        while not stopping.is_set():
            now_s = time.monotonic()
            wait_s = pace.wait_s(now_s)
            if wait_s > 0:
                outlet.poll()
                if owner is None:
                    stopping.wait(wait_s)
                else:
                    owner.wait(wait_s)
                continue
            if owner is not None:
                owner.serve()
            if control is not None:
                control.serve()
            if now_s >= told_at:
                told_at = now_s + _TOLD_S
                told.poll()
            if readers.late(sent_s, time.time()):
                outlet.poll()
                stopping.wait(_HOLD_S)
                pace.held(time.monotonic())
            else:
                for out in run.tick():
                    outlet.put(out.topic.name, out.key, out.value(registry))
                outlet.poll()
                sent_s = time.time()
                pace.done(time.monotonic())
            now_s = time.monotonic()
            factor = pace.factor(now_s)
            if now_s >= status_at:
                status_at = now_s + _STATUS_S
                notify.notify(f"STATUS={_status(run, pace, factor, outlet)}")
                if factor < 0.97 and pace.ticks > 500 and now_s >= warn_at:
                    warn_at = now_s + _WARN_EVERY_S
                    _log.warning("falls behind: %.2f of real time, %.1f s given up", factor, pace.lost_s)
        _say_goodbye(run, outlet, registry)
    finally:
        notify.notify("STOPPING=1")
        if control is not None:
            control.close()
        if owner is not None:
            owner.close()
        told.close()
        left = outlet.close(_CLOSE_S)
        if left:
            _log.warning("%d messages could not be sent before the end", left)
    return 0


def _take_turns(run: Simulation) -> RecordHandler:
    def take(nic: str, record: Record | None, append_ms: int) -> None:
        if record is not None:
            try:
                run.take_turns(record)
            except ValueError as error:
                _log.warning("%s", error)

    return take


def _take_offsets(shard: str, readers: WorkerProgress) -> RecordHandler:
    def take(key: str, record: Record | None, append_ms: int) -> None:
        if record is not None and record["shard"] == shard:
            readers.solved((record["window_end_ns"] - record["log_offset_ns"]) / 1e9, time.time())

    return take


def _outlet(settings: SimSettings) -> BoundedProducer:
    """Return an outlet for a whole fleet's messages: they may wait some milliseconds to travel together."""
    client = kafka_client(settings.bootstrap)
    producer = Producer(
        {
            **client,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "none",
            "message.timeout.ms": 0,
            "message.max.bytes": 4_000_000,
            "queue.buffering.max.messages": 2 * _IN_FLIGHT,
        }
    )
    return BoundedProducer(client, _WAITING, _WAITING_BYTES, producer=producer, in_flight=_IN_FLIGHT)


def _status(run: Simulation, pace: RealTimePacer, factor: float, outlet: BoundedProducer) -> str:
    broken = sum(fault.end_ns is None for fault in run.faults)
    behind = "" if factor >= 0.97 else f" (behind: {pace.lost_s:.0f} s given up)"
    return (
        f"{factor:.2f} of real time{behind}, {run.fleet.nics} NICs, {len(run.book.flows)} flows, "
        f"{broken} faults, {len(run.contention())} queues stand, {outlet.waiting} messages wait, "
        f"{outlet.dropped} dropped"
    )


def _say_goodbye(run: Simulation, outlet: BoundedProducer, registry: codec.Registry | None) -> None:
    """Announce every NIC once more, as one that answers no probes, as real agents do when they stop."""
    for record in run.announcements():
        value = codec.encode(INVENTORY.record, record | {"probe_port": 0}, registry)
        outlet.put(INVENTORY.name, record["nic"], value)


class _Commands:
    """What the control socket can ask."""

    def __init__(self, run: Simulation) -> None:
        self._run = run

    def table(self) -> dict[str, Any]:
        return {"status": self._status, "fault": self._fault, "clear": self._clear}

    def _status(self, request: Record) -> Record:
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

    def _fault(self, request: Record) -> Record:
        return self._row(self._run.fault(_text(request, "line")))

    def _clear(self, request: Record) -> list[Record]:
        which = None if request.get("fault") is None else _text(request, "fault")
        return [self._row(fault) for fault in self._run.clear(which)]

    def _row(self, fault: SimFault) -> Record:
        names = self._run.fleet.link_ids
        return {
            "fault": fault.number,
            "line": str(fault.spec),
            "links": [names[link] for link in fault.target.links],
            "begin_ns": fault.begin_ns,
            "end_ns": fault.end_ns,
        }


def _text(request: Record, key: str) -> str:
    value = request[key]
    if not isinstance(value, str | int):
        raise ValueError(f"{key} {value!r}: expected text")
    return str(value)


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
