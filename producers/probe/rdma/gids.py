"""Selects a prober's GID and spreads its packets over several paths.

RoCE v2 packets are spread by their UDP source port. Soft-RoCE derives this port from the queue pair number
and ignores flow labels on UD; mlx5 and hns derive it from the address handle's flow label. InfiniBand packets
are spread by LID path bits. Inputs: the device's ports in sysfs, vendor and queue pair numbers.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

ROCE_V2: Final = "ROCE_V2"
ROCE_V1: Final = "ROCE_V1"
INFINIBAND: Final = "INFINIBAND"

_FIRST_PORT: Final = 0xC000
_SOFT_ROCE: Final = 0xFF_FFFF
_BY_LABEL: Final = {0x02C9: "mlx5", 0x15B3: "mlx5", 0x19E5: "hns"}
"""Vendors whose drivers derive the UDP source port of UD packets from the address handle's flow label."""
_GOLDEN: Final = 0x61C8_8647


class Gid(NamedTuple):
    """One entry of an RDMA port's GID table."""

    place: int
    value: bytes
    kind: str
    netdev: str | None


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device, as described in sysfs."""

    device: str
    number: int
    active: bool
    infiniband: bool
    lid: int
    path_bits: int
    """Number of low LID bits that can be chosen freely (LMC)."""
    speed_bps: int | None
    gids: tuple[Gid, ...]


@dataclass(frozen=True)
class UdPath:
    """One path: the queue pair that sends on it, and the fields of that queue pair's address handles."""

    index: int
    number: int
    """The queue pair's number."""
    value: int
    """Entropy value: the UDP source port, or the path's index."""
    flow_label: int
    path_bits: int
    sure: bool
    """True if the driver is known to use this entropy value; otherwise the value only identifies the path."""


def read_ports(device: str, sysfs: Path = Path("/sys")) -> list[Port]:
    """Return a device's ports from sysfs; empty if the device does not exist."""
    return [_port(device, folder) for folder in _folders(device, sysfs)]


def netdevs_of(device: str, sysfs: Path = Path("/sys")) -> set[str]:
    """Return the names of the network devices above or beneath an RDMA device."""
    netdevs = {path.name for path in (sysfs / "class/infiniband" / device).glob("device/net/*")}
    for folder in _folders(device, sysfs):
        netdevs |= {gid.netdev for gid in _gids(folder, False) if gid.netdev}
    return netdevs


def choose_port(device: str, ports: Sequence[Port], number: int = 0) -> Port:
    """Return port `number`, or the first active port if `number` is 0. Raises ValueError if there is none."""
    if not ports:
        raise ValueError(f"{device}: no such RDMA device")
    for port in ports:
        if port.number == number or (number == 0 and port.active):
            return port
    if number:
        raise ValueError(
            f"{device}: no port {number}, expected one of {', '.join(str(p.number) for p in ports)}"
        )
    raise ValueError(f"{device}: no port is active")


def choose_gid(port: Port, address: str | None) -> Gid:
    """Return the GID to send from.

    On InfiniBand the result is the first GID. On RoCE it is the GID of `address`, with v2 preferred to v1;
    without an address it is any v2 GID that is not link-local. Raises ValueError if there is none.
    """
    if port.infiniband:
        if not port.gids:
            raise ValueError(f"{port.device} port {port.number}: no GID")
        return port.gids[0]
    own_gid = None if address is None else _gid_of(address)

    def rank(gid: Gid) -> tuple[bool, bool, bool, int]:
        local = gid.value[:2] == b"\xfe\x80"
        return (gid.value != own_gid, gid.kind != ROCE_V2, local, gid.place)

    if not port.gids:
        raise ValueError(f"{port.device} port {port.number}: no GID, is its network device up?")
    best = min(port.gids, key=rank)
    if own_gid is not None and best.value != own_gid:
        raise ValueError(f"{port.device} port {port.number}: no GID of address {address}")
    return best


def label_of_port(port: int) -> int:
    """Return a non-zero flow label from which the driver derives source port `port`, 49152 to 65535."""
    return port & 0x3FFF or 0x4001


def port_of_number(number: int) -> int:
    """Return Soft-RoCE's UDP source port for a queue pair: a 14-bit multiplicative hash of its number."""
    return _FIRST_PORT + (number * _GOLDEN % (1 << 32) >> 18)


def plan_paths(
    kind: str, vendor: int, numbers: Sequence[int], first_port: int, path_bits: int = 0
) -> list[UdPath]:
    """Return the path of each queue pair in `numbers`.

    If source ports can be chosen, they start at `first_port`. Two queue pair numbers of Soft-RoCE may give
    the same port; the second queue pair is left out.
    """
    paths: list[UdPath] = []
    for number in numbers:
        index = len(paths)
        if kind == INFINIBAND:
            path = UdPath(index, number, index, 0, index % (1 << path_bits), True)
        elif kind != ROCE_V2:
            path = UdPath(index, number, index, 0, 0, False)
        elif vendor == _SOFT_ROCE:
            path = UdPath(index, number, port_of_number(number), 0, 0, True)
        else:
            port = first_port + index
            path = UdPath(index, number, port, label_of_port(port), 0, vendor in _BY_LABEL)
        if path.value not in [other.value for other in paths]:
            paths.append(path)
    return paths


def target_lid(lid: int, path_bits: int, path: int) -> int:
    """Return the LID for path number `path` to an InfiniBand port with 2^path_bits LIDs; 0 if `lid` is 0."""
    return lid and lid + path % (1 << path_bits)


def _folders(device: str, sysfs: Path) -> list[Path]:
    folders = (sysfs / "class/infiniband" / device / "ports").glob("*")
    return sorted((path for path in folders if path.name.isdecimal()), key=lambda path: int(path.name))


def _port(device: str, folder: Path) -> Port:
    infiniband = _text(folder / "link_layer") == "InfiniBand"
    rate = _text(folder / "rate").split()
    speed = float(rate[0]) * 1e9 if rate and rate[0].replace(".", "", 1).isdecimal() else 0.0
    return Port(
        device=device,
        number=int(folder.name),
        active=_text(folder / "state").startswith("4"),
        infiniband=infiniband,
        lid=int(_text(folder / "lid") or "0", 0) if infiniband else 0,
        path_bits=int(_text(folder / "lid_mask_count") or "0") if infiniband else 0,
        speed_bps=int(speed) or None,
        gids=tuple(_gids(folder, infiniband)),
    )


def _gids(folder: Path, infiniband: bool) -> Iterator[Gid]:
    for path in sorted((folder / "gids").glob("*"), key=lambda path: int(path.name)):
        value = bytes.fromhex(_text(path).replace(":", ""))
        if len(value) != 16 or not any(value):
            continue
        kind = _text(folder / "gid_attrs/types" / path.name)
        if infiniband:
            name = INFINIBAND
        elif kind in ("RoCE v2", "IB/RoCE v1"):
            name = ROCE_V2 if kind == "RoCE v2" else ROCE_V1
        else:
            continue
        yield Gid(int(path.name), value, name, _text(folder / "gid_attrs/ndevs" / path.name) or None)


def _text(path: Path) -> str:
    """Return a file's text; empty if the kernel refuses to read it, as for unused GID table entries."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""


def _gid_of(address: str) -> bytes:
    parsed = ipaddress.ip_address(address)
    return parsed.packed if parsed.version == 6 else bytes(10) + b"\xff\xff" + parsed.packed
