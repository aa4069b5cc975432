"""The one place where ids of NICs, links and paths are made and taken apart."""

from __future__ import annotations

import re
from functools import lru_cache


def nic_id(host: str, device: str) -> str:
    """Return `host/device`. Raises ValueError where a part is empty or holds a character that ids use."""
    return f"{_part('host', host)}/{_part('device', device)}"


def split_nic(nic: str) -> tuple[str, str]:
    """Return (host, device) of a NIC id. Raises ValueError where `nic` is no such id."""
    host, slash, device = nic.partition("/")
    if not slash:
        raise ValueError(f"NIC id {nic!r}: expected host/device")
    return _part("host", host), _part("device", device)


def clock_id(host: str, clock: str = "system") -> str:
    """Return `host/clock`: `system` for the kernel's stamps, `ptpN` for hardware."""
    return f"{_part('host', host)}/{_part('clock', clock)}"


def link_id(node: str, port: str, far_node: str, far_port: str) -> str:
    """Return the id of a directed link, `node:port>node:port`."""
    near = f"{_part('node', node)}:{_part('port', port)}"
    return f"{near}>{_part('node', far_node)}:{_part('port', far_port)}"


@lru_cache(maxsize=1 << 16)
def cable_id(link: str) -> str:
    """Return the cable that a directed link runs in: its two ends, sorted."""
    ends = link.split(">")
    if len(ends) != 2:
        raise ValueError(f"link id {link!r}: expected node:port>node:port")
    return "<>".join(sorted(ends))


def natural(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which h2 comes before h10."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text) if part
    ]


def _part(what: str, text: str) -> str:
    if not text or len(text) > 128 or any(c in "/>" or c.isspace() or not c.isprintable() for c in text):
        raise ValueError(f"{what} {text!r}: expected 1 to 128 printable characters without '/', '>' or space")
    return text
