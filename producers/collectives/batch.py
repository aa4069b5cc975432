"""Builds the parts of a `CollectiveBatch` from arrays of operations, transfers and queue pair events.

Pure: it uses no segment, clock or socket. A communicator's index in the segment is replaced by its index in
the record's list. Values are limited to the schema's range, because a segment may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from native.collectives import Communicator as SegmentCommunicator
from native.collectives.reader import ALGORITHMS, FUNCTIONS, PROTOCOLS, SENDS, SPLIT
from producers.collectives.bandwidth import bus_bps
from producers.collectives.timeline import Timeline
from schemas.records import (
    CollectiveFunction,
    CollectiveOperation,
    CollectiveSource,
    CollectiveSummary,
    CollectiveTransfer,
    Communicator,
    KeptReason,
    QueuePairDelay,
)

REASONS: Final = (KeptReason.ALL, KeptReason.SAMPLED, KeptReason.SLOW)
"""Reasons for publishing an operation, in the order of their numbers in native/collectives/fold.h."""
MAX_TRANSFERS: Final = 16
"""Maximum number of transfers that are published per operation; the longest ones are."""

MAX_QUEUE_PAIRS: Final = 4096
"""Maximum number of a process's queue pairs whose delays are recorded."""

_SUM_MAX: Final = 10**18
_COUNT_MAX: Final = 10**12
_HAS_LAUNCH, _HAS_KERNEL, _HAS_SPLIT = 1, 2, 4
_FUNCTIONS: Final = tuple(CollectiveFunction(name) for name in FUNCTIONS)
_WAITS: Final = ("gpu_late_ns", "peer_late_ns", "network_late_ns", "flush_ns")

Rows = npt.NDArray[Any]


def id_text(number: int) -> str:
    """Return a communicator's id as text, spelled like NCCL's hash but without 0x."""
    return f"{number:016x}"


class CommunicatorList:
    """The list of communicators in one record, in the order of their first use."""

    def __init__(self, communicators: Mapping[int, SegmentCommunicator], nics: Sequence[str]) -> None:
        self._known, self._nics = communicators, nics
        self._index: dict[int, int] = {}
        self.records: list[Communicator] = []

    def index(self, number: int) -> int:
        """Return the index in the record of communicator `number` of the segment; add it if needed."""
        place = self._index.get(number)
        if place is None:
            place = self._index[number] = len(self.records)
            one = self._known[number]
            rank = min(one.rank, 16_777_215)
            self.records.append(
                {
                    "id": id_text(one.id),
                    "name": one.name,
                    "rank": rank,
                    "ranks": min(one.ranks, 16_777_216),
                    "nodes": min(one.nodes, 16_777_216),
                    "nics": list(self._nics),
                    "gpu": one.gpu or None,
                }
            )
        return place

    def ranks(self, number: int) -> int:
        """Return the number of ranks of communicator `number`; 0 if it is unknown."""
        return self._known[number].ranks

    def __contains__(self, number: int) -> bool:
        return number in self._known


def summaries_of(
    kinds: Rows, communicators: CommunicatorList, source: CollectiveSource
) -> list[CollectiveSummary]:
    """Return one summary per kind of operation. `kinds` is an array of `native.collectives.fold.KIND`."""
    return [
        _summary(kind, communicators, source) for kind in kinds if int(kind["communicator"]) in communicators
    ]


