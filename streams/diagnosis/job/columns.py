"""Decodes a job's operations, transfers and summaries into columns of integers, with one row for each.

A job of 256 ranks has tens of thousands of operations in an interval. Records are decoded once, when they
arrive; an evaluation then works on arrays.
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

Rows = NDArray[np.int64]

FUNCTIONS: Final = list(CollectiveFunction)
_FUNCTION_INDEX: Final = {str(function): at for at, function in enumerate(FUNCTIONS)}


def is_one_of(*functions: CollectiveFunction) -> NDArray[np.bool_]:
    """Return an array of bools, by function index: whether the function is one of `functions`."""
    return np.array([function in functions for function in FUNCTIONS])


IS_MESSAGE: Final = is_one_of(
    CollectiveFunction.SEND, CollectiveFunction.RECEIVE, CollectiveFunction.SEND_RECEIVE
)
IS_COLLECTIVE: Final = ~(IS_MESSAGE | is_one_of(CollectiveFunction.UNKNOWN, CollectiveFunction.WAIT))
"""Whether all ranks of a communicator call a function under one sequence number, by index."""
UNKNOWN: Final = -1
"""A duration that is not known."""
EVERY: Final = 1
"""Value of `KEPT` if every operation of the rank is published, so that the preceding one is known."""
SAMPLED: Final = 2
_FAIR: Final = {str(KeptReason.ALL): EVERY, str(KeptReason.SAMPLED): SAMPLED}
DAY_NS: Final = 86_400_000_000_000


_KERNELS: Final = (CollectiveSource.NCCL, CollectiveSource.RCCL)
"""Sources whose operations begin with their kernel; those of other sources begin with their call."""


class Op(IntEnum):
    """Columns of an operation. `BEGIN` is the time of its call; the rank arrives `LAUNCH` ns later."""

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
    """`EVERY`, `SAMPLED`, or 0 for an operation published because it is slow or still runs, and so no fair
    sample."""


class Transfer(IntEnum):
    """Columns of a transfer, each an index into its row."""

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
    """Function of the operation to which the transfer belongs."""
    SEQ = 13


class Sum(IntEnum):
    """Columns of a summary of operations, each an index into its row."""

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
    """Columns of the data chunks of a queue pair, each an index into their row."""

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
    """Return a number for a name, equal in all processes and independent of the order of arrival."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 2


def _known(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _within(at_ns: int, record: CollectiveBatch) -> int:
    """Return `at_ns`, limited to within a day of the record's interval, so that differences stay small."""
    return min(max(at_ns, record["begin_ns"] - DAY_NS), record["end_ns"] + DAY_NS)


def _communicators(record: CollectiveBatch) -> list[tuple[int, int]]:
    return [(hash_of(communicator["id"]), communicator["rank"]) for communicator in record["communicators"]]


def operation_rows(record: CollectiveBatch, process: int) -> Rows:
    """Return a record's operations that have a valid communicator, one row each. Columns are contiguous."""
    communicators = _communicators(record)
    rows = [
        (
            *communicators[operation["communicator"]],
            _FUNCTION_INDEX.get(str(operation["function"]), 0),
            operation["seq"],
            _known(operation["peer"]),
            operation["bytes"],
            _within(operation["begin_ns"], record),
            NEVER_NS if operation["end_ns"] is None else _within(operation["end_ns"], record),
            _known(operation["launch_ns"]),
            _known(operation["gpu_late_ns"]),
            _known(operation["peer_late_ns"]),
            _known(operation["network_late_ns"]),
            _known(operation["flush_ns"]),
            process,
            _FAIR.get(str(operation["kept"]), 0),
        )
        for operation in record["operations"]
        if operation["communicator"] < len(communicators)
    ]
    table = np.asfortranarray(np.array(rows, np.int64).reshape(-1, len(Op)))
    if record["source"] in _KERNELS and len(table):
        _to_calls(table)
    return table


def _to_calls(rows: Rows) -> None:
    """Change operations that begin with their kernel to begin with their call, if the call is informative.

    If a program calls ahead of the GPU, its kernels wait for earlier kernels and for computing. The time of
    the call means nothing in this case, and the operation continues to begin with its kernel.
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
    """Return the transfers of a record that belong to a known operation, one row each."""
    communicators, operations = _communicators(record), record["operations"]
    of = [
        communicators[operation["communicator"]] if operation["communicator"] < len(communicators) else None
        for operation in operations
    ]
    rows = [
        (
            *owner,
            transfer["peer"],
            int(transfer["sends"]),
            transfer["bytes"],
            _within(transfer["begin_ns"], record),
            NEVER_NS if transfer["end_ns"] is None else _within(transfer["end_ns"], record),
            _known(transfer["gpu_late_ns"]),
            _known(transfer["peer_late_ns"]),
            _known(transfer["network_late_ns"]),
            _known(transfer["flush_ns"]),
            process,
            _FUNCTION_INDEX.get(str(operations[transfer["operation"]]["function"]), 0),
            operations[transfer["operation"]]["seq"],
        )
        for transfer in record["transfers"]
        if transfer["operation"] < len(of) and (owner := of[transfer["operation"]]) is not None
    ]
    return np.array(rows, np.int64).reshape(-1, len(Transfer))


def summary_rows(record: CollectiveBatch, process: int) -> Rows:
    """Return the summaries of a record that have a valid communicator, one row each."""
    communicators = _communicators(record)
    rows = [
        (
            *communicators[summary["communicator"]],
            _FUNCTION_INDEX.get(str(summary["function"]), 0),
            summary["bytes_from"],
            summary["first_seq"],
            summary["last_seq"],
            summary["count"],
            summary["bytes"],
            summary["busy_ns"],
            summary["p50_ns"],
            _known(summary["launch_ns"]),
            _known(summary["gpu_late_ns"]),
            _known(summary["peer_late_ns"]),
            _known(summary["network_late_ns"]),
            _known(summary["flush_ns"]),
            UNKNOWN if summary["bus_bps"] is None else int(summary["bus_bps"]),
            process,
            record["begin_ns"],
            record["end_ns"],
        )
        for summary in record["summaries"]
        if summary["communicator"] < len(communicators)
    ]
    return np.array(rows, np.int64).reshape(-1, len(Sum))


def queue_pair_rows(record: CollectiveBatch, process: int) -> Rows:
    """Return the queue pairs of a record, one row each. NICs and flows are given by their `hash_of`."""
    rows = [
        (
            hash_of(queue_pair["nic"]),
            queue_pair["peer"],
            queue_pair["count"],
            queue_pair["bytes"],
            queue_pair["min_ns"],
            queue_pair["mean_ns"],
            queue_pair["p99_ns"],
            queue_pair["posted"],
            hash_of(queue_pair["flow_id"]) if queue_pair["flow_id"] else 0,
            process,
        )
        for queue_pair in record["queue_pairs"]
    ]
    return np.array(rows, np.int64).reshape(-1, len(Pair))


def pair_key(rows: Rows, column: type[Op] | type[Transfer] = Op) -> Rows:
    """Return a number for the function and peer of each row's operation; 0 for collectives."""
    alone = ~IS_COLLECTIVE[rows[:, column.FUNCTION]]
    key = (rows[:, column.PEER] + 2) * len(FUNCTIONS) + rows[:, column.FUNCTION]
    return np.asarray(np.where(alone, key, 0), np.int64)
