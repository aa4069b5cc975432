"""Hosts of a run from the inventory, and runs on a real log with simulated hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from fabrictime.audit.collect import Progress
from fabrictime.audit.fleet import (
    STALE_S,
    Request,
    audit_fleet,
    expected_hosts,
    living,
    nics_of,
    read_nics,
    run_name,
)
from fabrictime.audit.report import ANSWER, verdict
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.agent import AuditAgent
from producers.audit.checks import CHECKS
from producers.audit.report import AuditedHost
from producers.audit.settings import AuditSettings
from producers.inventory.nics import nic_record
from producers.settings import NicSettings
from schemas.formats import FORMATS
from schemas.input_error import InputError
from schemas.kafka.publisher import Publisher
from schemas.kafka.settings import KafkaSettings
from schemas.records import AuditRun, AuditStatus, Nic
from schemas.topics import INVENTORY
from tests.fabrictime.audit.serving import serving

HOSTS = 64
DAY_NS = round(STALE_S * 1e9)


def nic(host: str, device: str = "eth0", probe_port: int = 9) -> Nic:
    settings = NicSettings(host=host, device=device, address="10.0.0.1")
    return nic_record(
        settings, run=1, probe_port=probe_port, phc_index=None, speed_bps=None, mtu_bytes=None,
        since_ns=1, announced_ns=1,
    )  # fmt: skip


def announced(*nics: Nic, at_ns: int = DAY_NS) -> dict[str, tuple[Nic, int]]:
    return {each["nic"]: (each, at_ns) for each in nics}


def test_hosts_have_the_nics_of_the_inventory() -> None:
    known = announced(nic("h2", "eth1"), nic("h2"), nic("h1"), nic("left", probe_port=0))
    known |= announced(nic("old"), at_ns=-1)
    assert nics_of(living(known)) == {"h1": ("h1/eth0",), "h2": ("h2/eth0", "h2/eth1")}
    assert living({}) == []


def test_names_and_patterns_choose_hosts() -> None:
    known = ["h1", "h2", "g1"]
    assert expected_hosts([], known) == ["g1", "h1", "h2"]
    assert expected_hosts(["h*"], known) == ["h1", "h2"]
    assert expected_hosts(["g1", "h?"], known) == ["g1", "h1", "h2"]
    assert expected_hosts(["h9"], known) == ["h9"], "a host that the inventory lacks must answer too"
    with pytest.raises(InputError, match=r"--hosts x\*: no such host, expected one of g1, h1, h2"):
        expected_hosts(["x*"], known)
    with pytest.raises(InputError, match="is an agent running"):
        expected_hosts([], [])


def test_runs_have_names_of_their_own() -> None:
    names = {run_name(1.8e9) for _ in range(20)}
    assert len(names) > 15
    assert FORMATS["name"].first_wrong(names) is None


@contextmanager
def answering(cluster: KafkaSettings, names: list[str], change: Callable[[str], str]) -> Iterator[None]:
    """Let agents answer on the log, for recorded hosts. `change` returns the MTU of a host's eth0."""

    def open_host(name: str, request: AuditRun | None):
        host = HEALTHY.copy()
        host.network["interfaces"] = [
            replace(each, mtu=int(change(name))) if each.name == "eth0" else each
            for each in host.network["interfaces"]
        ]
        host.files["/sys/class/net/eth0/mtu"] = change(name)
        return host

    hosts = {name: AuditedHost(name, "fabric", "") for name in names}
    agent = AuditAgent(AuditSettings(every_s=0), hosts, open_host, CHECKS)
    with serving(cluster, agent):
        yield


@pytest.fixture
def cluster(log: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=log)


def announce(cluster: KafkaSettings, names: list[str]) -> None:
    publisher = Publisher(cluster)
    for name in names:
        publisher.publish(INVENTORY, f"{name}/eth0", nic(name))
    publisher.flush(10)


def test_64_hosts_report_within_the_limit_and_the_odd_one_is_found(cluster: KafkaSettings) -> None:
    names = [f"h{number:02}" for number in range(HOSTS)]
    announce(cluster, names)
    seen: list[Progress] = []
    with answering(cluster, names, lambda name: "1500" if name == "h07" else "9000"):
        report = audit_fleet(cluster, Request(limit_s=60), read_nics(cluster), seen.append)
    assert report.hosts == tuple(names)
    assert report.missing == ()
    assert all(set(report.results[name]) == {*CHECKS, ANSWER} - active() for name in names)
    assert report.results["h07"]["backend.mtu"]["status"] == AuditStatus.FAILED
    assert verdict(report)[0] == 1
    assert seen[0].complete == 0
    assert seen[-1].complete == seen[-1].hosts == HOSTS


def active() -> set[str]:
    return {check.check_id for check in CHECKS.values() if check.active}


def test_a_host_that_does_not_answer_is_unknown_after_the_limit(cluster: KafkaSettings) -> None:
    announce(cluster, ["h00", "h01"])
    with answering(cluster, ["h00"], lambda name: "9000"):
        request = Request(hosts=["h00", "h01"], only=["node.uptime"], limit_s=1)
        report = audit_fleet(cluster, request, read_nics(cluster))
    assert report.missing == ("h01",)
    assert report.results["h01"][ANSWER]["text"] == "did not answer within 1 s"
    assert report.results["h00"]["node.uptime"]["status"] == AuditStatus.PASSED
    assert verdict(report)[0] == 2