def _summary(kind: Any, communicators: CommunicatorList, source: CollectiveSource) -> CollectiveSummary:
    function, number = _FUNCTIONS[int(kind["function"])], int(kind["communicator"])
    measured, size_class = int(kind["measured"]), int(kind["size_class"])
    waits = {name: min(int(kind[name]), _SUM_MAX) if measured & _HAS_SPLIT else None for name in _WAITS}
    bps = bus_bps(function, source, communicators.ranks(number), int(kind["bytes"]), int(kind["busy_ns"]))
    return {
        "communicator": communicators.index(number),
        "function": function,
        "algorithm": ALGORITHMS[int(kind["algorithm"])],
        "protocol": PROTOCOLS[int(kind["protocol"])],
        "bytes_from": 1 << (size_class - 1) if size_class else 0,
        "first_seq": int(kind["first_seq"]),
        "last_seq": int(kind["last_seq"]),
        "count": min(int(kind["count"]), _COUNT_MAX),
        "bytes": min(int(kind["bytes"]), _SUM_MAX),
        "busy_ns": min(int(kind["busy_ns"]), _SUM_MAX),
        "min_ns": int(kind["min_ns"]),
        "p50_ns": int(kind["p50_ns"]),
        "max_ns": int(kind["max_ns"]),
        "launch_ns": min(int(kind["launch_ns"]), _SUM_MAX) if measured & _HAS_LAUNCH else None,
        "kernel_ns": min(int(kind["kernel_ns"]), _SUM_MAX) if measured & _HAS_KERNEL else None,
        "gpu_late_ns": waits["gpu_late_ns"],
        "peer_late_ns": waits["peer_late_ns"],
        "network_late_ns": waits["network_late_ns"],
        "flush_ns": waits["flush_ns"],
        "bus_bps": None if bps is None else min(bps, 1e15),
    }


def operations_of(
    rows: Rows, reasons: Iterable[KeptReason], communicators: CommunicatorList, timeline: Timeline
) -> list[CollectiveOperation]:
    """Return records of operations, in the order of `rows`. Raises KeyError for unknown communicators."""
    begin, end = timeline.to_fabric(rows["begin_raw_ns"]), timeline.to_fabric(rows["end_raw_ns"])
    return [
        _operation(row, reason, communicators, int(begin_ns), int(end_ns))
        for row, reason, begin_ns, end_ns in zip(rows, reasons, begin, end, strict=True)
    ]


def _operation(
    row: Any, reason: KeptReason, communicators: CommunicatorList, begin_ns: int, end_ns: int
) -> CollectiveOperation:
    peer, steps = int(row["peer"]), int(row["steps"])
    waits = _waits(row)
    return {
        "communicator": communicators.index(int(row["communicator"])),
        "seq": int(row["sequence"]),
        "function": _FUNCTIONS[int(row["function"])],
        "algorithm": ALGORITHMS[int(row["algorithm"])],
        "protocol": PROTOCOLS[int(row["protocol"])],
        "bytes": int(row["bytes"]),
        "peer": peer if peer >= 0 else None,
        "channels": int(row["channel"]),
        "begin_ns": begin_ns,
        "end_ns": max(begin_ns, end_ns) if row["end_raw_ns"] else None,
        "launch_ns": int(row["launch_ns"]) or None,
        "kernel_ns": int(row["kernel_ns"]) or None,
        "gpu_late_ns": waits["gpu_late_ns"],
        "peer_late_ns": waits["peer_late_ns"],
        "network_late_ns": waits["network_late_ns"],
        "flush_ns": waits["flush_ns"],
        "sampled_share": _sampled_share(row, steps),
        "tag": int(row["tag"]),
        "kept": reason,
    }


def _waits(row: Any) -> dict[str, int | None]:
    """Return, by field name, the four waiting times of an operation or transfer, ns; None if not measured."""
    is_split = int(row["flags"]) & SPLIT
    return {name: int(row[name]) if is_split else None for name in _WAITS}


def _sampled_share(row: Any, steps: int) -> float:
    if not int(row["flags"]) & SPLIT:
        return 0.0
    return min(1.0, int(row["sampled"]) / steps) if steps else 1.0


def transfers_of(rows: Rows, index: Mapping[int, int], timeline: Timeline) -> list[CollectiveTransfer]:
    """Return the longest transfers of each operation. `index` maps operation numbers to list positions."""
    if not len(rows) or not index:
        return []
    rows = rows[np.isin(rows["operation"], np.fromiter(index, np.int64, len(index)))]
    ns = np.where(rows["end_raw_ns"] > 0, rows["end_raw_ns"] - rows["begin_raw_ns"], np.iinfo(np.int64).max)
    order = np.lexsort((-ns, rows["operation"]))
    rows = rows[order]
    first = np.searchsorted(rows["operation"], rows["operation"])
    rows = rows[np.arange(len(rows)) - first < MAX_TRANSFERS]
    begin, end = timeline.to_fabric(rows["begin_raw_ns"]), timeline.to_fabric(rows["end_raw_ns"])
    return [
        _transfer(row, index[int(row["operation"])], int(begin_ns), int(end_ns))
        for row, begin_ns, end_ns in zip(rows, begin, end, strict=True)
        if row["peer"] >= 0
    ]


