"""XIDs of NVIDIA GPUs and SXids of NVSwitches: their meaning, and whether they are faults of the host.

The catalogue is the table `kernel_lines/xids.toml`. XIDs with the action CHECK_APP are a program's fault,
however many there are: NVIDIA's catalogue has CHECK_APP/CUDA, WORKFLOW_XID_13 or WORKFLOW_XID_31, or the
GPU stays healthy (43, 45).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from producers.audit.logs.lines import Line, slot_of
from producers.audit.logs.rules import FOLDER, Found, Rule
from schemas.settings_file import read_tables

ACTIONS: Final[Mapping[str, tuple[str, bool]]] = {
    "RESET_GPU": ("reset the GPU", True),
    "RESTART_BM": ("reboot the host", True),
    "RESTART_VM": ("restart the virtual machine", True),
    "CHECK_MECHANICALS": ("check seating and power cables", True),
    "RESTART_APP": ("restart the application; contact support if it repeats", True),
    "CHECK_APP": ("check the application", False),
    "UPDATE_SWFW": ("update or configure driver and firmware", False),
    "CONTACT_SUPPORT": ("contact support", False),
    "IGNORE": ("none", False),
}
"""Meanings of NVIDIA's names of actions, and whether the XID is a fault of the host."""
REPEATS: Final = (5, 24.0)
"""(Count, hours): so many events of an XID after which a program is restarted are a fault (NVSentinel)."""
CHECK: Final = "kernel-log.xid"
_XID: Final = re.compile(r"Xid (\d+)\b,? ?(.*)")
_SXID: Final = re.compile(r"SXid (\d+), (Fatal|Non-fatal)\b", re.IGNORECASE)
_NVLINK: Final = re.compile(
    r"(\S+)\s+(Fatal|Nonfatal)\s+XC\d\s+i\d+\s+Link\s+-?\d+(?:\s+\((0x[0-9a-fA-F]+))?"
)
_RECOVERY: Final = re.compile(r"recovery action changed from \S+ \([^)]*\) to \S+ \((?P<action>[^)]*)\)")
_REGISTERS: Final = re.compile(r"\((0x[0-9a-fA-F]+(?:, ?0x[0-9a-fA-F]+)*)\)")
_LOST: Final = re.compile(r"fallen off the bus")
_NAMED: Final = re.compile(r"The NVIDIA GPU ([0-9a-fA-F:.]+)")
_NO_ACTION: Final = re.compile(r"^Xid 154\b.* to 0x0 \(None\)")
_STARTED: Final = re.compile(r"^NVRM: loading NVIDIA UNIX")
"""The driver prints it when it is loaded: it resets all GPUs. A GPU that left the bus stays away."""
_PROMOTED: Final = (1 << 10, 1 << 7)
"""Bit of the first number that marks a nonfatal error for a reset: before R575, and from R575 on."""
LOST: Final = 79
RXPIPE: Final = "RLW_RXPIPE"


@dataclass(frozen=True, slots=True)
class Xid:
    """A row of the catalogue for one number."""

    number: int
    text: str
    action: str
    source: str = "NVIDIA's Xid catalogue"
    ignored_bits: tuple[int, ...] = ()


@cache
def catalogue() -> Mapping[int, Xid]:
    """Return the XIDs by number. Raises BadFile."""
    rows = read_tables(FOLDER / "xids.toml")["xid"]
    return {number: _xid(row, number) for row in rows for number in row["numbers"]}


def _xid(row: Mapping[str, Any], number: int) -> Xid:
    values = {key: value for key, value in row.items() if key != "numbers"}
    return Xid(number, **{**values, "ignored_bits": tuple(row.get("ignored_bits", ()))})


@cache
def _texts(table: str, key: str) -> Mapping[int, str]:
    return {number: row["text"] for row in read_tables(FOLDER / "xids.toml")[table] for number in row[key]}


def _rule(text: str, action: str, source: str) -> Rule:
    is_counted, is_lost = action == "RESTART_APP", action == "RESTART_BM"
    return Rule(
        pattern=_XID,
        text=text,
        source=source,
        check=CHECK,
        ends=_NO_ACTION,
        ends_all=None if is_lost else _STARTED,
        events=REPEATS[0] if is_counted else 1,
        hours=REPEATS[1] if is_counted else 0.0,
        is_fault=ACTIONS[action][1],
    )


