"""Checks between hosts: figures as facts, partners that fail, counters under load, and two real hosts."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fabrictime.testbed.audit import recorded_active as recorded
from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_network import FABRIC
from producers.audit.base import Result, run_check
from producers.audit.checks import CHECKS
from producers.audit.host.live import LiveHost
from producers.audit.load.between_hosts import error_counters
from producers.audit.load.traffic_plan import FAN_CHECK, PAIR_CHECK, PLANS, RING_CHECK, RoundNic, TrafficRound
from producers.audit.settings import TrafficSettings
from schemas.records import AuditStatus
from tests.producers.audit.host.namespaces import named_namespaces

FLOW = "h1/eth1>h2/eth1"


def test_the_client_states_the_figures_of_each_flow() -> None:
    findings = run_check(CHECKS[PAIR_CHECK], HEALTHY.copy()).findings
    facts = {(each.subject, each.fact.name): each.fact.number for each in findings if each.fact is not None}
    assert facts[FLOW, "send_gbps"] == 1.0
    assert facts[FLOW, "loaded_p99_us"] == 900.0
    assert facts[FLOW, "burned_mb"] == 100.0
    assert len(facts) == 2 * 5


@pytest.mark.parametrize("check", [PAIR_CHECK, FAN_CHECK, RING_CHECK])
def test_a_flow_that_did_not_take_place_is_unknown(check: str) -> None:
    host = HEALTHY.copy()
    errors = {each.flow: f"{each.host} stopped: timed out" for each in PLANS[check](recorded.ROUND).flows}
    host.commands[recorded.traffic(check)] = json.dumps({"flows": {}, "errors": errors, "refused": 0})
    result = run_check(CHECKS[check], host)
    assert result.status is AuditStatus.UNKNOWN
    assert "h2 stopped: timed out" in result.text
    host.slow.add(recorded.traffic(check))
    assert run_check(CHECKS[check], host).status is AuditStatus.UNKNOWN


def test_counters_are_those_of_the_kernel_the_driver_and_the_port() -> None:
    found = error_counters(HEALTHY.copy(), frozenset(FABRIC))
    assert ("eth0", "rx_errors") in found
    assert ("mlx5_0/1", "symbol_error") in found
    assert not any(device == "lo" for device, _ in found)


def test_a_counter_that_grew_names_device_and_growth() -> None:
    host = HEALTHY.copy()
    host.under_load["/sys/class/infiniband/mlx5_1/ports/1/counters/symbol_error"] = "3"
    result = run_check(CHECKS[PAIR_CHECK], host)
    assert result.status is AuditStatus.FAILED
    assert result.text == "mlx5_1/1: symbol_error grew by 3 under load, expected 0"


def test_a_run_that_is_no_round_skips_the_checks() -> None:
    for check in (PAIR_CHECK, FAN_CHECK, RING_CHECK):
        assert run_check(CHECKS[check], LiveHost()).status is AuditStatus.SKIPPED


def real_round(check: str, hosts: dict[str, str], **changes: float) -> dict[str, Result]:
    """Run a round between hosts on this machine's loopback addresses."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    settings = TrafficSettings(port=port, rate_mbps=80, meet_s=10).model_copy(update=changes)
    nics = {host: (RoundNic(0, "lo", address),) for host, address in hosts.items()}
    results: dict[str, Result] = {}

    def one(name: str) -> None:
        order = TrafficRound("r1", name, tuple(hosts), nics, settings)
        results[name] = run_check(CHECKS[check], LiveHost(nics=("lo",), find_round=lambda: order))

    threads = [threading.Thread(target=one, args=(name,)) for name in hosts if hosts[name] != "127.0.0.9"]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    return results


HOSTS = {"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}


@pytest.mark.parametrize("check", [PAIR_CHECK, FAN_CHECK, RING_CHECK])
def test_real_hosts_exchange_load(check: str) -> None:
    results = real_round(check, HOSTS, seconds=0.5, max_slower=0.99, straggler_ms=1000)
    assert results["a"].status is AuditStatus.PASSED, results["a"].text
    expected = AuditStatus.SKIPPED if check == PAIR_CHECK else AuditStatus.PASSED
    assert results["c"].status is expected, results["c"].text
    assert any(each.fact is not None for each in results["a"].findings)


def test_a_real_partner_that_stays_away_is_unknown_within_the_limit() -> None:
    found = real_round(PAIR_CHECK, {"a": "127.0.0.1", "b": "127.0.0.9"}, meet_s=0.5)["a"]
    assert found.status is AuditStatus.UNKNOWN
    assert "b at 127.0.0.9" in found.text
    assert found.took_s < CHECKS[PAIR_CHECK].limit_s


def test_a_key_that_cannot_be_read_is_unknown() -> None:
    order = replace(recorded.ROUND, settings=TrafficSettings(key_file="/nonexistent", meet_s=0.5))
    found = run_check(CHECKS[PAIR_CHECK], LiveHost(find_round=lambda: order))
    assert found.status is AuditStatus.UNKNOWN
    assert "key_file /nonexistent" in found.text


@pytest.fixture
def namespaces() -> Iterator[dict[str, str]]:
    """Two namespaces with a cable between them, as two hosts: name to address."""
    from pyroute2 import NetNS

    addresses = {f"ft-load-{os.getpid()}-{end}": f"10.9.1.{at}" for at, end in enumerate("ab", 1)}
    here, there = addresses
    with named_namespaces(*addresses):
        with NetNS(here) as a, NetNS(there) as b:
            a.link("add", ifname="ft0", kind="veth", peer={"ifname": "ft0", "net_ns_fd": there})
            for ip, address in zip((a, b), addresses.values(), strict=True):
                index = ip.link_lookup(ifname="ft0")[0]
                ip.link("set", index=index, state="up")
                ip.addr("add", index=index, address=address, prefixlen=24)
        yield addresses


def test_hosts_in_namespaces_exchange_load_with_the_probe_key(
    namespaces: dict[str, str], tmp_path: Path
) -> None:
    key = tmp_path / "probe.key"
    key.write_text("00" * 16)
    key.chmod(0o600)
    settings = TrafficSettings(seconds=0.5, rate_mbps=80, meet_s=10, key_file=key)
    nics = {host: (RoundNic(0, "ft0", address),) for host, address in namespaces.items()}
    results: dict[str, Result] = {}

    def one(name: str) -> None:
        order = TrafficRound("r1", name, tuple(namespaces), nics, settings)
        host = LiveHost(netns=f"/run/netns/{name}", nics=("ft0",), find_round=lambda: order)
        results[name] = run_check(CHECKS[PAIR_CHECK], host)

    threads = [threading.Thread(target=one, args=(name,)) for name in namespaces]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for result in results.values():
        assert result.status is AuditStatus.PASSED, result.text
        assert "error counters unchanged under load" in result.findings[-1].text
        assert not result.findings[-1].text.startswith("0 ")
    facts = {
        each.fact.name: each.fact.number for each in results[next(iter(namespaces))].findings if each.fact
    }
    assert facts["send_gbps"] > 0
