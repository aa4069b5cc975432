"""Records of a fleet: their times can be moved, and the log's files hold them as written."""

from __future__ import annotations

import time
from pathlib import Path

from fabrictime.bench._stepped_log import SteppedLog
from fabrictime.bench.web._recorded import PARTITIONS, moved, recorded, repeated, write_log
from producers.sim.settings import SimSettings
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.topics import FLOWS, INVENTORY

S = 1_000_000_000


def test_only_times_are_moved() -> None:
    record = {
        "at_ns": 2 * 10**18,
        "took_ns": 5,
        "number": 2 * 10**18,
        "flap_ns": [10**18 + 1],
        "parts": [{"x_ns": 1}],
    }
    assert moved(record, 7) == {**record, "at_ns": 2 * 10**18 + 7, "flap_ns": [10**18 + 8]}
    assert moved(record, 7, ("flap_ns",)) == {**record, "at_ns": 2 * 10**18 + 7}


def test_a_recorded_fleet_fills_a_log_twice(tmp_path: Path) -> None:
    start_ns = time.time_ns() // S * S - 100 * S
    records = recorded(SimSettings(nics=4, rate_pps=50), 2.0, start_ns)
    assert {FLOWS.name, INVENTORY.name} <= {record.topic for record in records}
    twice = list(repeated(records, 2 * S, 2))
    write_log(tmp_path / "log", twice)
    with (
        SteppedLog(tmp_path / "log", PARTITIONS) as log,
        TopicReader(log.bootstrap, {INVENTORY: BEGINNING}) as reader,
    ):
        reader.connect()
        messages = list(reader.read_to_end())
    written = [record for record in twice if record.topic == INVENTORY.name]
    assert sorted((message.key, message.value) for message in messages) == sorted(
        (record.key, record.value) for record in written
    )
    assert {message.append_ns // S for message in messages} == {record.at_ns // S for record in written}
