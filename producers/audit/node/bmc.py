"""Node checks of the BMC: its event log, and its sensors of fans, power supplies, memory and other parts.

`bmc_rules.toml` has the parts by entity, the words that name a fault, and the events that end one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, checked, failed, passed
from producers.audit.host.base import Host, Missing
from schemas.audit_remedy import remedy
from schemas.settings_file import read_tables

FILE: Final = Path(__file__).with_name("bmc_rules.toml")
GOOD_SENSORS: Final = frozenset({"ok", "ns"})
"""States of a good sensor: ok is within its limits, ns is without a reading."""
FAN, SUPPLY = "fan", "power supply"
PARTS: Final = frozenset({"memory", "processor", "drive"})
"""Parts whose discrete sensors state that the part itself failed."""
_ANALOG: Final = re.compile(r"-?[\d.]+ (?:degrees \w|percent|unspecified|Volts|Amps|Watts|RPM)")
_THRESHOLD: Final = re.compile(r"^(?P<side>lower|upper) (?P<level>non-critical|critical|non-recoverable) ")
_LEVELS: Final = ("non-critical", "critical", "non-recoverable")
_BMC_S: Final = 35.0
"""Limit of checks that read from the BMC, which may take half a minute."""
CHECKS: Final = Checks(limit_s=_BMC_S)


class Sensor(NamedTuple):
    """A sensor of the BMC. `part`: the kind of part that it belongs to; empty for the whole machine."""

    name: str
    status: str
    reading: str
    part: str


class Event(NamedTuple):
    """An entry of the system event log. `sensor` is empty for one that the kernel wrote."""

    sensor: str
    text: str
    is_asserted: bool


class _Rules(NamedTuple):
    """The content of bmc_rules.toml."""

    part_by_entity: Mapping[int, str]
    faults: Mapping[str, re.Pattern[str]]
    """Pattern of a fault by part."""
    ends: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]
    """(Event, faults that it ends)."""


@cache
def _rules() -> _Rules:
    tables = read_tables(FILE)
    patterns = tables["faults"]
    faults = {part: f"{pattern}|{patterns['any']}" for part, pattern in patterns.items()}
    return _Rules(
        {entity: part for part, entities in tables["entities"].items() for entity in entities},
        {part: re.compile(pattern, re.IGNORECASE) for part, pattern in faults.items()},
        tuple(
            (re.compile(row["event"], re.IGNORECASE), re.compile(row["fault"], re.IGNORECASE))
            for row in tables["end"]
        ),
    )


def _names_fault(text: str, part: str = "any") -> bool:
    faults = _rules().faults
    return faults.get(part, faults["any"]).search(text) is not None


def sensors(text: str) -> list[Sensor]:
    """Return the sensors that `ipmitool sdr elist` prints."""
    entries = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 5:
            raise ValueError(f"sensor {line!r:.60}, expected five columns")
        name, _, status, entity, reading = parts
        entries.append(Sensor(name, status.lower(), reading, _part(name, entity, reading)))
    if not entries:
        raise ValueError("the BMC lists no sensor")
    return entries


def _part(name: str, entity: str, reading: str) -> str:
    """Return the kind of part that a sensor belongs to, by its entity such as 10.2, else by its name."""
    number = entity.partition(".")[0]
    part = _rules().part_by_entity.get(int(number), "") if number.isdecimal() else ""
    if part:
        return part
    lower = name.lower()
    if reading.endswith("RPM") or "fan" in lower:
        return FAN
    is_supply = lower.startswith(("ps", "power supply", "status_psu")) and not _ANALOG.fullmatch(reading)
    return SUPPLY if is_supply else ""


def log_entries(text: str) -> Iterator[Event]:
    """Yield the entries that `ipmitool sel elist` prints.

    The text of a kernel panic is in entries of two columns. Entries of makers have four.
    """
    for line in text.splitlines():
        number, *parts = (part.strip() for part in line.split("|"))
        if len(parts) < 4:
            yield Event("", " ".join(parts) or number, is_asserted=True)
        else:
            yield Event(parts[2], parts[3], "deassert" not in " ".join(parts[4:]).lower())


def events(text: str) -> dict[tuple[str, str], int]:
    """Return how often `ipmitool sel elist` lists each (sensor, fault); faults that ended are left out."""
    counts: Counter[tuple[str, str]] = Counter()
    for event in log_entries(text):
        for key in [key for key in counts if key[0] == event.sensor and _ends(event, key[1])]:
            del counts[key]
        if event.is_asserted and _is_fault(event):
            counts[event.sensor, event.text] += 1
    return dict(counts)


def _is_fault(event: Event) -> bool:
    part = "memory" if event.sensor.lower().startswith("memory") else "any"
    is_end = any(end.search(event.text) for end, _ in _rules().ends)
    return _names_fault(event.text, part) and not is_end


def _ends(event: Event, fault: str) -> bool:
    """Return whether an event of the sensor of a fault ends that fault."""
    if event.is_asserted:
        return any(end.search(event.text) and pattern.search(fault) for end, pattern in _rules().ends)
    if event.text == fault:
        return True
    recovered, exceeded = (_THRESHOLD.search(text.lower()) for text in (event.text, fault))
    return (
        recovered is not None
        and exceeded is not None
        and recovered["side"] == exceeded["side"]
        and _LEVELS.index(recovered["level"]) <= _LEVELS.index(exceeded["level"])
    )


def _bmc(host: Host) -> None:
    """Raise Missing if the host has no BMC."""
    if not any(name.startswith("ipmi") for name in host.names("/dev")):
        raise Missing("no BMC: no /dev/ipmi0")


@CHECKS.error("node.events", "The system event log has no fault", 98)
@remedy.replace("Replace the part that `ipmitool sel elist` names, then `ipmitool sel clear`")
def _events(host: Host) -> Iterator[Finding]:
    _bmc(host)
    counts = events(host.run("ipmitool", "sel", "elist"))
    for (sensor, text), count in sorted(counts.items()):
        yield failed(f"{text}, {count} times" if count > 1 else text, sensor)
    if not counts:
        yield passed("no fault in the system event log")


def _of_bmc(
    host: Host, is_chosen: Callable[[Sensor], bool], is_right: Callable[[Sensor], bool]
) -> Iterator[Finding]:
    _bmc(host)
    selection = [
        sensor for sensor in sensors(host.run("ipmitool", "sdr", "elist", "all")) if is_chosen(sensor)
    ]
    if not selection:
        raise Missing("the BMC has no such sensor")
    for sensor in selection:
        yield checked(is_right(sensor), f"{sensor.status}, {sensor.reading or 'no reading'}", sensor.name)


@CHECKS.error("node.sensors", "Temperatures and voltages are in their limits", 98)
@remedy.monitor("ipmitool sdr elist; check cooling and power")
def _sensors(host: Host) -> Iterator[Finding]:
    return _of_bmc(
        host, lambda sensor: sensor.part not in (FAN, SUPPLY) and not _states_part(sensor), _is_good
    )


@CHECKS.error("node.parts", "Memory, processors and drives work, as the BMC states", 86, 98)
@remedy.replace("Reseat or replace the part that the sensor names")
def _parts(host: Host) -> Iterator[Finding]:
    return _of_bmc(host, _states_part, _is_good)


@CHECKS.error("node.fans", "Fans run", 98)
@remedy.replace("Replace the fan")
def _fans(host: Host) -> Iterator[Finding]:
    return _of_bmc(host, lambda sensor: sensor.part == FAN, _spins)


@CHECKS.error("node.power-supplies", "Power supplies work", 98)
@remedy.replace("Check the power cord and feed, then replace the power supply")
def _power_supplies(host: Host) -> Iterator[Finding]:
    return _of_bmc(host, lambda sensor: sensor.part == SUPPLY, _is_good)


def _states_part(sensor: Sensor) -> bool:
    """Return whether a sensor states that a part works, not its temperature or voltage."""
    return sensor.part in PARTS and not _ANALOG.fullmatch(sensor.reading)


def _spins(sensor: Sensor) -> bool:
    return _is_good(sensor) and sensor.reading != "0 RPM"


def _is_good(sensor: Sensor) -> bool:
    """Return whether a sensor is within its limits and its reading names no fault.

    The reading is needed as well: a sensor without limits always has the status ok.
    """
    return sensor.status in GOOD_SENSORS and not _names_fault(sensor.reading, sensor.part)
