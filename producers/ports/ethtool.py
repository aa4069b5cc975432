"""Queries a network device with the ethtool ioctl: the driver's counters, and the link's settings.

Structures and numbers are those of linux/ethtool.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from typing import Any, Final, NamedTuple

_SIOCETHTOOL: Final = 0x8946
_GSTRINGS: Final = 0x1B
_GSTATS: Final = 0x1D
_GSSET_INFO: Final = 0x37
_GLINKSETTINGS: Final = 0x4C
_GET_TS_INFO: Final = 0x41
_SS_STATS: Final = 1
_GSTRING_LEN: Final = 32
_MAX_STATS: Final = 65_536
_SETTINGS: Final = struct.Struct("=IIBBBBBBBb4x28x")
_MAX_MASK_UNITS: Final = 127
_UNKNOWN_SPEED: Final = (0, 0xFFFFFFFF)
_TS_INFO: Final = struct.Struct("=IIiI12xI12x")
_HARDWARE_STAMPS: Final = 0x45
_SOFTWARE_STAMPS: Final = 0x1A
"""SOF_TIMESTAMPING_TX, _RX and the reported stamp, of hardware and of software (linux/net_tstamp.h)."""
_STAMPS_ALL: Final = 1 << 1
"""Bit of HWTSTAMP_FILTER_ALL: every received packet gets a stamp."""
_DUPLEX: Final = {0: "half", 1: "full"}
_BPS_PER_MBPS: Final = 1_000_000


class LinkSettings(NamedTuple):
    """Speed, duplex and autonegotiation of a link. A value is None if the driver does not report it."""

    speed_bps: int | None
    duplex: str | None
    autonegotiation: bool


class TimeStamps(NamedTuple):
    """The timestamps that a driver supports. `clock`: N of /dev/ptpN; None without a hardware clock."""

    hardware: bool
    """Whether the NIC stamps every packet that it sends or receives."""
    software: bool
    """Whether the kernel stamps packets in both directions."""
    clock: int | None


def stat_count(opened: socket.socket, device: str) -> int:
    """Return the number of counters that the driver has. Raises OSError."""
    request = struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0)
    mask, count = struct.unpack_from("=QI", _ask(opened, device, request), 8)
    return min(int(count), _MAX_STATS) if mask else 0


def stat_names(opened: socket.socket, device: str, count: int) -> list[str]:
    """Return the names of the driver's `count` counters. Raises OSError."""
    head = struct.pack("=III", _GSTRINGS, _SS_STATS, count)
    raw = _ask(opened, device, head, _GSTRING_LEN * count)[len(head) :]
    pieces = (raw[i : i + _GSTRING_LEN] for i in range(0, len(raw), _GSTRING_LEN))
    return [piece.split(b"\0")[0].decode(errors="replace").strip() for piece in pieces]


def stat_values(opened: socket.socket, device: str, count: int) -> tuple[int, ...]:
    """Return the values of the driver's counters, in the order of their names. Raises OSError."""
    raw = _ask(opened, device, struct.pack("=II", _GSTATS, count), 8 * count)
    return struct.unpack_from(f"={count}Q", raw, 8)


def link_settings(opened: socket.socket, device: str) -> LinkSettings:
    """Return speed, duplex and autonegotiation of the link. Raises OSError.

    The kernel answers a first request with the length of its link mode masks in 32-bit units, negated.
    """
    first = _ask(opened, device, _SETTINGS.pack(_GLINKSETTINGS, *[0] * 9))
    units = min(max(-_SETTINGS.unpack(first)[9], 0), _MAX_MASK_UNITS)
    request = _SETTINGS.pack(_GLINKSETTINGS, *[0] * 8, units)
    _, mbps, duplex, _, _, autonegotiation, *_ = _SETTINGS.unpack_from(
        _ask(opened, device, request, 3 * 4 * units)
    )
    speed_bps = None if mbps in _UNKNOWN_SPEED else mbps * _BPS_PER_MBPS
    return LinkSettings(speed_bps, _DUPLEX.get(duplex), bool(autonegotiation))


def time_stamps(opened: socket.socket, device: str) -> TimeStamps:
    """Return the kinds of timestamps that the device's driver supports. Raises OSError."""
    answer = _ask(opened, device, _TS_INFO.pack(_GET_TS_INFO, *[0] * 4))
    _, kinds, clock, _, filters = _TS_INFO.unpack(answer)
    is_hardware = kinds & _HARDWARE_STAMPS == _HARDWARE_STAMPS and bool(filters & _STAMPS_ALL) and clock >= 0
    is_software = kinds & _SOFTWARE_STAMPS == _SOFTWARE_STAMPS
    return TimeStamps(is_hardware, is_software, clock if clock >= 0 else None)


def _ask(opened: socket.socket, device: str, request: bytes, more: int = 0) -> bytes:
    """Return the request's buffer with `more` bytes appended, as the kernel filled it. Raises OSError."""
    buffer: ctypes.Array[Any] = ctypes.create_string_buffer(request, len(request) + more)
    head = struct.pack("16sP16x", device.encode()[:15], ctypes.addressof(buffer))
    fcntl.ioctl(opened, _SIOCETHTOOL, head)
    return bytes(buffer.raw)
