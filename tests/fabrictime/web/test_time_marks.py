"""Marks of the time control, from real tables."""

from __future__ import annotations

import time
from typing import Any

from fabrictime.bench.web._recorded import Record
from fabrictime.web.history_reader import HistoryReader
from fabrictime.web.time_marks import marks
from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import TOPICS
from streams.history.rows import rows_of
from tests.fabrictime.fabric_records import FabricRecords

S = 1_000_000_000
T = time.time_ns() // S * S - 1000 * S


def store(filled: Any, *records: Record) -> None:
    """Store records as the sink does."""
    for number, record in enumerate(records):
        message = Message(record.at_ns, record.topic, 0, number, record.key, record.value)
        message.decoded(TOPICS[record.topic])
        for table, block in rows_of(record.topic, [message]).items():
            filled.client.insert_arrow(f"{filled.database}.{table}", block)


def record(at: int, topic: str, key: str, value: dict[str, Any]) -> Record:
    return Record(T + at * S, topic, key, codec.encode(TOPICS[topic].record, value))


def test_alerts_and_decisions_of_the_range_are_marks(filled: Any) -> None:
    fabric = FabricRecords()
    cable = fabric.cable(fabric.up("leaf1", 1))
    moves = []
    for number in range(3):
        flow = fabric.flow(number, "h1/eth1", "h5/eth1")
        decision = fabric.decision(number, flow, f"{cable}/1", kind="GREY", at_ns=T + 120 * S)
        moves.append(record(120, "fabric.decisions", "h1", decision))
    alerts = {at: fabric.alert(cable, "x", kind="LINK_GREY", raised_ns=T + at * S) for at in (10, 110, 310)}
    store(filled, *(record(at, "fabric.alerts", one["alert_id"], one) for at, one in alerts.items()), *moves)
    drawn_marks = marks(HistoryReader(filled.history), T + 100 * S, T + 300 * S)
    assert [(at_ms - T // 1_000_000, kind) for at_ms, kind, _ in drawn_marks] == [
        (110_000, "CRITICAL"),
        (120_000, "action"),
    ]
    assert drawn_marks[0][2].startswith("link grey: leaf1")
    assert drawn_marks[1][2].startswith("3 decisions, grey: leaf1")
