"""One bulk flow over loopback in this process: its rate, its figures, its start line, and its end."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fabrictime.testbed.jobs import flow_worker
from fabrictime.testbed.jobs.flow_worker import _Meter, _Order
from fabrictime_client import FlowEndpoint


@pytest.fixture
def endpoint() -> Iterator[FlowEndpoint]:
    """An endpoint without agents."""
    with FlowEndpoint("", "") as made:
        yield made


class Stop:
    def __init__(self, at_once: bool = False) -> None:
        self.at_once = at_once

    def check(self) -> bool:
        return self.at_once


def order(protocol: str, **fields: object) -> _Order:
    given = {
        "source_host": "h1",
        "source_netns": None,
        "source_address": "127.0.0.1",
        "destination_netns": None,
        "destination_address": "127.0.0.2",
        "protocol": protocol,
        "rate_bps": 20_000_000,
        "duration_s": 0.1,
        "sport": 0,
        "dport": 0,
        "payload_bytes": 1000,
        "congestion": "reno",
        "interval_s": 0.02,
        "job": None,
        "tenant": None,
        "dscp": 0,
        "registrations": None,
        "control": None,
    }
    return _Order(**(given | fields))


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_all_that_is_sent_within_its_time_arrives(
    protocol: str, capsys: pytest.CaptureFixture[str], endpoint: FlowEndpoint
) -> None:
    run = flow_worker._udp if protocol == "udp" else flow_worker._tcp
    found = run(order(protocol), Stop(), endpoint)
    started = json.loads(capsys.readouterr().out)
    assert (started["sport"], started["dport"]) == (found["sport"], found["dport"])
    assert 0 < found["received_bytes"] <= found["sent_bytes"]
    # What a starved process receives after the last interval is in none.
    is_late = found["elapsed_s"] > 0.1 + found["interval_s"]
    assert sum(found["interval_bytes"]) == found["received_bytes"] or is_late
    assert 0.1 <= found["elapsed_s"] < 2
    if protocol == "udp":
        assert found["received_packets"] == found["sent_packets"]
        assert found["sent_packets"] + found["skipped_packets"] <= 0.1 * 20e6 / 8 / 1042 + 50


def test_a_flow_ends_when_its_starter_leaves(
    capsys: pytest.CaptureFixture[str], endpoint: FlowEndpoint
) -> None:
    found = flow_worker._udp(order("udp", duration_s=60.0), Stop(at_once=True), endpoint)
    assert found["elapsed_s"] < 5
    assert capsys.readouterr().out


def test_received_bytes_are_counted_by_the_slot_of_their_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000]
    monkeypatch.setattr(flow_worker.time, "monotonic_ns", lambda: now[0])
    meter = _Meter(1e-6)
    for at_ns, size in ((1_000, 5), (1_999, 6), (4_500, 7)):
        now[0] = at_ns
        meter.add(1, size)
    assert meter.slots == [11, 0, 0, 7]
    assert (meter.packets, meter.bytes, meter.first_ns, meter.last_ns) == (3, 18, 1_000, 4_500)
