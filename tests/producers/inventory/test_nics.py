"""The roster: who is alive by the log's own time; what a NIC announces fits the schema."""

from __future__ import annotations

from typing import Any

import pytest

from producers.inventory.nics import PeerTable, addresses_of, nic_record
from producers.settings import ClockSettings, NicSettings
from schemas import codec


def announced(name: str, **change: Any) -> dict[str, Any]:
    host, device = name.split("/")
    nic = NicSettings(host=host, device=device, address="10.0.0.1", rail=0, rack="r1")
    record = nic_record(
        nic,
        run=1,
        probe_port=9319,
        phc_index=None,
        speed_bps=10**11,
        mtu_bytes=None,
        since_ns=1,
        announced_ns=2,
    )
    return record | change


def test_an_announcement_fits_its_schema() -> None:
    record = announced("h1/eth0")
    assert codec.decode(codec.encode("Nic", record), "Nic") == record


@pytest.mark.parametrize(
    ("phc", "clock", "name", "stamp"),
    [
        (None, None, "h1/system", "KERNEL"),
        (3, None, "h1/ptp3", "HARDWARE"),
        (None, ClockSettings(offset_ns=5), "h1/eth0", "KERNEL"),
    ],
)
def test_the_clock_is_named_by_the_timestamp_source(
    phc: int | None, clock: ClockSettings | None, name: str, stamp: str
) -> None:
    nic = NicSettings(host="h1", device="eth0", address="10.0.0.1", clock=clock)
    record = nic_record(
        nic, run=1, probe_port=1, phc_index=phc, speed_bps=None, mtu_bytes=None, since_ns=1, announced_ns=2
    )
    assert (record["clock"], record["stamp"]) == (name, stamp)


def test_a_silent_nic_is_left_by_log_time_and_comes_back() -> None:
    table = PeerTable(silent_s=90)
    table.update("h1/e", announced("h1/e"), 1_000_000)
    table.update("h2/e", announced("h2/e"), 1_089_000)
    assert set(table.alive("fabric")) == {"h1/e", "h2/e"}
    table.update("h2/e", announced("h2/e"), 1_091_000)
    assert set(table.alive("fabric")) == {"h2/e"}
    table.update("h1/e", announced("h1/e"), 1_092_000)
    assert set(table.alive("fabric")) == {"h1/e", "h2/e"}


def test_removed_mute_and_foreign_nics_are_no_peers() -> None:
    table = PeerTable(silent_s=90)
    for name, change in {
        "gone/e": {},
        "mute/e": {"probe_port": 0},
        "other/e": {"shard": "pod2"},
        "bare/e": {"addresses": []},
        "here/e": {},
    }.items():
        table.update(name, announced(name, **change), 1000)
    table.update("gone/e", None, 1001)
    assert set(table.alive("fabric")) == {"here/e"}


def test_peers_are_asked_by_an_address_of_our_own_family() -> None:
    records = [announced("h1/e", addresses=["fd00::1", "10.0.0.7"]), announced("h2/e", addresses=["fd00::2"])]
    assert addresses_of(records, "10.0.0.1") == {"h1/e": ("10.0.0.7", 9319)}
    assert addresses_of(records, "fd00::9") == {"h1/e": ("fd00::1", 9319), "h2/e": ("fd00::2", 9319)}
