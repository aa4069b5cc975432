"""Computes the figures of the live table and the scorecard from the topics.

A consumer without a group reads ClockFits, ClockOffsets, PathDelays and Nic records. `View` holds totals and
the newest state of each NIC, clock and path. Each ClockFits record is counted only once, by its identity.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import BEGINNING, END, LogUnavailable, Start, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.log_time import WindowOrder
from schemas.records import ClockFits, ClockOffsets, PathDelays
from schemas.simulation_pace import SimulatedTime
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, DELAYS, INVENTORY, TOPICS, Topic
from schemas.validation import is_window_consistent

RECENT_S: Final = 5.0
DELAYS_SHARE: Final = 0.2
"""Share of one processor that decoding of path delays may take. Beyond it, some NICs are left out."""
FETCH_WAIT_MS: Final = 250
FETCH_BYTES: Final = 1 << 20
_BURST_S: Final = 0.5
_REMEMBERED: Final = 100_000
_RECORD_NS: Final = 1_000_000_000
MAX_LATE_MS: Final = 3_600_000.0
"""How far a window's end may be from its append time, ms. Beyond it, a record is old or wrong, not late."""


@dataclass(slots=True)
class NicView:
    """One NIC as prober: totals since the view began, and the rate of its last window."""

    samples: int = 0
    lost: int = 0
    lost_batches: int = 0
    restarts: int = 0
    probes_per_s: float = 0.0
    heard_s: float = 0.0


@dataclass(slots=True)
class ClockView:
    """A clock's newest published state."""

    at_ns: int
    offset_ns: float
    drift_ppb: float
    bound_ns: float
    state: str
    window: int
    heard_s: float


@dataclass(slots=True)
class PathView:
    """The path with the highest p99 of one NIC's last window."""

    peer: str
    path: int
    p99_ns: float
    bound_ns: float
    heard_s: float
    back: bool = False  # from the peer to the NIC


@dataclass
class View:
    """Totals and newest states since the view began. One thread adds records; others read under `lock`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    nics: dict[str, NicView] = field(default_factory=dict)
    clocks: dict[str, ClockView] = field(default_factory=dict)
    worst: dict[str, PathView] = field(default_factory=dict)
    clock_of: dict[str, str] = field(default_factory=dict)
    simulated: SimulatedTime = field(default_factory=SimulatedTime)
    lag: dict[str, int] = field(default_factory=dict)
    late_ms: float | None = None
    rejected: int = 0
    unreadable: int = 0
    _identities: OrderedDict[tuple[Any, ...], None] = field(default_factory=OrderedDict)
    _order: WindowOrder = field(default_factory=WindowOrder)

    def add(self, topic: str, record: Any, append_ns: int) -> None:
        """Add one record of the topic's type, appended to the log at `append_ns`."""
        with self.lock:
            if topic == INVENTORY.name:
                self.clock_of[record["nic"]] = record["clock"]
                self.simulated.take(record["nic"], record, append_ns)
            elif topic == CLOCK_FITS.name:
                if self._first(topic, record["source"], record["window"], record["part"]):
                    self._add_fits(record)
            elif topic == CLOCK_OFFSETS.name:
                self._add_offsets(record, append_ns)
            elif topic == DELAYS.name:
                self._add_delays(record)

    def remove_nic(self, nic: str) -> None:
        """Remove a NIC from the simulated NICs after its tombstone."""
        with self.lock:
            self.simulated.take(nic, None, 0)

    def _first(self, *identity: Any) -> bool:
        if identity in self._identities:
            return False
        self._identities[identity] = None
        if len(self._identities) > _REMEMBERED:
            self._identities.popitem(last=False)
        return True

    def _add_fits(self, record: ClockFits) -> None:
        now_s = time.monotonic()
        seconds = (record["window_end_ns"] - record["window_start_ns"]) / _RECORD_NS
        self.rejected += record["rejected"]
        if record["lag_messages"] >= 0:
            self.lag[record["source"]] = record["lag_messages"]
        for row in record["nics"]:
            nic = self.nics.setdefault(row["nic"], NicView())
            nic.samples += row["samples"]
            nic.lost += row["lost"]
            nic.lost_batches += row["lost_batches"]
            nic.restarts += row["restarts"]
            nic.probes_per_s = (row["samples"] + row["lost"]) / max(seconds, 1e-3)
            nic.heard_s = now_s

    def _add_offsets(self, record: ClockOffsets, append_ns: int) -> None:
        if not is_window_consistent(record):
            self.unreadable += 1
            return
        now_s = time.monotonic()
        steps_back = self._order.steps_back(record)
        late_ms = (append_ns + record["log_offset_ns"] - record["window_end_ns"]) / 1e6
        if abs(late_ms) <= MAX_LATE_MS:
            self.late_ms = late_ms
        for row in record["clocks"]:
            before = self.clocks.get(row["clock"])
            if before is None or steps_back or before.window <= record["window"]:
                self.clocks[row["clock"]] = ClockView(
                    row["at_ns"],
                    row["offset_ns"],
                    row["drift_ppb"],
                    row["bound_ns"],
                    row["state"],
                    record["window"],
                    now_s,
                )

    def _add_delays(self, record: PathDelays) -> None:
        worst_of_paths = [
            (p99_ns, row["bound_ns"] or 0.0, row["peer"], row["path"], is_reverse)
            for row in record["paths"]
            for p99_ns, is_reverse in ((row["forward_p99_ns"], False), (row["reverse_p99_ns"], True))
            if p99_ns is not None
        ]
        if worst_of_paths:
            p99_ns, bound_ns, peer, path, back = max(worst_of_paths)
            self.worst[record["nic"]] = PathView(peer, path, p99_ns, bound_ns, time.monotonic(), back)


