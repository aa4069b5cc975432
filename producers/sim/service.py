"""Runs the simulated fleet as a service, at the speed of real time.

It publishes on the topics that real agents write, and on `fabric.truth`. It follows probe schedules, accepts
faults over the control socket, and waits for workers that fall behind. If the machine or the workers are too
slow, simulated time passes more slowly than real time. The status line shows this pace. The inventory
announces it, because readers compare simulated time with log time.
"""

from __future__ import annotations

import gc
import logging
import time
from pathlib import Path
from typing import Any, Final

from producers.inventory.nics import LookupReader, RecordHandler
from producers.sim.announcements import nic_announcements
from producers.sim.control import ControlServer, Request
from producers.sim.fault_injection import SimFault
from producers.sim.flow_endpoint import SimFlowEndpoint
from producers.sim.settings import SimSettings
from producers.sim.simulation import TICK_NS, Simulation
from schemas import codec
from schemas.kafka.bounded_producer import BoundedProducer
from schemas.records import ClockOffsets, ProbeSchedule, TrueFault
from schemas.service_notifier import ServiceNotifier
from schemas.simulation_pace import FULL_PACE, advice, pace_text
from schemas.stop_request import StopRequest
from schemas.topics import CLOCK_OFFSETS, INVENTORY, LINKS, PROBE_SCHEDULES, Topic

_log = logging.getLogger(__name__)

_STATUS_S: Final = 2.0
_WARN_EVERY_S: Final = 30.0
_POLL_S: Final = 0.2
_WAIT_S: Final = 0.05
_CLOSE_S: Final = 3.0
_MAX_BEHIND_S: Final = 1.0
"""If the simulation lags behind real time by more than this, the lag is skipped."""
_MAX_LATE_S: Final = 5.0
"""If the workers lag by more than this, the simulation waits for them."""
_STALL_TIMEOUT_S: Final = 30.0
"""If the workers solve no window for this long, they count as gone, and the simulation no longer waits."""
_ANNOUNCE_EVERY_S: Final = 5.0
"""Shortest time between two announcements of the pace."""
_PACE_CHANGE: Final = 0.05
"""Smallest change of the pace that is announced, unless the simulation becomes slow or recovers."""
_MEASURED_S: Final = 5.0
"""Time after the start before which the pace is not announced, because it is measured over some seconds."""
_LINGER_MS: Final = 20
"""Time for which a message waits for others of its partition: two ticks. The log's cost is per request."""
_URGENT_LINGER_MS: Final = 1
"""The same for link evidence: the messages of one tick share a request."""
_TRACES_PER_TICK: Final = 60
_IN_FLIGHT: Final = 20_000
_WAITING: Final = 60_000
_WAITING_BYTES: Final = 256 << 20


