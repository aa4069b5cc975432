"""The device that packets leave by: which is the NIC's own. Real packets: tests/fabric/test_multi_nic.py."""

from __future__ import annotations

import pytest

from producers.egress import EgressCheck, foreign_egress
from producers.interfaces import Interface

ALL = (
    Interface("lo", 1),
    Interface("eth0", 2),
    Interface("eth1", 3),
    Interface("m0", 4, master=6),
    Interface("m1", 5, master=6),
    Interface("bond0", 6, "bond"),
    Interface("eth1.100", 7, "vlan", lower=3),
)


@pytest.mark.parametrize(
    ("device", "index", "expected"),
    [
        ("eth1", 3, None),
        ("eth1", 2, "eth0"),
        ("m0", 6, None),
        ("bond0", 5, None),
        ("eth1", 7, None),
        ("eth1.100", 2, "eth0"),
        ("eth1", 1, None),
        ("eth1", 99, None),
        ("mlx5_0", 2, None),
    ],
)
def test_another_nics_device_is_named(device, index, expected):
    assert foreign_egress(device, index, ALL) == expected


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_packets_to_oneself_leave_by_the_loopback_interface(address):
    check = EgressCheck(address, None, None)
    check.send(address)
    assert check.device_index() == 1
    assert check.device_index() is None
    check.close()