class Share:
    """Limits work to a share of the time, after an initial burst. Pure: callers pass monotonic times in s."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._left_s = _BURST_S
        self._at_s: float | None = None

    def open(self, now_s: float) -> bool:
        """Return whether the share of time allows more work to begin now."""
        if self._at_s is not None:
            self._left_s = min(_BURST_S, self._left_s + self._share * (now_s - self._at_s))
        self._at_s = now_s
        return self._left_s > 0

    def spent(self, now_s: float) -> None:
        """End the work that began at `open`, and count its time."""
        if self._at_s is not None:
            self._left_s -= (1 - self._share) * (now_s - self._at_s)
            self._at_s = now_s


class Watcher:
    """Fills a View from the topics in a thread of its own, with records that arrive after its start."""

    def __init__(self, cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> None:
        self.view = View()
        self._cluster = cluster
        self._registry = registry
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Start the thread that reads the topics."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread that reads the topics."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=3)

    def _run(self) -> None:
        starts: dict[Topic[Any], Start] = {
            INVENTORY: BEGINNING,
            **dict.fromkeys((CLOCK_FITS, CLOCK_OFFSETS, DELAYS), END),
        }
        share = Share(DELAYS_SHARE)
        # People read figures no faster than this; one answer of the log then holds all new messages.
        options = {"fetch.min.bytes": FETCH_BYTES}
        with TopicReader(self._cluster, starts, fetch_wait_ms=FETCH_WAIT_MS, options=options) as reader:
            while not self._ending.is_set() and not reader.assigned:
                try:
                    reader.connect(2)
                except LogUnavailable:
                    self._ending.wait(0.2)
            while not self._ending.is_set():
                for message in reader.poll(0.1, 200):
                    if message.topic != DELAYS.name:
                        self._take(message)
                    elif share.open(time.monotonic()):
                        self._take(message)
                        share.spent(time.monotonic())

    def _take(self, message: Message) -> None:
        if message.value is None:
            if message.topic == INVENTORY.name:
                self.view.remove_nic(message.key)
            return
        try:
            record = message.decoded(TOPICS[message.topic], self._registry)
        except codec.BadRecord:
            with self.view.lock:
                self.view.unreadable += 1
            return
        self.view.add(message.topic, record, message.append_ns)
