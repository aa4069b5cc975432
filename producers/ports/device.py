"""Watches a NIC's port: carrier, speed and error counters.

The sources are netlink, `ethtool -S` and the RDMA ports in sysfs.
"""

from __future__ import annotations

import errno
import logging
import re
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from native.core.probe import link_of
from producers import netlink
from producers.netns import in_netns
from producers.ports.ethtool import stat_count, stat_names, stat_values

_log = logging.getLogger(__name__)

_RTM_NEWLINK: Final = 16
_RTM_DELLINK: Final = 17
_RTM_GETLINK: Final = 18
_RTMGRP_LINK: Final = 1
_IFLA_IFNAME: Final = 3
_IFLA_STATS64: Final = 23
_IFLA_CARRIER_CHANGES: Final = 35
_IFLA_CARRIER_UP_COUNT: Final = 47
_IFLA_CARRIER_DOWN_COUNT: Final = 48
_IFF_UP: Final = 1
_IFF_LOWER_UP: Final = 0x10000
_IFINFO: Final = struct.Struct("=BxHiII")
_TIMEOUT_S: Final = 2.0
_STATS64: Final = (
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
    "rx_length_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
)
_COUNTS: Final = {
    _IFLA_CARRIER_CHANGES: "carrier_changes",
    _IFLA_CARRIER_UP_COUNT: "carrier_up_count",
    _IFLA_CARRIER_DOWN_COUNT: "carrier_down_count",
}

LINK_COUNTERS: Final = (
    (r"carrier_(changes|up_count|down_count)", "carrier of the port, by the kernel"),
    (
        r"link_down|link_error_recovery|phy_state_change|module_",
        "carrier of the port, by the device; its optics",
    ),
    (r"crc|fcs|symbol|corrected_bits|(?:^|_)fec(?:_|$)", "bits corrupted by the cable or its optics"),
    (r"(?:^|_)err|errors?(?:_|$)|fault|malformed|bad_|integrity", "packets refused as damaged"),
    (
        r"discard|drop|missed|fifo|overrun|ovflow|out_of_buffer|no_buf|no_dma|xmit_wait|pci_stalled",
        "packets dropped, no buffer",
    ),
    (
        r"timeout|retry|retrans|retx|out_of_sequence|rnr_nak|seq_err|adp_retrans",
        "RDMA retransmissions and repairs",
    ),
    (r"allowance_exceeded", "packets that a cloud's limits queued or dropped"),
    (r"pause|pfc|_ppp\d|_xoff|_xon|congest|(?:^|_)cnp|ecn", "flow control and congestion signals"),
)
"""Counters that show a link's health: patterns of their names, and the events they count."""

_INTERESTING: Final = re.compile("|".join(f"(?:{pattern})" for pattern, _ in LINK_COUNTERS), re.IGNORECASE)
_PER_QUEUE: Final = re.compile(r"^(?:rx|tx|ch)_?\d+_|queue_?\d+|\[\d+\]|xdp|ktls|tls_|ipsec", re.IGNORECASE)


@lru_cache(maxsize=4096)
def is_link_counter(name: str) -> bool:
    """Return whether the counter `name` shows the health of a link and covers the whole port."""
    return bool(_INTERESTING.search(name)) and not _PER_QUEUE.search(name)


class NetlinkLink(NamedTuple):
    """The content of one netlink message about a device: its carrier, and its counters by name."""

    device: str
    number: int
    is_removed: bool
    carrier: bool
    counters: dict[str, int]
    is_enabled: bool = True
    """Whether the administrator has the device up."""


def parse_links(data: bytes) -> Iterator[NetlinkLink]:
    """Yield the devices in a netlink datagram. Raises OSError for an error message, ValueError if cut."""
    for kind, _, body in netlink.messages(data):
        if kind == netlink.ERROR:
            netlink.raise_error(body)
        elif kind in (_RTM_NEWLINK, _RTM_DELLINK):
            yield _parse_link(body, kind == _RTM_DELLINK)