def _found(xid: Xid, device: str, text: str, action: str, advice: str = "") -> Found:
    """Return the meaning of an XID: its text, and the action in words."""
    line = f"XID {xid.number}, {text}; action: {advice or ACTIONS[action][0]}"
    return Found(_rule(line, action, xid.source), f"GPU {slot_of(device)}", line)


class XidFinder:
    """Finds XIDs in the lines of a log, also where the driver only prints that a GPU fell off the bus."""

    def __init__(self) -> None:
        self._named = ""

    def find(self, line: Line) -> Found | None:
        """Return the meaning of a line of NVIDIA's driver, or None."""
        if line.driver != "NVRM":
            return None
        if named := _NAMED.match(line.text):
            self._named = named[1]
        if match := _XID.match(line.text):
            number = int(match[1])
            xid = catalogue().get(number, Xid(number, "not in the catalogue", "CONTACT_SUPPORT", ""))
            return _evaluate(xid, line.device, match[2])
        device = line.device or self._named
        if device and _LOST.search(line.text):
            return _evaluate(catalogue()[LOST], device, line.text)
        return None


def _evaluate(xid: Xid, device: str, text: str) -> Found:
    if xid.action == "NVLINK":
        return _nvlink(xid, device, text)
    if xid.action == "STATED":
        recovery = _RECOVERY.search(text)
        action = recovery["action"] if recovery else "not stated"
        is_none = action in ("None", "not stated")
        return _found(xid, device, xid.text, "IGNORE" if is_none else "RESET_GPU", action)
    if xid.ignored_bits and _is_ignored(text, xid.ignored_bits):
        return _found(xid, device, f"{xid.text} that can be ignored", "IGNORE")
    return _found(xid, device, xid.text, xid.action)


def _is_ignored(text: str, ignored_bits: tuple[int, ...]) -> bool:
    """Return whether the registers in the text have bits set, all of which can be ignored."""
    match = _REGISTERS.search(text)
    registers = [int(part, 16) for part in match[1].split(",")] if match else []
    if not any(registers):
        return False
    return all(not value & ~ignored for value, ignored in zip(registers, ignored_bits, strict=False))


def _nvlink(xid: Xid, device: str, text: str) -> Found:
    """Return the meaning of an NVLink 5 error line: a fatal error needs a GPU reset, other errors do not."""
    match = _NVLINK.search(text)
    if match is None:
        unlisted = Xid(xid.number, xid.text, xid.action, source="")
        return _found(unlisted, device, f"{xid.text} of unknown form", "CONTACT_SUPPORT")
    unit, severity, number = match[1], match[2].lower(), int(match[3] or "0", 16)
    label = f"{severity} {xid.text} ({unit})"
    if severity == "fatal":
        reason = _texts("nvlink_down", "reasons").get(number >> 20 & 0x3F, "") if "LINK" in unit else ""
        return _found(xid, device, f"{label}: {reason}" if reason else label, "RESET_GPU")
    if unit == RXPIPE and _is_promoted(number):
        return _found(xid, device, label, "RESET_GPU")
    return _found(xid, device, label, "IGNORE")


def _is_promoted(number: int) -> bool:
    """Return whether a nonfatal error of the receive pipe is marked for a reset."""
    is_old = number & 0x1F == 0b00010 and number >> 5 & 0x1F == 0b00110
    return bool(number & _PROMOTED[0 if is_old else 1])


def find_sxid(line: Line) -> Found | None:
    """Return the meaning of a line of an NVSwitch, or None. Lines of raw data are left out."""
    match = _SXID.match(line.text) if line.driver.startswith("nvidia-nvswitch") else None
    if match is None:
        return None
    is_fatal = match[2].lower() == "fatal"
    text = _texts("sxid", "numbers").get(int(match[1]), "not in the catalogue")
    line_text = f"SXid {match[1]}, {match[2].lower()}, {text}"
    return Found(_switch_rule(line_text, is_fatal), f"NVSwitch {line.device}", line_text)


def _switch_rule(text: str, is_fatal: bool) -> Rule:
    source = "NVIDIA, Fabric Manager User Guide"
    return Rule(_SXID, text, source, "kernel-log.sxid", ends_all=_STARTED, is_fault=is_fatal)