class RealTimePacer:
    """Keeps simulated time at the pace of real time. It reads no clock: callers pass monotonic seconds."""

    def __init__(self, now_s: float, tick_s: float) -> None:
        self._tick_s = tick_s
        self.ticks = 0
        self.lost_s = 0.0
        """Total real time that was skipped."""
        self.start(now_s)

    def start(self, now_s: float) -> None:
        """Start real time now, so that preparing the fleet's paths and names does not count as a lag."""
        self._due_s = now_s
        self._marks = [(now_s, self.ticks)]

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next tick is due; 0 if a tick is due now."""
        return max(0.0, self._due_s + self._tick_s - now_s)

    def done(self, now_s: float) -> None:
        """Record that a tick has run."""
        self.ticks += 1
        self._due_s += self._tick_s
        behind_s = now_s - self._due_s
        if behind_s > _MAX_BEHIND_S:
            self.lost_s += behind_s
            self._due_s = now_s
        self._mark(now_s)

    def on_pause(self, now_s: float) -> None:
        """Record that no tick ran until now. The time since the last due tick is skipped."""
        self.lost_s += max(0.0, now_s - self._due_s - self._tick_s)
        self._due_s = now_s - self._tick_s
        self._mark(now_s)

    def _mark(self, now_s: float) -> None:
        if now_s - self._marks[-1][0] >= 1.0:
            self._marks = [*self._marks[-5:], (now_s, self.ticks)]

    def factor(self, now_s: float) -> float:
        """Return simulated time over real time in the last five seconds or so; 1 means full pace."""
        then_s, ticks = self._marks[0]
        return (self.ticks - ticks) * self._tick_s / max(now_s - then_s, 1e-9)

    def pace(self, now_s: float) -> float:
        """Return the pace to publish: simulated seconds per real second, with two decimals, at most 1."""
        return min(1.0, round(self.factor(now_s), 2))


class PaceAnnouncer:
    """Decides when the fleet's pace is announced again. Callers pass monotonic seconds."""

    def __init__(self, now_s: float) -> None:
        self.pace = 1.0
        """The pace in the last announcement."""
        self._start_s = self._announced_s = now_s

    def is_due(self, pace: float, now_s: float) -> bool:
        """Return whether to announce the present pace now; if so, record that it is announced."""
        if now_s - self._start_s < _MEASURED_S or now_s - self._announced_s < _ANNOUNCE_EVERY_S:
            return False
        crossed = (pace < FULL_PACE) != (self.pace < FULL_PACE)
        if not crossed and abs(pace - self.pace) < _PACE_CHANGE:
            return False
        self.pace, self._announced_s = pace, now_s
        return True


class WorkerProgress:
    """Tracks the lag of the workers by the newest window that they solved.

    Times are seconds of the log's clock, passed by the caller. No lag counts before the first solved window.
    """

    def __init__(self, start_s: float) -> None:
        self.solved_s: float | None = None
        self._start_s = self._heard_s = start_s

    def solved(self, window_end_s: float, now_s: float) -> None:
        """Record that the window with this end, s, is solved. Windows of an earlier fleet are ignored."""
        if window_end_s > (self.solved_s or self._start_s):
            self.solved_s, self._heard_s = window_end_s, now_s

    def late(self, sent_s: float, now_s: float) -> bool:
        """Return True if the simulation, which has published up to `sent_s`, must wait for the workers."""
        if self.solved_s is None or now_s - self._heard_s > _STALL_TIMEOUT_S:
            return False
        return sent_s - self.solved_s > _MAX_LATE_S


def main(settings: SimSettings, socket: Path | None = None, actuator: Path | None = None) -> int:
    """Simulate until SIGTERM or SIGINT, and answer on the control socket.

    `actuator` is the flow actuator's socket; without it, no flow is moved or paced. Returns the exit code: 0
    if stopped, 2 if it cannot start.
    """
    stop = StopRequest()
    stop.set_on_signals()
    registry = settings.kafka.registry()
    start_ns = time.time_ns() // TICK_NS * TICK_NS
    pace = RealTimePacer(time.monotonic(), TICK_NS / 1e9)
    try:
        run = Simulation(settings, start_ns=start_ns, traces_per_tick=_TRACES_PER_TICK)
        control = None if socket is None else ControlServer(socket, _Commands(run, pace).table())
    except (OSError, ValueError) as error:
        _log.error("simulated fleet: %s", error)
        return 2
    owner = None if actuator is None else SimFlowEndpoint(actuator, run)
    producer = _FleetProducer(settings)
    progress = WorkerProgress(time.time())
    takes: dict[Topic, RecordHandler] = {
        PROBE_SCHEDULES: _on_schedule(run),
        CLOCK_OFFSETS: _on_offsets(settings.shard, progress),
    }
    reader = LookupReader(settings.kafka, takes, registry)
    notify = ServiceNotifier()
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
    pace.start(time.monotonic())
    reporter = _PaceReporter(run, pace, producer, notify)
    poll_at_s = 0.0
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
                    producer.put(out.topic, out.key, out.value(registry))
                producer.poll()
                sent_s = time.time()
                pace.done(time.monotonic())
            reporter.report(time.monotonic())
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


