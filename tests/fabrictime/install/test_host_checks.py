"""Checks of a host for its agent, on recorded hosts and on this machine's sockets."""

import socket

import pytest

from fabrictime.install.host_checks import CAPABILITIES, host_outcomes
from fabrictime.install.outcome import Level
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.settings import FlowSettings, NicSettings, ProbeSettings


@pytest.fixture
def host():
    recorded = HEALTHY.copy()
    recorded.files |= {
        "/proc/self/status": "Name:\tx\nCapEff:\t000001ffffffffff\n",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    }
    return recorded


@pytest.fixture
def flows(tmp_path):
    return FlowSettings(socket=tmp_path / "flows.sock")


def loopback(address="127.0.0.1", device="lo"):
    return NicSettings(host="n1", device=device, address=address)


def run(host, nics, flows, port=0):
    outcomes = list(host_outcomes(host, nics, ProbeSettings(udp_port=port, key_file="key"), flows))
    return {outcome.check: outcome for outcome in outcomes}


def test_a_healthy_host_has_no_fault(host, flows):
    outcomes = run(host, [loopback()], flows)
    assert [outcome for outcome in outcomes.values() if outcome.level is Level.FAILED] == []
    assert outcomes["kernel"].text == "Linux 6.8.0-45-generic"
    assert outcomes["n1/lo socket"].level is Level.OK
    assert outcomes["n1/lo time stamps"].text == "by the kernel: the NIC does not stamp every packet"
    assert all(outcome.fix for outcome in outcomes.values() if outcome.level is Level.WARNING)


def test_an_old_kernel_and_missing_capabilities_have_a_fix(host, flows):
    host.files["/proc/sys/kernel/osrelease"] = "4.18.0-553.el8\n"
    host.files["/proc/self/status"] = "CapEff:\t0000000000000000\n"
    outcomes = run(host, [], flows)
    assert outcomes["kernel"].level is Level.FAILED
    assert outcomes["kernel"].text == "Linux 4.18.0-553.el8, expected 5.7 or later"
    for name in CAPABILITIES:
        assert outcomes[name].level is Level.WARNING
        assert name in outcomes[name].fix


def test_a_port_range_that_meets_the_flows_ports_names_the_sysctl(host, flows):
    host.files["/proc/sys/net/ipv4/ip_local_port_range"] = "1024\t65000\n"
    outcome = run(host, [], flows)["port-range"]
    assert outcome.level is Level.WARNING
    assert outcome.fix == "sysctl -w net.ipv4.ip_local_port_range='1024 60999'"


def test_a_wrong_address_and_a_missing_device_differ(host, flows):
    outcomes = run(host, [loopback("192.0.2.77")], flows)
    assert outcomes["n1/lo socket"].text == "this host has no address 192.0.2.77"
    assert "ip address show dev lo" in outcomes["n1/lo socket"].fix
    outcomes = run(host, [loopback("fe80::1", "none0")], flows)
    assert outcomes["n1/none0 socket"].level is Level.FAILED


def test_the_port_of_a_running_agent_is_no_fault(host, flows):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        outcomes = run(host, [loopback()], flows, other.getsockname()[1])
    assert outcomes["n1/lo socket"].level is Level.OK
    assert "in use" in outcomes["n1/lo socket"].text


def test_the_audit_checks_of_the_clock_come_with_their_remedy(host, flows):
    host.status = 0x40  # STA_UNSYNC
    for command in [command for command in host.commands if command[0] == "chronyc"]:
        del host.commands[command]
    outcome = run(host, [], flows)["node.clock-synchronised"]
    assert outcome.area == "clock"
    assert outcome.level is not Level.OK
    assert outcome.fix == "Start chronyd or ptp4l, and check its servers"
