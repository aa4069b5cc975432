"""Columns of a job's operations, transfers and summaries: one row each, as whole numbers.

A job of 256 ranks has tens of thousands of operations in an interval. Records are decoded into columns once,
when they arrive; an evaluation then works on arrays.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.records import CollectiveBatch, CollectiveFunction, CollectiveSource, KeptReason
from streams.diagnosis.rules import NEVER_NS

__all__ = [
    "COLLECTIVES",
    "EVERY",
    "FUNCTIONS",
    "IS_COLLECTIVE",
    "SAMPLED",
    "Op",
    "Pair",
    "Rows",
    "Sum",
    "Transfer",
    "hash_of",
    "operation_rows",
    "pair_key",
    "queue_pair_rows",
    "summary_rows",
    "transfer_rows",
]

Rows = NDArray[np.int64]

FUNCTIONS: Final = list(CollectiveFunction)
_FUNCTION_INDEX: Final = {str(function): at for at, function in enumerate(FUNCTIONS)}
COLLECTIVES: Final = frozenset(
    at
    for at, function in enumerate(FUNCTIONS)
    if function
    not in (
        CollectiveFunction.UNKNOWN,
        CollectiveFunction.SEND,
        CollectiveFunction.RECEIVE,
        CollectiveFunction.SEND_RECEIVE,
        CollectiveFunction.WAIT,
    )
)
"""Functions that all ranks of a communicator call under one number."""
IS_COLLECTIVE: Final = np.isin(np.arange(len(FUNCTIONS)), list(COLLECTIVES))
"""Whether a function is one of `COLLECTIVES`, by its index."""
UNKNOWN: Final = -1
"""A duration that is not known."""
EVERY: Final = 1
"""Every operation of the rank is published: the one before is its previous one."""
SAMPLED: Final = 2
_FAIR: Final = {str(KeptReason.ALL): EVERY, str(KeptReason.SAMPLED): SAMPLED}
DAY_NS: Final = 86_400_000_000_000


_KERNELS: Final = (CollectiveSource.NCCL, CollectiveSource.RCCL)
"""Sources whose operations begin with their kernel; others begin with their call."""


class Op(IntEnum):
    """Columns of an operation. `BEGIN`: its call; the rank arrives `LAUNCH` later."""

    COMMUNICATOR = 0
    RANK = 1
    FUNCTION = 2
    SEQ = 3
    PEER = 4
    BYTES = 5
    BEGIN = 6
    END = 7
    LAUNCH = 8
    GPU_LATE = 9
    PEER_LATE = 10
    NETWORK_LATE = 11
    FLUSH = 12
    PROCESS = 13
    KEPT = 14
    """`EVERY`, `SAMPLED`, or 0: chosen for being slow or running, and so no fair sample."""


class Transfer(IntEnum):
    """Columns of a transfer."""

    COMMUNICATOR = 0
    RANK = 1
    PEER = 2
    SENDS = 3
    BYTES = 4
    BEGIN = 5
    END = 6
    GPU_LATE = 7
    PEER_LATE = 8
    NETWORK_LATE = 9
    FLUSH = 10
    PROCESS = 11
    FUNCTION = 12
    """Function of its operation."""
    SEQ = 13


class Sum(IntEnum):
    """Columns of a summary."""

    COMMUNICATOR = 0
    RANK = 1
    FUNCTION = 2
    BYTES_FROM = 3
    FIRST_SEQ = 4
    LAST_SEQ = 5
    COUNT = 6
    BYTES = 7
    BUSY = 8
    P50 = 9
    LAUNCH = 10
    GPU_LATE = 11
    PEER_LATE = 12
    NETWORK_LATE = 13
    FLUSH = 14
    BUS_BPS = 15
    PROCESS = 16
    BEGIN = 17
    END = 18


class Pair(IntEnum):
    """Columns of a queue pair's chunks."""

    NIC = 0
    PEER = 1
    COUNT = 2
    BYTES = 3
    MIN = 4
    MEAN = 5
    P99 = 6
    POSTED = 7
    FLOW = 8
    PROCESS = 9


@lru_cache(maxsize=1 << 16)
def hash_of(text: str) -> int:
    """Return a number for a name, the same in all processes and in any order of arrival."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 2


def _known(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _within(at_ns: int, record: CollectiveBatch) -> int:
    """Return a time not further than a day from the record's interval, so that differences stay small."""
    return min(max(at_ns, record["begin_ns"] - DAY_NS), record["end_ns"] + DAY_NS)


def _communicators(record: CollectiveBatch) -> list[tuple[int, int]]:
    return [(hash_of(each["id"]), each["rank"]) for each in record["communicators"]]