class _FleetProducer:
    """Publishes a whole fleet's messages: link evidence at once, the rest in shared requests."""

    def __init__(self, settings: SimSettings) -> None:
        self._urgent = _open_producer(settings, _URGENT_LINGER_MS)
        self._shared = _open_producer(settings, _LINGER_MS)

    def put(self, topic: Topic, key: str, value: bytes | None) -> None:
        """Queue a message; a value of None is a tombstone."""
        (self._urgent if topic is LINKS else self._shared).put(topic.name, key, value)

    def poll(self) -> None:
        """Process acknowledgements of the log, and send queued messages."""
        self._urgent.poll()
        self._shared.poll()

    @property
    def waiting(self) -> int:
        """Number of messages that are not acknowledged yet."""
        return self._urgent.waiting + self._shared.waiting

    @property
    def dropped(self) -> int:
        """Number of messages discarded because the log did not accept them in time."""
        return self._urgent.dropped + self._shared.dropped

    @property
    def failed(self) -> int:
        """Messages that the log refused."""
        return self._urgent.failed + self._shared.failed

    def close(self, timeout_s: float) -> int:
        """Send the queued messages for at most `timeout_s` per producer; return the number not sent."""
        return self._urgent.close(timeout_s) + self._shared.close(timeout_s)


def _open_producer(settings: SimSettings, linger_ms: int) -> BoundedProducer:
    return BoundedProducer(
        settings.kafka, _WAITING, _WAITING_BYTES, in_flight=_IN_FLIGHT, linger_ms=linger_ms
    )


class _PaceReporter:
    """Reports the pace: to the service manager, in the inventory, and in the log of the service."""

    def __init__(
        self, run: Simulation, pacer: RealTimePacer, producer: _FleetProducer, notify: ServiceNotifier
    ) -> None:
        self._run, self._pacer, self._producer, self._notify = run, pacer, producer, notify
        self._announcer = PaceAnnouncer(time.monotonic())
        self._status_s = self._warn_s = 0.0

    def report(self, now_s: float) -> None:
        """Send each of the pace reports that is due."""
        if now_s < self._status_s:
            return
        self._status_s = now_s + _STATUS_S
        pace = self._pacer.pace(now_s)
        self._notify.notify(f"STATUS={_status(self._run, pace, self._pacer.lost_s, self._producer)}")
        if self._announcer.is_due(pace, now_s):
            self._run.pace = pace
            self._run.announce_pace()
        hint = advice(self._announcer.pace, self._run.fleet.nics)
        if hint and now_s >= self._warn_s:
            self._warn_s = now_s + _WARN_EVERY_S
            skipped_s = self._pacer.lost_s
            _log.warning("slow: %s, %.1f s skipped so far: %s", pace_text(pace), skipped_s, hint)


def _status(run: Simulation, pace: float, skipped_s: float, producer: _FleetProducer) -> str:
    broken = sum(fault.end_ns is None for fault in run.faults)
    hint = advice(pace, run.fleet.nics)
    slow = f" ({skipped_s:.0f} s skipped: {hint})" if hint else ""
    return (
        f"{pace_text(pace)}{slow}, {run.fleet.nics} NICs, {len(run.book.flows)} flows, "
        f"{broken} faults, {len(run.contention())} queues persist, {producer.waiting} messages wait, "
        f"{producer.dropped} dropped, {producer.failed} failed"
    )


def _announce_end(run: Simulation, producer: _FleetProducer, registry: codec.Registry | None) -> None:
    """Publish for every NIC that it no longer answers probes, as real agents do when they stop."""
    for record in nic_announcements(run):
        value = codec.encode(INVENTORY.type, {**record, "probe_port": 0}, registry)
        producer.put(INVENTORY, record["nic"], value)


class _Commands:
    """Executes the commands that arrive at the control socket."""

    def __init__(self, run: Simulation, pacer: RealTimePacer) -> None:
        self._run, self._pacer = run, pacer

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
            "pace": self._pacer.pace(time.monotonic()),
            "skipped_s": self._pacer.lost_s,
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
