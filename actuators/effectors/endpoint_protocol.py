"""The line protocol between actuator and flow endpoints: ASCII, one message per line, blanks between fields.

An endpoint sends

    FLOW <key> <source port> <verbs> [host]     verbs: MOVE,PACE or -
    GONE <key> [host]
    DONE <id> <source port or bit/s now in force> <how>
    FAILED <id> <text>
    TIME <ns>                                   fabric time of simulated hosts

and receives

    MOVE <id> <key> <source port> <host>
    PACE <id> <key> <bit/s> <host>              0 bit/s removes the limit
    ERROR <text>
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LINE_BYTES: Final = 512
VERBS: Final = frozenset({"MOVE", "PACE"})
HOW: Final = frozenset({"SOCKET", "UDP_SPORT", "SQD", "STANDBY", "PACING", "RATE_LIMIT", "HTB", "SIMULATED"})
_KEY: Final = re.compile(r"sock:\d{1,20}|qp:[!-9;-~]{1,128}:\d{1,10}:\d{1,20}")
_HOST: Final = re.compile(r"[^\s/>]{1,128}")
RATE_MAX_BPS: Final = 10**15
"""Upper limit of rates, bit/s: above the rate of any NIC."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow that is new or has changed. `host` is None if the actuator serves a single host."""

    key: str
    port: int
    verbs: frozenset[str]
    host: str | None


@dataclass(frozen=True, slots=True)
class Gone:
    """A flow that ended."""

    key: str
    host: str | None


@dataclass(frozen=True, slots=True)
class Done:
    """Answer to a command that an endpoint carried out."""

    number: int
    value: int
    how: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer to a command that failed at an endpoint."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Time:
    """Fabric time of simulated hosts, ns since the Unix epoch: a simulation may be slower than real time."""

    now_ns: int


def parse(line: bytes) -> Flow | Gone | Done | Failed | Time:
    """Parse a line that an endpoint sent. Raises ValueError."""
    if len(line) > LINE_BYTES:
        raise ValueError(f"a line of {len(line)} bytes, expected at most {LINE_BYTES}")
    try:
        text = line.decode("ascii").rstrip("\r")
    except UnicodeDecodeError:
        raise ValueError("a line that is not ASCII") from None
    if not text.isprintable():
        raise ValueError(f"{text!r:.80}: expected printable characters")
    verb, *rest = text.split(" ")
    if verb == "FLOW" and len(rest) in (3, 4):
        return Flow(_key(rest[0]), _whole(rest[1], 1, 65_535), _verbs(rest[2]), _host(rest[3:]))
    if verb == "GONE" and len(rest) in (1, 2):
        return Gone(_key(rest[0]), _host(rest[1:]))
    if verb == "DONE" and len(rest) == 3:
        if rest[2] not in HOW:
            raise ValueError(f"DONE: how {rest[2]!r:.40}, expected one of {', '.join(sorted(HOW))}")
        return Done(_whole(rest[0], 0, 2**63), _whole(rest[1], 0, RATE_MAX_BPS), rest[2])
    if verb == "FAILED" and rest:
        return Failed(_whole(rest[0], 0, 2**63), " ".join(rest[1:]) or "its endpoint could not")
    if verb == "TIME" and len(rest) == 1:
        return Time(_whole(rest[0], 0, 2**62))
    raise ValueError(f"{text!r:.80}: expected FLOW, GONE, DONE, FAILED or TIME with its fields")


def command(verb: str, number: int, key: str, value: int, host: str) -> bytes:
    """Return the line that sends a command to an endpoint."""
    return f"{verb} {number} {key} {value} {host}\n".encode("ascii")


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise ValueError(f"key {text!r:.80}: expected sock:COOKIE or qp:DEVICE:QPN:COUNT")
    return text


def _host(fields: list[str]) -> str | None:
    if fields and not _HOST.fullmatch(fields[0]):
        raise ValueError(f"host {fields[0]!r:.80}: expected a host's name")
    return fields[0] if fields else None


def _verbs(text: str) -> frozenset[str]:
    verbs = frozenset() if text == "-" else frozenset(text.split(","))
    if not verbs <= VERBS:
        raise ValueError(f"verbs {text!r:.40}: expected MOVE, PACE, both with a comma, or -")
    return verbs


def _whole(text: str, minimum: int, maximum: int) -> int:
    if not (text.isdecimal() and len(text) <= 20 and minimum <= int(text) <= maximum):
        raise ValueError(f"{text!r:.40}: expected a whole number from {minimum} to {maximum}")
    return int(text)