def operation_rows(record: CollectiveBatch, process: int) -> Rows:
    """Return the operations of a record with a valid communicator, one row each; columns are contiguous."""
    known = _communicators(record)
    rows = [
        (
            *known[each["communicator"]],
            _FUNCTION_INDEX.get(str(each["function"]), 0),
            each["seq"],
            _known(each["peer"]),
            each["bytes"],
            _within(each["begin_ns"], record),
            NEVER_NS if each["end_ns"] is None else _within(each["end_ns"], record),
            _known(each["launch_ns"]),
            _known(each["gpu_late_ns"]),
            _known(each["peer_late_ns"]),
            _known(each["network_late_ns"]),
            _known(each["flush_ns"]),
            process,
            _FAIR.get(str(each["kept"]), 0),
        )
        for each in record["operations"]
        if each["communicator"] < len(known)
    ]
    found = np.asfortranarray(np.array(rows, np.int64).reshape(-1, len(Op)))
    if record["source"] in _KERNELS and len(found):
        _to_calls(found)
    return found


def _to_calls(rows: Rows) -> None:
    """Have operations that begin with their kernel begin at their call, where the call shows anything.

    A program that calls ahead of the GPU has its kernels wait for former ones and for computing. The call
    says nothing then, and the operation begins with its kernel.
    """
    order = np.argsort(rows[:, Op.BEGIN], kind="stable")
    end = np.where(rows[order, Op.END] == NEVER_NS, 0, rows[order, Op.END])
    former = np.concatenate(([NEVER_NS], np.maximum.accumulate(end)[:-1]))
    every = rows[order, Op.KEPT] == EVERY
    launch = np.maximum(rows[order, Op.LAUNCH], 0)
    after = every & np.concatenate(([False], every[:-1])) & (rows[order, Op.BEGIN] - launch >= former)
    launch = np.where(after, launch, 0)
    rows[order, Op.BEGIN] -= launch
    rows[order, Op.LAUNCH] = np.where(rows[order, Op.LAUNCH] >= 0, launch, -1)


def transfer_rows(record: CollectiveBatch, process: int) -> Rows:
    """Return the transfers of a record whose operation is known, one row each."""
    known, operations = _communicators(record), record["operations"]
    of = [known[each["communicator"]] if each["communicator"] < len(known) else None for each in operations]
    rows = [
        (
            *owner,
            each["peer"],
            int(each["sends"]),
            each["bytes"],
            _within(each["begin_ns"], record),
            NEVER_NS if each["end_ns"] is None else _within(each["end_ns"], record),
            _known(each["gpu_late_ns"]),
            _known(each["peer_late_ns"]),
            _known(each["network_late_ns"]),
            _known(each["flush_ns"]),
            process,
            _FUNCTION_INDEX.get(str(operations[each["operation"]]["function"]), 0),
            operations[each["operation"]]["seq"],
        )
        for each in record["transfers"]
        if each["operation"] < len(of) and (owner := of[each["operation"]]) is not None
    ]
    return np.array(rows, np.int64).reshape(-1, len(Transfer))


def summary_rows(record: CollectiveBatch, process: int) -> Rows:
    """Return the summaries of a record with a valid communicator, one row each."""
    known = _communicators(record)
    rows = [
        (
            *known[each["communicator"]],
            _FUNCTION_INDEX.get(str(each["function"]), 0),
            each["bytes_from"],
            each["first_seq"],
            each["last_seq"],
            each["count"],
            each["bytes"],
            each["busy_ns"],
            each["p50_ns"],
            _known(each["launch_ns"]),
            _known(each["gpu_late_ns"]),
            _known(each["peer_late_ns"]),
            _known(each["network_late_ns"]),
            _known(each["flush_ns"]),
            UNKNOWN if each["bus_bps"] is None else int(each["bus_bps"]),
            process,
            record["begin_ns"],
            record["end_ns"],
        )
        for each in record["summaries"]
        if each["communicator"] < len(known)
    ]
    return np.array(rows, np.int64).reshape(-1, len(Sum))


def queue_pair_rows(record: CollectiveBatch, process: int) -> Rows:
    """Return the queue pairs of a record, one row each. NICs and flows are numbers, see `hash_of`."""
    rows = [
        (
            hash_of(each["nic"]),
            each["peer"],
            each["count"],
            each["bytes"],
            each["min_ns"],
            each["mean_ns"],
            each["p99_ns"],
            each["posted"],
            hash_of(each["flow_id"]) if each["flow_id"] else 0,
            process,
        )
        for each in record["queue_pairs"]
    ]
    return np.array(rows, np.int64).reshape(-1, len(Pair))


def pair_key(rows: Rows, column: type[Op] | type[Transfer] = Op) -> Rows:
    """Return 0 for collectives, and a number for function and peer of other operations."""
    alone = ~IS_COLLECTIVE[rows[:, column.FUNCTION]]
    key = (rows[:, column.PEER] + 2) * len(FUNCTIONS) + rows[:, column.FUNCTION]
    return np.asarray(np.where(alone, key, 0), np.int64)
