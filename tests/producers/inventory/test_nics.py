"""The roster: who is alive by the log's own time; what a NIC announces fits the schema."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from producers.inventory.nics import LookupReader, PeerTable, addresses_of, nic_record
from producers.settings import ClockSettings, NicSettings
from schemas import codec
from schemas.kafka.publisher import PARTITIONER
from schemas.kafka.settings import KafkaSettings
from schemas.topics import FLOWS, INVENTORY


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


class Time:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_silent_nic_is_no_peer_by_the_readers_own_clock() -> None:
    now = Time()
    table = PeerTable(90, now)
    table.update("h1/e", announced("h1/e"), 1_000_000)
    now.now_s += 89
    table.update("h2/e", announced("h2/e"), 1_089_000)
    assert set(table.alive("fabric")) == {"h1/e", "h2/e"}
    now.now_s += 2
    assert set(table.alive("fabric")) == {"h2/e"}
    table.update("h1/e", announced("h1/e"), 1_092_000)
    assert set(table.alive("fabric")) == {"h1/e", "h2/e"}


def test_old_announcements_of_a_compacted_topic_are_no_peers_at_the_start() -> None:
    table = PeerTable(90, Time())
    for number in range(8):
        table.update(f"h{number}/e", announced(f"h{number}/e"), 10_000_000 + number * 4000)
    table.update("dead/e", announced("dead/e"), 9_000_000)
    assert set(table.alive("fabric")) == {f"h{number}/e" for number in range(8)}


@pytest.mark.parametrize("ahead_s", [120, 300, 8 * 3600])
@pytest.mark.parametrize("future", [1, 4])
def test_future_stamped_announcements_empty_no_fleet_not_even_after_a_restart(
    ahead_s: int, future: int
) -> None:
    names = [f"h{number}/e" for number in range(8)]
    now = Time()
    table = PeerTable(95, now)
    for second in range(600):
        now.now_s += 1
        wrong_s = ahead_s if 300 <= second < 330 else 0
        name = names[second % 30] if second % 30 < 8 else None
        if name is not None:
            table.update(name, announced(name), round(1e6) * 1000 + (second + wrong_s) * 1000)
        assert second < 8 or set(table.alive("fabric")) == set(names)
    restarted = PeerTable(95, Time())
    for number, name in enumerate(names):
        append_ms = 10**9 + number * 3000 + (ahead_s * 1000 if number < future else 0)
        restarted.update(name, announced(name), append_ms)
    assert set(restarted.alive("fabric")) == set(names)


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


def test_link_local_peers_are_those_of_link_local_nics() -> None:
    records = [announced("h1/e", addresses=["fd00::1", "fe80::7"]), announced("h2/e", addresses=["fd00::2"])]
    assert addresses_of(records, "fe80::9") == {"h1/e": ("fe80::7", 9319)}


class LookedUp:
    """The messages that a reader of two topics passed on, and a producer of them."""

    def __init__(self, bootstrap: str) -> None:
        self.announced_ns: list[int] = []
        self.reports: list[int] = []
        self.producer = Producer({"bootstrap.servers": bootstrap, "partitioner": PARTITIONER})
        self.reader = LookupReader(
            KafkaSettings(bootstrap=bootstrap),
            {
                INVENTORY: lambda key, record, append_ms: self.announced_ns.append(record["announced_ns"]),
                FLOWS: lambda key, record, append_ms: self.reports.append(record["report"]),
            },
            None,
            from_end=(FLOWS,),
            keys={FLOWS: ("h1",)},
        )

    def announce(self, announced_ns: int) -> None:
        value = codec.encode(INVENTORY.type, announced("h1/eth0", announced_ns=announced_ns))
        self.producer.produce(INVENTORY.name, value, "h1/eth0")
        assert self.producer.flush(20) == 0

    def report(self, number: int) -> None:
        record = {"host": "h1", "boot": "b", "report": number, "shard": "fabric", "system_ns": 1}
        value = codec.encode(FLOWS.type, record | {"whole": True, "flows": []})
        self.producer.produce(FLOWS.name, value, "h1")
        assert self.producer.flush(20) == 0

    def poll_until(self, received: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not received():
            assert time.monotonic() < end
            self.reader.poll()
            time.sleep(0.01)

    def report_until_received(self, number: int) -> None:
        """Report flows, numbered from `number`, until one such report was received."""
        first, end = number, time.monotonic() + 30
        while not self.reports or self.reports[-1] < first:
            assert time.monotonic() < end
            self.report(number)
            number += 1
            self.reader.poll()
            time.sleep(0.01)


def test_a_log_that_lost_its_messages_is_read_again_from_each_topics_own_start(log: Any) -> None:
    looked_up = LookedUp(log.bootstrap)
    for number in range(20):
        looked_up.announce(1)
        looked_up.report(number)
    looked_up.poll_until(lambda: looked_up.announced_ns == 20 * [1])
    looked_up.report_until_received(100)
    log.down()
    shutil.rmtree(log.directory)
    log.up()
    looked_up.announce(2)
    looked_up.report(50)
    looked_up.poll_until(lambda: looked_up.announced_ns == [*20 * [1], 2])
    looked_up.report_until_received(200)
    assert min(looked_up.reports) >= 100, "flows are read from the end of their topic only"
    looked_up.reader.close()
