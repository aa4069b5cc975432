"""The NICs of a round: from announcements, and from a real log."""

from __future__ import annotations

from typing import Any

import pytest

from producers.audit.host.base import Unreadable
from producers.audit.load.round_nics import RoundNics, nics_by_host
from producers.audit.load.traffic_plan import RoundNic
from producers.inventory.nics import nic_record
from producers.settings import NicSettings
from schemas.kafka.publisher import Publisher
from schemas.kafka.settings import KafkaSettings
from schemas.records import Nic
from schemas.topics import INVENTORY


def nic(host: str, device: str, address: str, probe_port: int = 9, rail: int | None = None) -> Nic:
    settings = NicSettings(host=host, device=device, address=address, rail=rail)
    return nic_record(
        settings, run=1, probe_port=probe_port, phc_index=None, speed_bps=None, mtu_bytes=None,
        since_ns=1, announced_ns=1,
    )  # fmt: skip


def test_nics_are_sorted_by_rail_and_an_address_counts_once() -> None:
    found = nics_by_host(
        [
            nic("h1", "eth9", "10.0.0.1", rail=0),
            nic("h1", "eth1", "10.1.0.1", rail=1),
            nic("h1", "gone", "10.2.0.1", probe_port=0),
            {**nic("h1", "mlx5_0", "10.0.0.1", probe_port=4791), "nic": "h1/z"},
        ]
    )
    assert found == {"h1": (RoundNic(0, "eth9", "10.0.0.1"), RoundNic(1, "eth1", "10.1.0.1"))}


def test_the_log_is_read_for_the_hosts_of_the_round(log: Any) -> None:
    cluster = KafkaSettings(bootstrap=log.bootstrap)
    publisher = Publisher(cluster)
    for host in ("h1", "h2", "h3"):
        publisher.publish(INVENTORY, f"{host}/eth0", nic(host, "eth0", f"10.0.0.{host[1]}"))
    publisher.flush(10)
    peers = RoundNics(cluster)
    assert peers.of(["h1", "h2"]) == {f"h{n}": (RoundNic(0, "eth0", f"10.0.0.{n}"),) for n in (1, 2)}
    assert set(peers.of(["h3"])) == {"h3"}


def test_a_log_that_does_not_answer_is_unreadable() -> None:
    peers = RoundNics(KafkaSettings(bootstrap="127.0.0.1:1"))
    with pytest.raises(Unreadable, match=r"127\.0\.0\.1:1"):
        peers.of(["h1"])
