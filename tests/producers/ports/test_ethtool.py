"""The ioctl of ethtool on real devices of this machine."""

from __future__ import annotations

import socket

import pytest

from producers.ports.ethtool import link_settings, stat_count, stat_names, stat_values, time_stamps


def test_a_device_without_a_driver_refuses() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        assert stat_count(opened, "lo") == 0
        with pytest.raises(OSError, match="not supported"):
            link_settings(opened, "lo")
        for read in (link_settings, stat_count):
            with pytest.raises(OSError, match="No such device"):
                read(opened, "none0")


def test_every_counter_has_a_name_and_a_value() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        for _, device in socket.if_nameindex():
            count = stat_count(opened, device)
            if not count:
                continue
            names = stat_names(opened, device, count)
            assert len(names) == len(stat_values(opened, device, count)) == count
            assert all(names)


def test_the_kernel_stamps_packets_of_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        assert time_stamps(opened, "lo") == (False, True, None)
        with pytest.raises(OSError, match="No such device"):
            time_stamps(opened, "none0")
