"""Reads the segment of one process of a job, and builds a record of its events when a record is due.

A record is in flight until the log has acknowledged it. Meanwhile the rings keep its events, so that another
reporter would read them again. Only when the rings fill up, their space is freed earlier, so that the job
loses no events. Without the log, a record covers more and more time, and no sum is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from native.collectives.fold import Fold, mix
from native.collectives.reader import QUEUE_PAIR, TRANSFER, Reader
from producers.collectives.batch import (
    MAX_TRANSFERS,
    REASONS,
    CommunicatorList,
    QueuePairs,
    id_text,
    operations_of,
    summaries_of,
    transfers_of,
)
from producers.collectives.communicator_table import CommunicatorTable
from producers.collectives.process_activity import ActivityMeter
from producers.collectives.settings import CollectiveSettings
from producers.collectives.timeline import Timeline
from producers.collectives.trace_budget import TraceBudget
from schemas import codec
from schemas.records import (
    CollectiveBatch,
    CollectiveSource,
    KeptReason,
    NicCounter,
    RankState,
)
from schemas.socket_access import owned_name

_DRAIN_EVENTS: Final = 65_536
_DRAINS: Final = 4
"""Readings of one segment before the next one is read."""
_FULL_SHARE: Final = 0.5
"""Share of a ring's events at which its room is freed before the log has acknowledged them."""
_MIN_DRAIN_S: Final = 0.002
_RUNNING_CHECK_S: Final = 0.5
_FIRST_REPEAT_S: Final = 3.5
"""s after which a running operation is published again for the first time: idle peers are known by then."""
_MAX_RUNNING: Final = 16
_MAX_RUNNING_AT_END: Final = 64
_MAX_QUEUE_PAIRS: Final = 32
_QUEUE_PAIRS_S: Final = 10.0
"""s after which delays of queue pairs are published even if they are usual."""
_OPERATION_BYTES: Final = 80
_TRANSFER_BYTES: Final = 60
"""Encoded bytes, at most as a rule."""
_FIRST_BASE_BYTES: Final = 300.0
_HASH_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Origin:
    """The identity of a process: the record fields that are the same in all of its records."""

    host: str
    boot: str
    shard: str
    process: str
    user: int = field(default_factory=os.geteuid)
    """User id of the process; jobs of other users than ours have names with their user."""


