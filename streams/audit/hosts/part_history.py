"""Collects weeks of readings of links and modules from audit results, for the search for trends. Pure.

After a replacement, which the serial number shows, only readings of the new part count. One reading in
`SLOT_S` is stored, which bounds the memory of a long log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from schemas.records import AuditResult

SLOT_S: Final = 6 * 3600
MAX_SERIES: Final = 1_000_000
"""Largest number of series that are collected; further ones are left out."""
SERIALS: Final = frozenset({"module_serial", "gpu_serial"})
"""Facts that identify the part which a subject names."""
MARGINS: Final = frozenset(
    {
        "module_rx_power_margin_db",
        "module_tx_power_margin_db",
        "module_bias_margin_ma",
        "module_temperature_margin_celsius",
    }
)
"""Facts that state the distance of a module's reading to the limit that the module states."""
RAW_ERRORS: Final = "raw_bit_errors_total"
RECEIVED_BITS: Final = "received_bits_total"
RAW_RATIO: Final = "raw_bit_error_ratio"
COUNTERS: Final = frozenset({"link_down_total", "nvlink_errors_total", RAW_ERRORS, RECEIVED_BITS})
PART_FACTS: Final = SERIALS | MARGINS | COUNTERS | {RAW_RATIO}
"""Facts of a part over time. They are not compared with other hosts: each part has its own."""


class Part(NamedTuple):
    """A link or module of a host; a subject such as `GPU 0/NVLink 3` is a part of `GPU 0`."""

    host: str
    subject: str


class Reading(NamedTuple):
    """A value, and the time of the host's check that read it, ns since the Unix epoch."""

    at_ns: int
    value: float


class PartHistory:
    """Readings of parts, from audit results in any order."""

    def __init__(self) -> None:
        self._series: dict[tuple[Part, str], dict[int, Reading]] = {}
        self._newest_ns: dict[Part, dict[str, int]] = {}
        """Part to its serial numbers and the time of the last result with each, ns."""

    def take(self, result: AuditResult) -> None:
        """Add the readings of an audit result."""
        at_ns = result["checked_ns"]
        for fact in result["facts"]:
            if fact["name"] not in PART_FACTS:
                continue
            part = Part(result["host"], fact["subject"])
            if fact["name"] in SERIALS:
                newest_ns = self._newest_ns.setdefault(part, {})
                newest_ns[fact["text"]] = max(at_ns, newest_ns.get(fact["text"], 0))
            elif fact["number"] is not None:
                self._add(part, fact["name"], Reading(at_ns, fact["number"]))

    def _add(self, part: Part, name: str, reading: Reading) -> None:
        if (part, name) not in self._series and len(self._series) >= MAX_SERIES:
            return
        slots = self._series.setdefault((part, name), {})
        slot = reading.at_ns // (SLOT_S * 10**9)
        slots[slot] = min(reading, slots.get(slot, reading))

    def series(self) -> Iterator[tuple[Part, str, list[Reading]]]:
        """Yield each part, fact and its readings since the part was installed, in order of time."""
        for (part, name), slots in sorted(self._series.items()):
            since_ns = self._since_ns(part)
            readings = [reading for _, reading in sorted(slots.items()) if reading.at_ns > since_ns]
            if readings:
                yield part, name, readings

    def _since_ns(self, part: Part) -> int:
        """Return the time, ns, of the last result with the previous part's serial number; -1 without one."""
        owner = part._replace(subject=part.subject.partition("/")[0])
        newest_ns = self._newest_ns.get(part) or self._newest_ns.get(owner) or {}
        return sorted(newest_ns.values())[-2] if len(newest_ns) > 1 else -1
