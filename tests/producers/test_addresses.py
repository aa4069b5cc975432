"""Addresses of NICs that are not on this host: reported once, waited for, and ended."""

import pytest

from producers import addresses
from producers.addresses import AddressWatch, address_problem, wait_for_address
from producers.settings import NicSettings, ProbeSettings
from schemas.stop_request import StopRequest

HERE = NicSettings(host="h1", device="eth1", address="127.0.0.1")
AWAY = NicSettings(host="h1", device="eth3", address="203.0.113.99")
PROBLEM = "h1/eth3: address 203.0.113.99 is not on this host"


def test_a_missing_address_is_named_with_its_nic():
    assert address_problem(HERE) is None
    assert address_problem(AWAY) == PROBLEM


def test_a_missing_namespace_is_named():
    gone = AWAY.model_copy(update={"netns": "/run/netns/gone"})
    (problem,) = AddressWatch([gone], lambda line: None).check().values()
    assert "h1/eth3" in problem
    assert "/run/netns/gone" in problem


def test_only_changes_are_reported(monkeypatch):
    lines = []
    watch = AddressWatch([HERE, AWAY], lines.append)
    assert watch.check() == watch.check() == {"h1/eth3": PROBLEM}
    monkeypatch.setattr(addresses, "address_problem", lambda nic: None)
    assert watch.check() == {}
    assert lines == [f"X_FAULT={PROBLEM}", "X_FAULT="]


@pytest.mark.parametrize("returns", [True, False])
def test_a_prober_is_ready_while_it_waits(monkeypatch, returns):
    monkeypatch.setattr(addresses, "CHECK_S", 0.001)
    lines, stop = [], StopRequest()

    def after_a_while() -> None:
        if len(missing) < 3:
            missing.append(1)
        elif returns:
            monkeypatch.setattr(addresses, "address_problem", lambda nic: None)
        else:
            stop.set()

    missing = []
    assert wait_for_address(AddressWatch([AWAY], lines.append), lines.append, stop, after_a_while) is returns
    assert lines[:2] == [f"X_FAULT={PROBLEM}", "READY=1"]
    assert (lines[2:] == ["X_FAULT="]) is returns


def test_an_address_in_gid_notation_is_the_ipv4_address():
    nic = NicSettings(host="h1", device="eth1", address="::ffff:10.0.0.1")
    assert nic.address == "10.0.0.1"


@pytest.mark.parametrize("ports", [{"udp_port": 4791}, {"udp_port": 9, "first_path_port": 4790}])
def test_the_port_of_roce_is_refused_for_probes(ports):
    with pytest.raises(ValueError, match="4791, whose packets RDMA NICs keep"):
        ProbeSettings(key_file="key", **ports)