def _parse_link(body: bytes, is_removed: bool) -> NetlinkLink:
    if len(body) < _IFINFO.size:
        raise ValueError(f"netlink: link of {len(body)} bytes, expected {_IFINFO.size}")
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    device, counters = "", {}
    for kind, value in netlink.attributes(body, _IFINFO.size):
        if kind == _IFLA_IFNAME:
            device = value.rstrip(b"\0").decode(errors="replace")
        elif kind in _COUNTS and len(value) == 4:
            counters[_COUNTS[kind]] = struct.unpack("=I", value)[0]
        elif kind == _IFLA_STATS64:
            count = min(len(value) // 8, len(_STATS64))
            counters |= zip(_STATS64, struct.unpack_from(f"={count}Q", value), strict=False)
    has_carrier = bool(flags & _IFF_LOWER_UP) and not is_removed
    return NetlinkLink(device, index, is_removed, has_carrier, counters, bool(flags & _IFF_UP))


def _of_name(device: str) -> bytes:
    """Return the body of a netlink request for the device named `device`."""
    return bytes(_IFINFO.size) + netlink.attribute(_IFLA_IFNAME, device.encode() + b"\0")


class PortChange(NamedTuple):
    """A change of the port's carrier, speed or both; None for the value that did not change."""

    carrier: bool | None
    speed_bps: int | None
    is_enabled: bool = True
    """False if the administrator took the port down, which then has no carrier."""


class PortWatch:
    """Watches a device's carrier and speed. `fileno` becomes readable after a change; `read` never blocks."""

    def __init__(self, device: str, netns: str | None) -> None:
        """Open the netlink and ethtool sockets. Raises OSError if the kernel refuses."""
        self._device = self._name = device
        self._socket, self._ioctl_socket = in_netns(
            netns,
            lambda: (
                netlink.open_netlink(groups=_RTMGRP_LINK),
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            ),
        )
        self._socket.setblocking(False)
        self._number: int | None = None
        self._carrier: bool | None = None
        self._speed_bps: int | None = None
        self.known = True
        """False if the kernel has no network device of this name, for example if it is an RDMA device."""
        self._request()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable after a change of carrier or speed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the netlink and ethtool sockets."""
        self._socket.close()
        self._ioctl_socket.close()

    def read(self) -> list[PortChange]:
        """Return the changes of carrier and speed since the last call, or the state at the first call."""
        changes: list[PortChange] = []
        while True:
            try:
                data = self._socket.recv(netlink.RECEIVE_BYTES)
            except BlockingIOError:
                return changes
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._request()  # messages were lost, so read the present state
                continue
            try:
                states = list(parse_links(data))
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
                changes += self._gone()
                continue
            for state in states:
                change = self._change(state)
                if change is not None:
                    changes.append(change)

    def _request(self) -> None:
        self._socket.send(netlink.request(_RTM_GETLINK, _of_name(self._device)))

    def _gone(self) -> list[PortChange]:
        """Record that no device has this name now; return the loss of carrier if the device had a carrier."""
        self.known = self._number is not None and self._name != self._device
        if self.known or not self._carrier:  # it runs under another name, or was down already
            return []
        self._number, self._carrier = None, False
        return [PortChange(False, None)]

    def _change(self, state: NetlinkLink) -> PortChange | None:
        """Return the port's change that a message shows, if any; follow a renamed device by its index."""
        is_same = state.number == self._number
        if not is_same and (state.device != self._device or state.is_removed):
            return None
        self.known = True
        self._number, self._name = (None, self._device) if state.is_removed else (state.number, state.device)
        carrier = state.carrier if state.carrier != self._carrier else None
        self._carrier = state.carrier
        speed = link_of(self._ioctl_socket, self._name).speed_bps if state.carrier else None
        speed = speed if speed not in (None, self._speed_bps) else None
        self._speed_bps = speed or self._speed_bps
        if carrier is None and speed is None:
            return None
        return PortChange(carrier, speed, state.is_enabled or state.is_removed)


class PortCounters:
    """Reads a device's counters that show a link's health. A reading takes milliseconds with some drivers."""

    def __init__(self, device: str, netns: str | None, sysfs: Path = Path("/sys")) -> None:
        """Open the sockets that read the counters. Raises OSError if the kernel refuses."""
        self._device = device
        self._netlink, self._ioctl_socket = in_netns(
            netns,
            lambda: (
                netlink.open_netlink(timeout_s=_TIMEOUT_S),
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            ),
        )
        self._names: list[str] = []
        ports = rdma_ports(device, sysfs, netns is None)
        self._sources: list[Callable[[], Mapping[str, int]]] = [self._of_link, self._of_ethtool]
        self._sources += [partial(_of_port, port) for port in ports]
        self._last: dict[str, int] = {}
        self._failed: set[str] = set()

    def close(self) -> None:
        """Close the sockets that read the counters."""
        self._netlink.close()
        self._ioctl_socket.close()

    def read(self) -> dict[str, int]:
        """Return, by name, the present values of the counters that show the link's health."""
        counters: dict[str, int] = {}
        for source in self._sources:
            try:
                values = source()
            except (OSError, ValueError) as error:
                if str(error) not in self._failed:
                    self._failed.add(str(error))
                    _log.warning("counters of %s: %s", self._device, error)
                continue
            counters |= {name: value for name, value in values.items() if is_link_counter(name)}
        return counters

    def growth(self) -> dict[str, tuple[int, int]]:
        """Return, by name, (increase, present value) of each counter that grew since the last call."""
        now = self.read()
        growth = {
            name: (value - self._last[name], value)
            for name, value in now.items()
            if value > self._last.get(name, value)
        }
        self._last |= now
        return growth

    def _of_link(self) -> Mapping[str, int]:
        try:
            body = netlink.ask(self._netlink, _RTM_GETLINK, _of_name(self._device))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return {}
        return _parse_link(body, is_removed=False).counters

    def _of_ethtool(self) -> Mapping[str, int]:
        """Return, by name, the driver's counters as in `ethtool -S`; empty if the device has none."""
        try:
            count = stat_count(self._ioctl_socket, self._device)
            if count != len(self._names):
                self._names = stat_names(self._ioctl_socket, self._device, count)
            values = stat_values(self._ioctl_socket, self._device, count) if count else ()
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.EPERM):
                return {}
            raise
        return dict(zip(self._names, values, strict=False))


def rdma_ports(device: str, sysfs: Path, by_netdev: bool = True) -> list[Path]:
    """Return the sysfs directories of the RDMA ports of a device.

    A port belongs to `device` if `device` is its RDMA device or, with `by_netdev`, its network device.
    """
    ports = []
    for port in sorted(sysfs.glob("class/infiniband/*/ports/*")):
        netdevs = {path.name for path in port.parent.parent.glob("device/net/*")}
        for path in port.glob("gid_attrs/ndevs/*"):
            try:
                netdevs.add(path.read_text(encoding="ascii", errors="replace").strip())
            except OSError:
                continue  # an unused entry of the table
        if port.parent.parent.name == device or (by_netdev and device in netdevs):
            ports.append(port)
    return ports


def _of_port(port: Path) -> Mapping[str, int]:
    """Return the counters of an RDMA port by name, with the prefix `rdma:`."""
    counters = {}
    for path in (*port.glob("counters/*"), *port.glob("hw_counters/*")):
        if not is_link_counter(path.name):
            continue
        try:
            text = path.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT, errno.EACCES):
                continue  # a counter that this device does not have
            raise
        if text.isdecimal():
            counters[f"rdma:{path.name}"] = int(text)
    return counters
