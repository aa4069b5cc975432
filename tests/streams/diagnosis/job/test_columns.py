"""Rows of records."""

from __future__ import annotations

import numpy as np

from schemas.records import CollectiveBatch, KeptReason
from streams.diagnosis.job.columns import (
    EVERY,
    SAMPLED,
    Op,
    Pair,
    Sum,
    Transfer,
    hash_of,
    operation_rows,
    queue_pair_rows,
    summary_rows,
    transfer_rows,
)
from streams.diagnosis.rules import NEVER_NS
from tests.records import make, make_part

COMMUNICATOR = make_part("CollectiveBatch", "Communicator", id="c", rank=3, ranks=8)


def operation(**fields: object) -> object:
    return make_part("CollectiveBatch", "CollectiveOperation", **fields)


def record(**fields: object) -> CollectiveBatch:
    return make(CollectiveBatch, begin_ns=100, end_ns=200, communicators=[COMMUNICATOR], **fields)


def test_an_operation_becomes_a_row() -> None:
    rows = operation_rows(
        record(operations=[operation(seq=7, begin_ns=110, end_ns=150, launch_ns=5, kept=KeptReason.SAMPLED)]),
        9,
    )
    [row] = rows
    assert (row[Op.COMMUNICATOR], row[Op.RANK], row[Op.SEQ], row[Op.PROCESS]) == (hash_of("c"), 3, 7, 9)
    assert (row[Op.BEGIN], row[Op.END], row[Op.LAUNCH], row[Op.KEPT]) == (110, 150, 5, SAMPLED)
    assert row[Op.NETWORK_LATE] == -1


def test_operations_of_unknown_communicators_are_left_out() -> None:
    batch = record(operations=[operation(communicator=4, begin_ns=110), operation(begin_ns=120, kept="ALL")])
    rows = operation_rows(batch, 1)
    assert rows[:, Op.BEGIN].tolist() == [120]
    assert rows[0, Op.END] == NEVER_NS
    assert rows[0, Op.KEPT] == EVERY


def test_times_far_outside_of_the_record_stay_within_a_day_of_it() -> None:
    rows = operation_rows(record(operations=[operation(begin_ns=-(2**62), end_ns=2**62)]), 1)
    assert rows[0, Op.END] - rows[0, Op.BEGIN] < 3 * 86_400 * 10**9


def test_transfers_summaries_and_queue_pairs_become_rows() -> None:
    batch = record(
        operations=[operation(begin_ns=110)],
        transfers=[
            make_part(
                "CollectiveBatch", "CollectiveTransfer", peer=4, sends=True, begin_ns=110, network_late_ns=6
            ),
            make_part("CollectiveBatch", "CollectiveTransfer", operation=9),
        ],
        summaries=[
            make_part(
                "CollectiveBatch",
                "CollectiveSummary",
                function="BARRIER",
                count=5,
                busy_ns=50,
                last_seq=7,
                bus_bps=1e9,
            )
        ],
        queue_pairs=[
            make_part("CollectiveBatch", "QueuePairDelay", nic="h/n", flow_id="", peer=4, count=2, mean_ns=8)
        ],
    )
    [transfer] = transfer_rows(batch, 1)
    assert (transfer[Transfer.PEER], transfer[Transfer.SENDS], transfer[Transfer.NETWORK_LATE]) == (4, 1, 6)
    [summary] = summary_rows(batch, 1)
    assert (summary[Sum.COUNT], summary[Sum.BUSY], summary[Sum.BUS_BPS], summary[Sum.BEGIN]) == (
        5,
        50,
        10**9,
        100,
    )
    [pair] = queue_pair_rows(batch, 1)
    assert (pair[Pair.NIC], pair[Pair.MEAN], pair[Pair.FLOW]) == (hash_of("h/n"), 8, 0)


def test_an_empty_record_has_no_rows_of_the_right_width() -> None:
    assert operation_rows(record(), 1).shape == (0, len(Op))
    assert operation_rows(record(), 1).dtype == np.int64
