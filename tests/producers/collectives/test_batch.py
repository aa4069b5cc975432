"""Parts of records: limits of the schema, queue pairs over several intervals, order of transfers."""

from __future__ import annotations

import numpy as np
import pytest

from native.collectives import Communicator
from native.collectives.fold import KIND
from native.collectives.reader import QUEUE_PAIR, SENDS, TRANSFER
from producers.collectives.batch import (
    CommunicatorList,
    QueuePairs,
    operations_of,
    summaries_of,
    transfers_of,
)
from producers.collectives.timeline import ClockReading, Timeline
from schemas.records import ClockSync, CollectiveSource, KeptReason
from tests.producers.collectives.segments import ended

KNOWN = {2: Communicator(0xAB, "dp", 1, 8, 2, ""), 5: Communicator(2**64 - 1, "", 2**30, 0, 0, "0")}


@pytest.fixture
def timeline():
    made = Timeline()
    made.add(ClockReading(0, 10**18, 1.0, ClockSync.SYNCED))
    return made


def pairs(**fields):
    row = ended([0], communicator=0xFFFF)
    row["kind"] = QUEUE_PAIR
    for name, value in fields.items():
        row[name] = value
    return row


def test_communicators_are_listed_once_in_the_order_of_use():
    found = CommunicatorList(KNOWN, ["h/a"])
    assert [found.index(5), found.index(2), found.index(5)] == [0, 1, 0]
    assert [(each["id"], each["rank"], each["gpu"]) for each in found.records] == [
        ("ffffffffffffffff", 16_777_215, "0"),
        ("00000000000000ab", 1, None),
    ]
    assert 3 not in found


def test_a_summary_stays_within_the_schema():
    kind = np.zeros(3, KIND)
    kind["communicator"], kind["function"], kind["count"] = [2, 3, 2], 1, [4, 1, 2**62]
    kind["bytes"], kind["busy_ns"], kind["size_class"] = 2**63, [1, 1, 2**63], [0, 1, 17]
    kind["measured"], kind["launch_ns"], kind["flush_ns"] = [0, 0, 7], 5, 2**63
    first, second = summaries_of(kind, CommunicatorList(KNOWN, []), CollectiveSource.MPI)
    assert (first["bytes"], first["bus_bps"], first["launch_ns"], first["bytes_from"]) == (
        10**18,
        1e15,
        None,
        0,
    )
    assert (second["count"], second["busy_ns"], second["flush_ns"]) == (10**12, 10**18, 10**18)
    assert (second["launch_ns"], second["kernel_ns"], second["bytes_from"]) == (5, 0, 65_536)


def test_operations_are_on_fabric_time(timeline):
    rows = ended([7, 8], ns=1000, communicator=2)
    rows["end_raw_ns"][1] = 0
    first, second = operations_of(
        rows, [KeptReason.ALL, KeptReason.RUNNING], CommunicatorList(KNOWN, []), timeline
    )
    assert (first["begin_ns"], first["end_ns"]) == (
        int(rows["begin_raw_ns"][0]) + 10**18,
        first["begin_ns"] + 1000,
    )
    assert (second["end_ns"], second["kept"], second["peer"]) == (None, "RUNNING", None)


def test_transfers_name_their_operation(timeline):
    rows = ended([0, 0, 0], ns=[10, 30, 20], operation=[9, 9, 4], peer=[1, 2, -1], flags=[SENDS, 0, 0])
    rows["kind"] = TRANSFER
    found = transfers_of(rows, {9: 3, 4: 0}, timeline)
    assert [(each["operation"], each["peer"], each["sends"]) for each in found] == [
        (3, 2, False),
        (3, 1, True),
    ]
    assert transfers_of(rows, {}, timeline) == transfers_of(rows[:0], {9: 3}, timeline) == []


def test_queue_pairs_add_up_until_they_are_taken():
    found = QueuePairs()
    found.add(pairs(queue_pair=4, completed=0, posted=3), {0: "h/a"}, {0: "h/b/qp:a"})
    assert found.are_worse, "chunks were posted and none completed"
    found.add(
        pairs(queue_pair=4, created=9, completed=2, sum_ns=200, min_ns=90, max_ns=110, p99_ns=110),
        {0: "h/a"},
        {0: "h/b/qp:a"},
    )
    found.add(pairs(queue_pair=4, completed=0, posted=1), {0: "h/a"}, {0: "h/b/qp:a"})
    found.add(pairs(queue_pair=5, device=3, completed=1), {0: "h/a"}, {0: "h/b/qp:a"})
    (pair,) = found.take(10)
    assert (pair["count"], pair["mean_ns"], pair["min_ns"], pair["posted"]) == (2, 100, 90, 1)
    assert pair["flow_id"] == "h/b/qp:a:4:9"
    assert not len(found)
    found.add(pairs(queue_pair=4, completed=1, sum_ns=200, p99_ns=200), {0: "h/a"}, {0: "h/b/qp:a"})
    assert not found.are_worse
    found.add(pairs(queue_pair=4, completed=1, sum_ns=400, p99_ns=400), {0: "h/a"}, {0: "h/b/qp:a"})
    assert found.are_worse, "more than three times what was published"
