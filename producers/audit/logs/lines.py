"""Lines of the kernel log: their time, the device that they concern, and their text.

Drivers print `driver device [name]: text` (dev_printk, netdev_printk, ibdev_printk). A colon ends the prefix
only before a blank, as addresses of PCI devices contain colons. Other lines begin with one token, such as
`eth0:`. NVIDIA's driver prints the address within the text: `NVRM: Xid (PCI:0000:19:00): 79, ...`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from producers.audit.base import MAX_LINE

UNDATED_S: Final = 0.0
"""Time of a line without a time."""
_STAMP: Final = re.compile(r"\[\s*(\d+\.\d+)\] ?(?:\[\s*[TC]\d+\] ?)?(.*)")
_PREFIX: Final = re.compile(
    r"(\S+?)(?: (\S+?)(?: (?:\(unnamed net_device\)|(\S+?))(?: \(\w+\))?)?)?:(?= |$) ?(.*)"
)
_DRM: Final = re.compile(r"\[drm(?::\w+)?(?: \[(\w+)\])?\] ?(.*)")
_NVIDIA: Final = re.compile(
    r"(NVRM|nvidia-nvswitch\d*): "
    r"(?:(S?Xid) \((?:PCI:)?([0-9a-fA-F:.]+)\): |GPU (?=\S*:)([0-9a-fA-F:.]+): )(.*)"
)
_ADDRESS: Final = re.compile(r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?")
_PCI_FOUND: Final = re.compile(r"\[[0-9a-f]{4}:[0-9a-f]{4}\] type ")
"""Text of the line that the kernel prints when it finds a device on PCIe (drivers/pci/probe.c)."""


class Line(NamedTuple):
    """A line of the kernel log.

    `at_s`: seconds since boot. `driver`: its first token. `device`: PCI address or other bus name, empty if
    it names none. `name`: network or RDMA interface. `text`: the text after the prefix. `line`: all of it.
    """

    at_s: float
    driver: str
    device: str
    name: str
    text: str
    line: str

    @property
    def subject(self) -> str:
        """Return the interface that the line concerns, else the device, else the driver."""
        return self.name or self.device or self.driver

    @property
    def finds_device(self) -> bool:
        """Return whether the kernel found the device on PCIe: it is new, or back again."""
        return self.driver == "pci" and _PCI_FOUND.match(self.text) is not None


def parse_line(line: str) -> Line:
    """Return a line, with or without a time, split into its parts."""
    stamp = _STAMP.match(line[:MAX_LINE])
    at_s, line = (float(stamp[1]), stamp[2].strip()) if stamp else (UNDATED_S, line[:MAX_LINE].strip())
    drm = _DRM.match(line)
    if drm:
        return Line(at_s, drm[1] or "drm", "", "", drm[2], line)
    nvidia = _NVIDIA.match(line)
    if nvidia:
        driver, kind, address, named, text = nvidia.groups(default="")
        return Line(at_s, driver, address or named, "", f"{kind} {text}".strip(), line)
    prefix = _PREFIX.match(line)
    if not prefix:
        return Line(at_s, "", "", "", line, line)
    driver, device, name, text = prefix.groups(default="")
    return Line(at_s, driver, device, name, text, line)


def read_lines(log: str) -> Iterator[Line]:
    """Yield the lines of a kernel log, with or without times. Lines of blanks are left out.

    Only the first line of a message has a time; its further lines get the same time.
    """
    at_s = UNDATED_S
    for text in log.splitlines():
        if text.strip():
            line = parse_line(text)
            at_s = line.at_s or at_s
            yield line if line.at_s else line._replace(at_s=at_s)


def slot_of(device: str) -> str:
    """Return a PCI address without its function; other names unchanged."""
    match = _ADDRESS.fullmatch(device)
    return match[1] if match else device
