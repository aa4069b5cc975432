"""Binds sockets so that their packets leave by one network device.

A source address does not choose the device: with two NICs in one subnet, the kernel sends all packets by the
first. `IP_UNICAST_IF` restricts the route to one device and needs no privilege. It does not restrict arrival,
so the socket also receives packets for this address that arrive by another NIC.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final

_IP_UNICAST_IF: Final = 50
_IPV6_UNICAST_IF: Final = 76
_INDEX: Final = struct.Struct("!I")


def bind_to_device(sock: socket.socket, address: str, port: int, device: str | None) -> None:
    """Bind a socket to `address` and `port`, and send by `device`, a name in the thread's network namespace.

    With `device` None, the kernel's routes choose the device. Only a socket of a VRF's device can bind an
    address in that VRF; such a socket also receives by that device alone. Raises OSError if the kernel
    refuses.
    """
    if device is None:
        sock.bind((address, port))
        return
    try:
        index = socket.if_nametoindex(device)
    except OSError:  # without a number before Python 3.13
        raise OSError(errno.ENODEV, f"no network device {device}") from None
    level, option = (
        (socket.IPPROTO_IPV6, _IPV6_UNICAST_IF)
        if sock.family == socket.AF_INET6
        else (socket.IPPROTO_IP, _IP_UNICAST_IF)
    )
    sock.setsockopt(level, option, _INDEX.pack(index))
    target = (
        (address, port) if sock.family == socket.AF_INET else (address, port, 0, _scope_of(address, index))
    )
    try:
        sock.bind(target)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        except PermissionError:  # before Linux 5.7, without CAP_NET_RAW
            raise error from None
        sock.bind(target)


def _scope_of(address: str, index: int) -> int:
    """Return the scope of an IPv6 address: the device index for link-local addresses, else 0."""
    packed = socket.inet_pton(socket.AF_INET6, address)
    return index if packed[0] == 0xFE and packed[1] & 0xC0 == 0x80 else 0
