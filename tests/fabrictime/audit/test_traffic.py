"""Rounds of a fleet: their plan, and real ones between hosts on loopback, one of them slow or absent."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.audit.report import ANSWER, AuditReport, verdict
from fabrictime.audit.traffic import (
    PATTERNS,
    TrafficRequest,
    common_links,
    evaluated_traffic,
    heat_maps,
    leaves_of_hosts,
    limits_of,
    merged,
    planned,
    run_traffic,
    without,
)
from fabrictime.testbed.audit.simulated import Simulated
from producers.audit.agent import AuditAgent
from producers.audit.checks import CHECKS
from producers.audit.load.round_nics import RoundNics
from producers.audit.load.traffic_plan import PAIR_CHECK
from producers.audit.service import audited_hosts, open_host
from producers.audit.settings import AuditSettings, TrafficSettings
from producers.inventory.nics import nic_record
from producers.settings import NicSettings
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.ids import host_of
from schemas.input_error import InputError
from schemas.kafka.publisher import Publisher
from schemas.kafka.settings import KafkaSettings
from schemas.records import AuditStatus, Nic
from schemas.topics import INVENTORY
from streams.audit.fabric.records import FabricRecords
from streams.audit.traffic.pairs import Round, TrafficLimits, figures_line
from streams.audit.traffic.rounds import pairs_of
from tests.fabrictime.audit.serving import serving

HOSTS = [f"h{number}" for number in range(6)]
LEAF = {host: f"leaf{number % 2}" for number, host in enumerate(HOSTS)}
RATE_MBPS, SLOW_MBPS = 20.0, 2.0
LIMITS = {
    "max_slower": 0.4,
    "max_variation": 0.5,
    "straggler_ms": 1000.0,
    "max_loaded_factor": 1000.0,
    "max_loaded_growth_ms": 5000.0,
    "min_across_share": 0.2,
}
"""Wide ones: beside other tests the processors of this machine are full."""


@given(st.sampled_from(PATTERNS), st.integers(3, 12), st.integers(0, 5), st.integers(0, 4))
def test_plans_name_every_host_once_in_a_round(pattern: str, count: int, passes: int, batch: int) -> None:
    hosts = [f"h{number}" for number in range(count)]
    leaf_of = {host: f"leaf{number % 2}" for number, host in enumerate(hosts)}
    rounds = planned(TrafficRequest((), pattern, passes, batch), hosts, leaf_of)
    assert rounds
    for each in rounds:
        assert len(each.hosts) == len(set(each.hosts)) > 1
        if batch and each.kind in ("pairs", "within", "across", "burn"):
            assert len(pairs_of(each.hosts)) <= batch
    if pattern in ("ring", "burn") and passes != 1:
        assert {host for each in rounds for host in each.hosts} == set(hosts)


@pytest.mark.parametrize(
    ("request_", "hosts", "text"),
    [
        (TrafficRequest(pattern="mesh"), HOSTS, "--pattern mesh: expected pairs, one-to-many"),
        (TrafficRequest(), ["h1"], "1 hosts, expected at least 2 for pairs"),
        (TrafficRequest(pattern="ring"), ["h1", "h2"], "2 hosts, expected at least 3 for ring"),
        (TrafficRequest(pattern="bisection"), HOSTS, "0 leaves known, expected at least 2"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(request_: TrafficRequest, hosts: list[str], text: str) -> None:
    with pytest.raises(InputError, match=text):
        planned(request_, hosts, {})


def test_absent_hosts_are_left_out_with_their_partners() -> None:
    pairs = Round("pairs", ["a", "b", "c", "d"])
    assert without(pairs, {"x"}) is pairs
    assert without(pairs, {"c"}) == Round("pairs", ["a", "b"])
    assert without(pairs, {"a", "d"}) is None
    ring = Round("ring", ["a", "b", "c", "d"])
    assert without(ring, {"b"}) == Round("ring", ["a", "c", "d"])
    assert without(ring, {"b", "c"}) is None
    fan = Round("fan", ["a", "b", "c"])
    assert without(fan, {"b"}) == Round("fan", ["a", "c"])
    assert without(fan, {"a"}) is None
    assert without(fan, {"b", "c"}) is None


def test_leaves_and_common_links_come_from_the_routes_of_probes() -> None:
    fabric = Simulated(Fleet(Shape.of(64), 1), peers=5, paths=4).records(delays=())
    leaves = leaves_of_hosts(fabric)
    assert len(set(leaves.values())) > 1
    links = common_links(fabric)
    assert all(len(found) >= 2 for found in links.values()), "the cables of both NICs"
    for traced in fabric.traced:
        assert set(links[traced.nic, traced.peer]) <= set(traced.links)


def nic(host: str, address: str) -> Nic:
    return nic_record(
        NicSettings(host=host, device="lo", address=address), run=1, probe_port=9, phc_index=None,
        speed_bps=None, mtu_bytes=None, since_ns=1, announced_ns=1,
    )  # fmt: skip


ADDRESSES = {host: f"127.0.1.{number + 1}" for number, host in enumerate(HOSTS)}
NICS = [nic(host, address) for host, address in ADDRESSES.items()]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def agents(
    cluster: KafkaSettings, port: int, hosts: Sequence[str], slow: str = "", seconds: float = 0.5
) -> Iterator[TrafficSettings]:
    """Run two agents: one of the slow host, one of the others. Yield the settings of the others."""
    publisher = Publisher(cluster)
    for each in NICS:
        publisher.publish(INVENTORY, each["nic"], each)
    publisher.flush(10)
    usual = TrafficSettings()
    with ExitStack() as stack:
        for own, rate in (([slow], SLOW_MBPS), ([host for host in hosts if host != slow], RATE_MBPS)):
            usual = TrafficSettings(port=port, seconds=seconds, rate_mbps=rate, meet_s=8, **LIMITS)
            nics = [NicSettings(host=host, device="lo", address=ADDRESSES[host]) for host in own if host]
            if nics:
                settings = AuditSettings(kafka=cluster, every_s=0, traffic=usual)
                stack.enter_context(serving(cluster, agent_of(settings, nics)))
        yield usual


def agent_of(settings: AuditSettings, nics: list[NicSettings]) -> AuditAgent:
    peers = RoundNics(settings.kafka)
    return AuditAgent(
        settings,
        audited_hosts(nics, ""),
        lambda host, request: open_host(nics, host, settings, request, peers),
        CHECKS,
    )


@pytest.fixture
def cluster(log: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=log)


def audited(
    cluster: KafkaSettings, settings: TrafficSettings, request: TrafficRequest
) -> tuple[AuditReport, list[Round]]:
    run, started_ns, rounds = run_traffic(cluster, request, NICS, LEAF, settings)
    report = merged(run, started_ns, started_ns + 1, rounds, NICS)
    return evaluated_traffic(report, rounds, FabricRecords(NICS), limits_of(settings)), rounds


def failed(report: AuditReport) -> set[tuple[str, str]]:
    return {
        (each["host"], each["check"])
        for each in report.all_results()
        if each["status"] == AuditStatus.FAILED and each["check"] != "fabric.traffic-variation"
    }


def test_a_slow_host_is_isolated_by_real_load(cluster: KafkaSettings) -> None:
    with agents(cluster, free_port(), HOSTS, slow="h4", seconds=2) as settings:
        report, rounds = audited(cluster, settings, TrafficRequest(passes=3))
    assert len(rounds) >= 3
    assert failed(report) == {("h4", "fabric.traffic-hosts")}
    assert verdict(report)[0] == 1
    assert {each["run"] for each in report.all_results()} == {report.run}
    for host in HOSTS:
        assert report.results[host][PAIR_CHECK]["status"] == AuditStatus.PASSED
    assert "Gbit/s" in figures_line(rounds)


@pytest.mark.parametrize("pattern", ["one-to-many", "bisection", "ring", "burn"])
def test_a_healthy_fleet_has_no_error_in_any_pattern(cluster: KafkaSettings, pattern: str) -> None:
    hosts = HOSTS[:4]
    with agents(cluster, free_port(), hosts) as settings:
        report, rounds = audited(cluster, settings, TrafficRequest(hosts, pattern, passes=1))
    text = "; ".join(each["text"] for each in report.all_results())
    assert failed(report) == set(), text
    assert {each["status"] for each in report.results["h0"].values()} != {AuditStatus.UNKNOWN}, text
    assert rounds[0].results
    if pattern == "ring":
        assert "|" in heat_maps(report)[0]


def test_a_host_that_does_not_answer_costs_one_round(cluster: KafkaSettings) -> None:
    seen: list[str] = []
    with agents(cluster, free_port(), HOSTS[:3]) as settings:
        quick = settings.model_copy(update={"meet_s": 0.5})
        run, started_ns, rounds = run_traffic(
            cluster, TrafficRequest(HOSTS[:4], passes=3), NICS, {}, quick, seen.append
        )
    report = merged(run, started_ns, started_ns + 1, rounds, NICS)
    assert report.missing == ("h3",)
    assert verdict(report)[0] == 2
    assert sum("h3" in each.hosts for each in rounds) == 1
    assert all(ANSWER in report.results[host] for host in HOSTS[:3])
    partner = next(a if b == "h3" else b for a, b in pairs_of(rounds[0].hosts) if "h3" in (a, b))
    assert any(
        each["host"] == partner and each["status"] == AuditStatus.UNKNOWN for each in rounds[0].results
    )
    assert "round 1 of 3 (pairs)" in seen[0]


def test_the_decisive_result_of_all_rounds_counts() -> None:
    def one(status: AuditStatus, host: str = "h0") -> Any:
        return {"host": host, "check": PAIR_CHECK, "status": status, "run": "x", "checks": 9}

    rounds = [
        Round("pairs", ["h0", "h1"], [one(AuditStatus.PASSED)]),
        Round("pairs", ["h0", "h2"], [one(AuditStatus.FAILED), one(AuditStatus.PASSED, "h2")]),
        Round("pairs", ["h0", "h1"], [one(AuditStatus.UNKNOWN)]),
    ]
    report = merged("traffic-1", 1, 2, rounds, NICS)
    found = report.results["h0"][PAIR_CHECK]
    assert (found["status"], found["run"], found["checks"]) == (AuditStatus.FAILED, "traffic-1", 1)
    assert report.missing == ("h1",)
    assert report.nics["h0"] == ("h0/lo",)


def test_an_rdma_device_that_shares_an_address_needs_no_load_of_its_own() -> None:
    shared = {**nic("h0", ADDRESSES["h0"]), "nic": "h0/mlx5_0", "device": "mlx5_0", "probe_port": 4791}
    other = {**nic("h0", "127.0.2.1"), "nic": "h0/eth1", "device": "eth1"}
    nics: list[Any] = [*NICS, shared, other]
    rounds = [Round("burn", ["h0", "h1"])]
    report = evaluated_traffic(
        merged("traffic-1", 1, 2, rounds, nics), rounds, FabricRecords(nics), TrafficLimits()
    )
    found = report.results["h0"]["fabric.burned-links"]["findings"]
    assert {each["subject"] for each in found} == {"h0/lo", "h0/eth1"}


def test_limits_are_those_of_the_settings() -> None:
    assert limits_of(TrafficSettings()) == TrafficLimits()
    assert limits_of(TrafficSettings(straggler_ms=7)).straggler_ms == 7
    assert host_of("h0/lo") == "h0"
