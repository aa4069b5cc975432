"""Sockets that are bound to a device. Hosts with many NICs: tests/fabric/test_multi_nic.py."""

from __future__ import annotations

import errno
import socket

import pytest

from native.core.device_sockets import bind_to_device

IP_UNICAST_IF, IPV6_UNICAST_IF = 50, 76


@pytest.mark.parametrize("device", [None, "lo"])
@pytest.mark.parametrize(
    ("address", "level", "option"),
    [
        ("127.0.0.1", socket.IPPROTO_IP, IP_UNICAST_IF),
        ("::1", socket.IPPROTO_IPV6, IPV6_UNICAST_IF),
    ],
)
def test_packets_of_a_bound_socket_leave_by_its_device(device, address, level, option):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        bind_to_device(sock, address, 0, device)
        assert sock.getsockname()[0] == address
        assert socket.ntohl(sock.getsockopt(level, option)) == (0 if device is None else 1)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == b""


@pytest.mark.parametrize(
    ("address", "device", "code"),
    [("127.0.0.1", "away", errno.ENODEV), ("192.0.2.77", "lo", errno.EADDRNOTAVAIL)],
)
def test_a_device_or_address_that_is_not_there_is_an_error(address, device, code):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        with pytest.raises(OSError) as caught:
            bind_to_device(sock, address, 0, device)
        assert caught.value.errno == code