def _transfer(row: Any, operation: int, begin_ns: int, end_ns: int) -> CollectiveTransfer:
    waits = _waits(row)
    return {
        "operation": operation,
        "channel": int(row["channel"]),
        "peer": int(row["peer"]),
        "sends": bool(int(row["flags"]) & SENDS),
        "bytes": int(row["bytes"]),
        "begin_ns": begin_ns,
        "end_ns": max(begin_ns, end_ns) if row["end_raw_ns"] else None,
        "gpu_late_ns": waits["gpu_late_ns"],
        "peer_late_ns": waits["peer_late_ns"],
        "network_late_ns": waits["network_late_ns"],
        "flush_ns": waits["flush_ns"],
    }


class QueuePairs:
    """Delays of RDMA queue pairs, merged over any number of intervals until they are published."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], QueuePairDelay] = {}
        self._published_p99: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, rows: Rows, nic_of: Mapping[int, str], flow_of: Mapping[int, str]) -> None:
        """Add the events of queue pairs to the delays.

        By a device's index, `nic_of` gives its NIC and `flow_of` the first part of its flows' ids.
        """
        for row in rows:
            nic = nic_of.get(int(row["device"]))
            key = int(row["device"]), int(row["queue_pair"])
            if nic is None or (key not in self._sums and len(self._sums) >= MAX_QUEUE_PAIRS):
                continue
            new = _delay(row, nic, flow_of.get(int(row["device"])))
            self._sums[key] = _merged(self._sums[key], new) if key in self._sums else new

    @property
    def are_worse(self) -> bool:
        """Whether a delay is three times the published delay, or chunks of a queue pair do not complete."""
        return any(
            delay["p99_ns"] > 3 * self._published_p99.get(key, 0) or (delay["posted"] and not delay["count"])
            for key, delay in self._sums.items()
        )

    def take(self, limit: int) -> list[QueuePairDelay]:
        """Return the delays of up to `limit` queue pairs, the slowest first, and clear all delays."""
        worst = sorted(self._sums.items(), key=lambda item: (-item[1]["posted"], -item[1]["p99_ns"]))
        self._published_p99 = {key: delay["p99_ns"] for key, delay in worst}
        self._sums.clear()
        return [delay for _, delay in worst[:limit]]


def _delay(row: Any, nic: str, flow: str | None) -> QueuePairDelay:
    count, created = int(row["completed"]), int(row["created"])
    return {
        "nic": nic,
        "flow_id": f"{flow}:{int(row['queue_pair'])}:{created}" if flow and created else "",
        "queue_pair": int(row["queue_pair"]),
        "peer": int(row["peer"]),
        "count": count,
        "bytes": int(row["bytes"]),
        "min_ns": int(row["min_ns"]),
        "mean_ns": int(row["sum_ns"]) // count if count else 0,
        "p99_ns": int(row["p99_ns"]),
        "max_ns": int(row["max_ns"]),
        "posted": int(row["posted"]),
    }


def _merged(former: QueuePairDelay, new: QueuePairDelay) -> QueuePairDelay:
    """Merge a queue pair's delays of two intervals. The larger p99 is an upper bound of the joint p99."""
    if not new["count"]:
        return {**former, "posted": new["posted"]}
    if not former["count"]:
        return new
    count = former["count"] + new["count"]
    sum_ns = former["mean_ns"] * former["count"] + new["mean_ns"] * new["count"]
    return {
        **new,
        "count": min(count, _COUNT_MAX),
        "bytes": min(former["bytes"] + new["bytes"], _SUM_MAX),
        "min_ns": min(former["min_ns"], new["min_ns"]),
        "mean_ns": sum_ns // count,
        "p99_ns": max(former["p99_ns"], new["p99_ns"]),
        "max_ns": max(former["max_ns"], new["max_ns"]),
    }
