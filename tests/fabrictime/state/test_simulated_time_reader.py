"""Fabric time now: that of simulated hosts may be behind the system clock."""

from __future__ import annotations

import time

import pytest

from fabrictime.state.simulated_time_reader import fabric_now_ns
from schemas.kafka.publisher import Publisher
from schemas.topics import INVENTORY
from tests.records import make

S = 1_000_000_000


@pytest.mark.parametrize(("pace", "lag_s"), [(1.0, 100), (None, 0)])
def test_the_time_of_simulated_hosts_is_behind_by_the_skipped_time(
    log: str, pace: float | None, lag_s: int
) -> None:
    publisher = Publisher(log)
    announced_ns = time.time_ns() - 100 * S
    fields = {"nic": "h1/eth1", "shard": "sim", "probe_port": 4791, "announced_ns": announced_ns}
    publisher.publish(INVENTORY, "h1/eth1", make("Nic", simulation_pace=pace, **fields))
    publisher.send(INVENTORY.name, "h2/eth1", b"no record")
    publisher.flush(5)
    assert (time.time_ns() - fabric_now_ns(log)) / S == pytest.approx(lag_s, abs=2)
