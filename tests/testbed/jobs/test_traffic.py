"""Flows between hosts: rate, path, end and report."""

from __future__ import annotations

import time

import pytest

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.fabric import FabricError
from fabrictime.testbed.jobs.traffic import FlowSpec, parse_rate
from fabrictime.testbed.settings import FabricSettings

SMALL = FabricSettings(hosts=4, leaves=2, spines=2, host_rate_bps=200_000_000, fabric_rate_bps=50_000_000)


def test_a_paced_flow_arrives_at_its_rate_without_loss(inside):
    def body():
        with Testbed(SMALL) as testbed:
            udp = testbed.traffic.start(FlowSpec("h1", "h3", 20_000_000, 1.0)).wait()
            tcp = testbed.traffic.start(
                FlowSpec("h1", "h3", 20_000_000, 1.0, "tcp", congestion="reno")
            ).wait()
            assert udp.loss == 0
            assert udp.sent_packets == udp.received_packets
            assert udp.received_bytes == udp.received_packets * 1472 == sum(udp.interval_bytes)
            assert udp.goodput_bps * 1514 / 1472 == pytest.approx(20e6, rel=0.1)
            assert udp.cpu_s < 0.6, "more than half a core for 20 Mbit/s"
            assert tcp.goodput_bps == pytest.approx(20e6, rel=0.15)
            assert tcp.loss is None
            assert tcp.retransmits is not None

    inside(body)


def test_two_flows_that_collide_queue_and_lose_and_one_elsewhere_does_not(inside):
    def body():
        with Testbed(SMALL) as testbed:
            sports: dict[str, int] = {}
            for sport in range(42_000, 42_064):
                spine = testbed.truth.likely_path_of("h1", "h3", sport, 7001)[1]
                sports.setdefault(spine, sport)
            hot, cold = sports
            # The same ports from h2 may hash elsewhere: find one that shares the hot link's spine.
            other = next(
                sport
                for sport in range(42_100, 42_300)
                if testbed.truth.likely_path_of("h2", "h4", sport, 7002)[1] == hot
            )
            testbed.truth.record(0.01)
            flows = [
                testbed.traffic.start(FlowSpec("h1", "h3", 40_000_000, 1.5, "udp", sports[hot], 7001)),
                testbed.traffic.start(FlowSpec("h2", "h4", 40_000_000, 1.5, "udp", other, 7002)),
            ]
            assert {flow.number for flow in testbed.traffic.running()} == {1, 2}
            losses = [flow.wait().loss for flow in flows]
            testbed.truth.stop()
            assert testbed.traffic.running() == []
            samples = testbed.truth.samples()
            deepest = max(sample.links[hot].backlog_bytes for sample in samples)
            elsewhere = max(sample.links[cold].backlog_bytes for sample in samples)
            dropped = samples[-1].links[hot].dropped_packets
            return losses, deepest, elsewhere, dropped

    losses, deepest, elsewhere, dropped = inside(body)
    assert sum(losses) > 0.2  # 80 into 50
    assert deepest > 150_000  # of 200,000
    assert elsewhere < 20_000
    assert dropped > 100


def test_a_flow_ends_when_stopped_and_when_its_time_is_over(inside):
    def body():
        with Testbed(SMALL) as testbed:
            long = testbed.traffic.start(FlowSpec("h1", "h3", 5_000_000, 3600.0))
            tcp = testbed.traffic.start(FlowSpec("h2", "h3", 0, 3600.0, "tcp"))
            begin = time.monotonic()
            assert long.stop().received_packets >= 0
            assert tcp.stop().sent_bytes > 0
            assert time.monotonic() - begin < 5
            assert long.stop() is long.wait(), "the result of an ended flow stays"
            forgotten = testbed.traffic.start(FlowSpec("h1", "h4", 5_000_000, 3600.0))
        assert not forgotten.running, "a flow outlived its fabric"

    inside(body)


def test_a_tcp_flow_into_a_blackhole_ends_by_its_own_time(inside):
    def body():
        with Testbed(SMALL) as testbed:
            flow = testbed.traffic.start(FlowSpec("h1", "h3", 0, 0.5, "tcp"))
            testbed.faults.add("blackhole h3")
            begin = time.monotonic()
            result = flow.wait()
            assert time.monotonic() - begin < 3
            assert result.sent_bytes > result.received_bytes >= 0
            with pytest.raises(FabricError, match="no connection"):
                testbed.traffic.start(FlowSpec("h1", "h3", 0, 0.3, "tcp"))

    inside(body)


def test_a_flow_that_cannot_be_is_refused_in_one_line(inside):
    def body():
        with Testbed(SMALL) as testbed:
            for spec, error_text in (
                (FlowSpec("h1", "h1", 1_000_000), "two hosts"),
                (FlowSpec("h1", "h2", 1), "rate_bps 1"),
                (FlowSpec("h1", "h2", 1_000_000, float("nan")), "duration_s nan"),
                (FlowSpec("h1", "h2", 1_000_000, sport=70_000), "sport 70000"),
                (FlowSpec("h1", "h2", 1_000_000, protocol="sctp"), "expected udp or tcp"),  # type: ignore[arg-type]
            ):
                with pytest.raises(ValueError, match=error_text):
                    testbed.traffic.start(spec)
            with pytest.raises(FabricError, match="'nosuch' is not in this kernel"):
                testbed.traffic.start(FlowSpec("h1", "h2", 0, 1.0, "tcp", congestion="nosuch"))

    inside(body)


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("70mbit", 70_000_000),
        ("1.5gbit", 1_500_000_000),
        ("200k", 200_000),
        ("5", 5),
        ("0", 0),
        ("1 Mbit/s", 10**6),
    ],
)
def test_rates(text, bps):
    assert parse_rate(text) == bps


@pytest.mark.parametrize("text", ["", "fast", "-1mbit", "1tbit", "nan"])
def test_an_invalid_rate_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_rate(text)
