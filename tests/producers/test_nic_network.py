"""A NIC's place in its host's network. Hosts with many NICs: tests/fabric/test_multi_nic.py."""

from __future__ import annotations

import pytest

from producers import nic_network
from producers.nic_network import NicNetwork, read_nic_network
from producers.settings import NicSettings


def test_a_nic_on_the_loopback_interface_is_not_bound():
    found = read_nic_network(NicSettings(host="a", device="lo", address="127.0.0.1"))
    assert (found.device, found.index, found.networks, found.own_addresses) == (None, 0, (), frozenset())
    assert "lo" in {each.name for each in found.interfaces}


@pytest.mark.parametrize("error", [OSError(1, "not permitted"), ValueError("short"), KeyError(3)])
def test_a_nic_of_an_unknown_network_is_unbound(monkeypatch, caplog, error):
    def refuse(family: int) -> None:
        raise error

    monkeypatch.setattr(nic_network, "read_network", refuse)
    assert read_nic_network(NicSettings(host="a", device="eth0", address="10.0.0.1")) == NicNetwork()
    assert "a/eth0: its network is not known" in caplog.text


def test_a_namespace_that_is_not_there_is_named():
    nic = NicSettings(host="a", device="eth0", address="10.0.0.1", netns="/run/netns/away")
    with pytest.raises(OSError, match="/run/netns/away"):
        read_nic_network(nic)
