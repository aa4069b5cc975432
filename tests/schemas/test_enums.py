"""Enums come back as their symbols, and a number that is none is refused."""

import pytest

from schemas import codec

RECORD = {
    "topic": "t", "partition": 0, "offset": 1, "append_ns": 1, "reader": "map", "reason": "TRUNCATED",
    "detail": "x", "key": b"", "size_bytes": 3, "head": b"",
}  # fmt: skip


def test_enum_is_read_as_its_symbol():
    assert codec.decode(codec.encode("Reject", RECORD), "Reject") == RECORD


@pytest.mark.parametrize("number", [b"\x01", b"\x7f"])
def test_enum_number_out_of_range_is_refused(number):
    data = codec.encode("Reject", RECORD)
    at = data.index(b"\x06map") + 4
    assert data[at : at + 1] == b"\x04"
    with pytest.raises(codec.BadRecord, match=r"Reject\.reason: enum number"):
        codec.decode(data[:at] + number + data[at + 1 :], "Reject")
