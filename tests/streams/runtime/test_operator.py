"""What operators share: the owner's keys, encoded outputs, restored records."""

from __future__ import annotations

import pytest

from schemas import codec
from schemas.checks import BadRecord
from schemas.kafka import partition_of
from schemas.kafka.message import Message
from schemas.records import ClockFits
from schemas.topics import CLOCK_FITS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Operator, Output, Owner, records_of
from streams.runtime.settings import StreamSettings
from tests.records import make


def fits(window: int) -> Message:
    value = codec.encode(CLOCK_FITS.type, make("ClockFits", shard="fabric", window=window))
    return Message(window, CLOCK_FITS.name, 0, window, "fabric", value)


def test_an_owner_owns_the_keys_of_its_partitions() -> None:
    keys = [f"shard{number}" for number in range(20)]
    owner = Owner(1, frozenset([0, 2]), 4, StreamSettings())
    assert [owner.owns(key) for key in keys] == [partition_of(key, 4) in {0, 2} for key in keys]


def test_an_output_is_encoded_once_or_is_a_tombstone() -> None:
    output = Output(CLOCK_FITS, "fabric", make("ClockFits", shard="fabric", window=5))
    value = output.value()
    assert value is not None
    assert output.value() is value
    assert codec.decode(value, CLOCK_FITS.record)["window"] == 5
    assert Output(CLOCK_FITS, "fabric", body=b"encoded").value() == b"encoded"
    assert Output(CLOCK_FITS, "fabric").value() is None


def test_restored_records_that_cannot_be_used_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def check(record: ClockFits, append_ns: int) -> ClockFits:
        if record["window"] == 2:
            raise BadRecord("OUT_OF_RANGE", f"window 2 at {append_ns}")
        return record

    bad = Message(0, CLOCK_FITS.name, 0, 9, "fabric", b"nonsense")
    tombstone = Message(0, CLOCK_FITS.name, 0, 10, "fabric", None)
    past = {CLOCK_FITS.name: [fits(1), bad, tombstone, fits(2), fits(3)]}
    assert [record["window"] for record in records_of(past, CLOCK_FITS, check=check)] == [1, 3]
    assert "ignored 2 bad records, the last: window 2 at 2" in caplog.text
    assert records_of({}, CLOCK_FITS) == []


def test_a_message_that_cannot_be_taken_costs_no_other() -> None:
    class Odd(Operator):
        def take_one(self, message: Message, tables: FabricTables) -> None:
            if message.offset == 2:
                raise KeyError("planted")
            windows.append(message.offset)

    windows: list[int] = []
    operator = Odd()
    operator.take([fits(1), fits(2), fits(3)], FabricTables())
    assert windows == [1, 3]
    assert [(message.offset, str(error)) for message, error in operator.rejected] == [(2, "'planted'")]