class TracedProcess:
    """A process of a job and its segment.

    `nic_of_device`: NIC of an RDMA device, None if the host lacks it. `pid`: 0 if the process is in another
    PID namespace, so that its activity is not known.
    """

    def __init__(
        self,
        reader: Reader,
        origin: Origin,
        settings: CollectiveSettings,
        timeline: Timeline,
        host_nics: Sequence[str],
        nic_of_device: Callable[[str], str | None],
        now_s: float,
        registry: codec.Registry | None = None,
        pid: int = 0,
    ) -> None:
        self.reader, self.origin, self._settings, self._timeline = reader, origin, settings, timeline
        self._host_nics, self._nic_of_device, self._registry = host_nics, nic_of_device, registry
        self._fold = Fold(settings.slow_factor)
        self._budget = TraceBudget(settings.trace_bytes_per_hour, now_s)
        self._communicators = CommunicatorTable(reader)
        self._nics: dict[int, str] = {}
        self._flows: dict[int, str] = {}
        """Begins of the ids of flows, by device."""
        self._queue_pairs = QueuePairs()
        self._queue_pairs_at_s = now_s
        self._dropped = 0
        self._uncommitted = 0
        self._base_bytes = _FIRST_BASE_BYTES
        self._published_s = now_s
        self._begin_ns: int | None = None
        """Fabric time of the end of the last record."""
        self._running_at_s = self._running_check_s = -settings.repeat_s
        self._running: set[int] = set()
        self._has_new_running = self._is_repeated = False
        self._ended_before = 0
        self.activity = ActivityMeter(pid, now_s)
        self.rank_states: list[RankState] = []
        """States of ranks for the next record."""
        self.gone = False
        """True once the process has ended; its last record is then due."""
        self.ended = False
        """True once the last record was acknowledged."""
        self.in_flight: tuple[str, bytes] | None = None
        """Job and encoded record that the log has not acknowledged."""
        self._last = False

    # ---- events

    def drain(self) -> int:
        """Read the events that wait in the segment, and return their number."""
        raw_ns = self._timeline.last.raw_ns if self._timeline.last else 0
        self._begin()
        if self.in_flight is not None and not self._is_full():
            return 0
        count = 0
        for _ in range(_DRAINS):
            events = self.reader.drain(_DRAIN_EVENTS)
            if not len(events):
                break
            self._refresh(events)
            self._fold.add(events, self._communicators.ids, len(self._nics), raw_ns)
            count += len(events)
        self._uncommitted += count
        if self._is_full():
            self._commit()
        dropped = self._count_dropped()
        if dropped > self._dropped:  # ends may be among them
            self._dropped = dropped
            self._fold.forget(raw_ns)
        return count

    def _begin(self) -> None:
        """Begin the first record, or resume records after the segment was opened again."""
        if self._begin_ns is None and self._timeline.last is not None:
            self._begin_ns = self._timeline.last.fabric_ns
        if self._last and self.in_flight is None and not self.has_ended:
            self._last = self.ended = False

    def drain_s(self, count: int) -> float:
        """Return the seconds until the next reading of the segment, after a reading of `count` events."""
        ring_events = self.reader.capacity[1]
        usual_s = self._settings.drain_ms / 1e3
        if count * 4 <= ring_events:
            return usual_s
        return max(_MIN_DRAIN_S, usual_s * ring_events / (4 * count))

    def _is_full(self) -> bool:
        return self._uncommitted + self.reader.waiting > self.reader.capacity[1] * _FULL_SHARE

    def _commit(self) -> None:
        self.reader.commit()
        self._uncommitted = 0

    def _count_dropped(self) -> int:
        counters = self.reader.counters()
        return counters.dropped + counters.ringless

    def _refresh(self, events: npt.NDArray[Any]) -> None:
        """Number the communicators of `events`; read the device list again if an event has a new device."""
        is_pair = events["kind"] == QUEUE_PAIR
        self._communicators.number(events)
        devices = np.unique(events["device"][is_pair])
        if any(int(number) not in self._nics for number in devices):
            names = self.reader.devices()
            host = self.origin.host
            self._nics = {
                number: self._nic_of_device(name) or f"{host}/{_part(name)}" for number, name in names.items()
            }
            begin = f"{host}/{self.origin.boot}/qp"
            self._flows = {number: f"{begin}:{_part(name)}" for number, name in names.items()}

    # ---- identity

    @property
    def job(self) -> str | None:
        """The job's name: the configured name, else the first communicator's; None while unknown."""
        if self.reader.job:
            return owned_name(self.reader.job, self.origin.user)
        first_id = self._communicators.first_id
        return None if first_id is None else owned_name(f"communicator-{id_text(first_id)}", self.origin.user)

    @property
    def source(self) -> CollectiveSource:
        """The library, such as NCCL, that the process's profiler records."""
        name = self.reader.source
        return CollectiveSource(name) if name in CollectiveSource.__members__ else CollectiveSource.UNKNOWN

    @property
    def ranks(self) -> Mapping[str, int]:
        """The rank of this process in each of its communicators, by communicator id."""
        return {id_text(one.id): one.rank for one in self._communicators.known.values()}

    @property
    def has_ended(self) -> bool:
        """Whether no more events will come: the process ended or its segment is closed."""
        return self.gone or self.reader.counters().closed

    @property
    def counts(self) -> tuple[int, int]:
        """Number of events that the profiler dropped, and of events that were refused here."""
        return self._dropped, self.reader.counters().invalid + self._fold.counts["invalid"]

    # ---- records

    def is_due(self, now_s: float) -> bool:
        """Return whether a record must be published now."""
        if self.in_flight is not None or self._last or self._timeline.last is None:
            return False
        if self.has_ended:
            return self.reader.waiting == 0
        since_s = now_s - self._published_s
        if since_s < self._settings.report_ms / 1e3:
            return False
        self._check_running(now_s)
        self._budget.refill(now_s)
        is_urgent = bool(self._fold.counts["slow"]) or self._has_new_running
        if is_urgent and self._budget.is_enough(self._base_bytes, urgent=True):
            return True
        return self._is_usual_due(since_s)

    def _is_usual_due(self, since_s: float) -> bool:
        """Return whether a record is due at the usual interval, without slow or running operations."""
        has_content = bool(
            self._fold.kinds or self._communicators.new or len(self._queue_pairs) or self.rank_states
        )
        wait_s = self._budget.interval_s(self._settings.report_ms / 1e3, self._base_bytes)
        if since_s < (
            wait_s if has_content else max(wait_s, self.activity.heartbeat_s(self._settings.heartbeat_s))
        ):
            return False
        return self._budget.is_enough(self._base_bytes, urgent=False)

    def _check_running(self, now_s: float) -> None:
        """Check whether a record is due for operations that have run for long, unless lately published."""
        if now_s < self._running_check_s:
            return
        self._running_check_s = now_s + _RUNNING_CHECK_S
        operations = self._long_running(1 if self._fold.counts["open"] else 0)
        is_new = any(int(number) not in self._running for number in operations["operation"])
        repeat_s = self._settings.repeat_s
        wait_s = 0.0 if is_new else repeat_s if self._is_repeated else min(_FIRST_REPEAT_S, repeat_s)
        self._has_new_running = len(operations) > 0 and now_s - self._running_at_s >= wait_s

    def _long_running(self, limit: int, after_s: float | None = None) -> npt.NDArray[Any]:
        after_s = self._settings.running_s if after_s is None else after_s
        raw_ns = self._timeline.last.raw_ns if self._timeline.last else 0
        return self._fold.running(max(0, raw_ns - int(after_s * 1e9)), limit)

    def make(self, now_s: float, counters: Sequence[NicCounter]) -> CollectiveBatch | None:
        """Return a record of all events since the last record; None while the job is unknown."""
        self._communicators.refresh()
        job, last = self.job, self._timeline.last
        if job is None or last is None or self._begin_ns is None:
            self._published_s = now_s
            self.ended = self._last = self.gone
            return None
        self._budget.refill(now_s)
        self._last, has_work = self.has_ended, bool(self._fold.kinds)
        communicators = CommunicatorList(self._communicators.known, self._known_nics())
        for number in self._communicators.new:
            communicators.index(number)
        record: CollectiveBatch = {
            "job": job,
            "tenant": self.reader.tenant or None,
            "host": self.origin.host,
            "boot": self.origin.boot,
            "process": self.origin.process,
            "batch": self.reader.batch,
            "shard": self.origin.shard,
            "source": self.source,
            "version": self.reader.version,
            "begin_ns": min(self._begin_ns, last.fabric_ns),
            "end_ns": last.fabric_ns,
            "clock": last.state,
            "bound_ns": last.bound_ns,
            "ended": self._last,
            "events_dropped": self._dropped,
            "events_invalid": self.counts[1],
            "calls_ignored": self.reader.counters().misuse,
            "communicators": communicators.records,
            "operations": [],
            "transfers": [],
            "summaries": summaries_of(self._fold.take_kinds(), communicators, self.source),
            "queue_pairs": [],
            "counters": list(counters),
            "ranks": self.rank_states,
            "reports": [],
            "activity": self.activity.take(has_work=has_work),
        }
        rows = self._fold.take_rows()
        self._queue_pairs.add(rows[rows["kind"] == QUEUE_PAIR], self._nics, self._flows)
        if self._wants_queue_pairs(now_s):
            record["queue_pairs"] = self._queue_pairs.take(_MAX_QUEUE_PAIRS)
        self._add_operations(record, communicators, rows[rows["kind"] == TRANSFER], now_s)
        value = codec.encode(CollectiveBatch, record, self._registry)
        self._budget.spend(len(value))
        self.in_flight = job, value
        self._published_s, self._begin_ns = now_s, last.fabric_ns
        self._communicators.take_new()
        self.rank_states = []
        return record

    def _known_nics(self) -> list[str]:
        """Return the NICs that the process uses: those of its RDMA devices, else the host's only NIC."""
        if self._nics:
            return sorted(set(self._nics.values()))
        return list(self._host_nics) if len(self._host_nics) == 1 else []

    @property
    def nics(self) -> list[str]:
        """NICs whose counters the records contain: those that the process uses, else all NICs of the host."""
        return self._known_nics() or list(self._host_nics)

    def _wants_queue_pairs(self, now_s: float) -> bool:
        is_due = self._queue_pairs.are_worse or now_s - self._queue_pairs_at_s >= _QUEUE_PAIRS_S
        if is_due:
            self._queue_pairs_at_s = now_s
        return is_due or self._last

    def _add_operations(
        self,
        record: CollectiveBatch,
        communicators: CommunicatorList,
        transfers: npt.NDArray[Any],
        now_s: float,
    ) -> None:
        """Add running, slow and sampled operations with their transfers, within the budget in bytes."""
        base_bytes = len(codec.encode(CollectiveBatch, record, self._registry))
        interval_s = max(now_s - self._published_s, 1e-3)
        self._base_bytes = base_bytes
        counts = self._fold.counts
        operations, reasons = self._fold.take_kept()
        running = self._take_running(now_s)
        urgent = bool(len(running) or (reasons == REASONS.index(KeptReason.SLOW)).any())
        costs = _costs(operations, transfers)
        allowed = self._budget.operation_bytes(interval_s, base_bytes, urgent=False)
        first = self._budget.operation_bytes(interval_s, base_bytes, urgent) - float(
            _costs(running, transfers).sum()
        )
        is_selected = self._choose(operations, reasons, costs, allowed, first)
        rows = np.concatenate([running, operations[is_selected]])
        names = [KeptReason.RUNNING] * len(running) + [REASONS[code] for code in reasons[is_selected]]
        is_known = [int(number) in communicators for number in rows["communicator"]]
        rows, names = rows[is_known], [name for name, listed in zip(names, is_known, strict=True) if listed]
        record["operations"] = operations_of(rows, names, communicators, self._timeline)
        index = {int(number): at for at, number in enumerate(rows["operation"]) if number}
        record["transfers"] = transfers_of(transfers, index, self._timeline)
        self._adapt(counts["ended"], costs, allowed / interval_s, interval_s)

    def _adapt(self, ended: int, costs: npt.NDArray[Any], allowed_per_s: float, interval_s: float) -> None:
        """Set the share of operations to publish one by one until the next record."""
        cost = float(costs.mean()) if len(costs) else float(_OPERATION_BYTES)
        wanted_per_s = (ended - self._ended_before) * cost / interval_s
        self._ended_before = ended
        shift, now = self._budget.shift(wanted_per_s, allowed_per_s), self._fold.counts["shift"]
        self._fold.sample(max(shift, now - 1))

    def _take_running(self, now_s: float) -> npt.NDArray[Any]:
        if self._last:
            return self._long_running(_MAX_RUNNING_AT_END, 0.0)
        if not self._has_new_running:
            return self._long_running(0)
        self._has_new_running = False
        self._running_at_s = now_s
        operations = self._long_running(_MAX_RUNNING)
        before, self._running = self._running, {int(number) for number in operations["operation"]}
        self._is_repeated = self._running <= before
        return operations

    def _choose(
        self,
        operations: npt.NDArray[Any],
        reasons: npt.NDArray[np.uint8],
        costs: npt.NDArray[Any],
        allowed: float,
        first: float,
    ) -> npt.NDArray[np.bool_]:
        """Return a mask: slow operations that fit into `first` bytes, sampled ones into `allowed` bytes."""
        is_slow = reasons == REASONS.index(KeptReason.SLOW)
        is_selected: npt.NDArray[np.bool_] = is_slow & (np.cumsum(np.where(is_slow, costs, 0)) <= first)
        left = min(allowed, first - float(costs[is_selected].sum()))
        sampled = np.flatnonzero(~is_slow)
        if float(costs[sampled].sum()) <= left:
            is_selected[sampled] = True
            return is_selected
        zeros = np.array([_leading_zeros(self._communicators.ids, operations[at]) for at in sampled])
        for shift in range(1, _HASH_BITS + 1):
            fits = sampled[zeros >= shift]
            if float(costs[fits].sum()) <= left:
                is_selected[fits] = True
                reasons[fits] = REASONS.index(KeptReason.SAMPLED)
                break
        return is_selected

    def acknowledged(self) -> None:
        """Free the ring space of the record's events, because the log has acknowledged the record."""
        self.in_flight = None
        self.reader.batch += 1  # before the commit: a crash in between repeats events, and loses none
        self._commit()
        self.ended = self._last

    def close(self) -> None:
        """Unmap the segment's memory."""
        self.reader.close()


def _costs(operations: npt.NDArray[Any], transfers: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return, per operation, the encoded size of the operation and its transfers, bytes."""
    numbers = np.sort(transfers["operation"])
    counts = np.searchsorted(numbers, operations["operation"], "right") - np.searchsorted(
        numbers, operations["operation"]
    )
    costs: npt.NDArray[np.float64] = _OPERATION_BYTES + _TRANSFER_BYTES * np.minimum(
        counts, MAX_TRANSFERS
    ).astype(np.float64)
    return costs


def _leading_zeros(ids: npt.NDArray[np.uint64], row: Any) -> int:
    mixed = mix(int(ids[int(row["communicator"])]), int(row["sequence"]))
    return _HASH_BITS - mixed.bit_length()


def _part(name: str) -> str:
    """Return a device's name with "_" for characters that ids may not contain; "unknown" without a name."""
    return "".join("_" if char in "/> " else char for char in name) or "unknown"
