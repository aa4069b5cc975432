"""Hostile records: every kind is made, and each either reads as a record or is refused with its reason."""

from __future__ import annotations

from collections import Counter

import pytest

from fabrictime.bench.robust.hostile import KINDS, HostileMaker, places_of
from schemas import codec
from schemas.topics import DELAYS, INVENTORY, TOPICS
from tests.records import make, make_part


def good() -> dict[str, list[tuple[bytes | None, bytes]]]:
    delays = make(
        "PathDelays", nic="h1/eth0", paths=[make_part("PathDelays", "PathDelay", peer="h2/eth0", path=9320)]
    )
    nic = make("Nic", nic="h1/eth0", addresses=["10.0.0.1"])
    return {
        DELAYS.name: [(b"h1/eth0", codec.encode("PathDelays", delays))],
        INVENTORY.name: [(b"h1/eth0", codec.encode("Nic", nic))],
    }


def test_all_kinds_come_from_one_seed_and_none_raises_anything_but_a_refusal() -> None:
    maker, again = HostileMaker(good(), 7), HostileMaker(good(), 7)
    kinds: Counter[str] = Counter()
    refused = 0
    for _ in range(3000):
        message = maker.make()
        assert message == again.make()
        kinds[message.kind] += 1
        if message.value is None:
            continue
        try:
            codec.decode(message.value, TOPICS[message.topic].record)
        except codec.BadRecord:
            refused += 1
    assert set(kinds) == set(KINDS)
    assert refused > 1500


def test_each_number_and_string_is_a_place() -> None:
    record = codec.decode(good()[INVENTORY.name][0][1], "Nic")
    found = {path[0] for path, _ in places_of(record, codec.raw_schema("Nic"))}
    assert {"nic", "rail", "addresses", "since_ns", "mtu_bytes"} <= found


def test_without_good_records_nothing_can_be_made() -> None:
    with pytest.raises(ValueError, match="no good message"):
        HostileMaker({DELAYS.name: []}, 1)
