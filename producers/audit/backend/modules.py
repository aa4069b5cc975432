"""Checks of cable modules: power of the light, laser current and temperature against the module's own limits.

`mlxlink -m` reads NVIDIA's cards, on InfiniBand too; `ethtool -m` reads those of other makes. Both print the
limits that the module states (SFF-8472, SFF-8636, CMIS). The distances to the limits are facts, whose trends
the evaluation finds (streams/audit/hosts/trends.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from producers.audit.backend.ethernet import module_report
from producers.audit.backend.rdma_devices import nvidia_devices
from producers.audit.backend.rdma_ports import backend_interfaces, interfaces
from producers.audit.base import Checks, Finding, checked, stated
from producers.audit.host.base import Host, Missing, Unreadable
from schemas.audit_remedy import remedy

CHECKS: Final = Checks(limit_s=60.0)
DARK_DBM: Final = -40.0
"""Power, dBm, of a lane that is not in use, as the tools print it; -inf means the same."""
_NUMBER: Final = r"-?(?:\d+(?:\.\d+)?|inf)"
_MLXLINK: Final = re.compile(rf"^({_NUMBER}(?:,{_NUMBER})*) \[({_NUMBER})\.\.({_NUMBER})\]$")
_CHANNEL: Final = re.compile(r" ?\((?:Channel|Chan) \d+\)$")
_VALUE: Final = re.compile(rf"({_NUMBER}) (dBm|mA|degrees C)")


class Quantity(NamedTuple):
    """A reading of a module: its names in mlxlink and ethtool, the limit that counts, and the fact's name."""

    mlxlink: str
    ethtool: tuple[str, ...]
    limit: str
    """Beginning of ethtool's name of the limits."""
    is_low: bool
    """Whether the lower limit counts, else the upper one."""
    unit: str
    fact: str


QUANTITIES: Final = (
    Quantity(
        "Temperature [C]",
        ("Module temperature",),
        "Module temperature",
        False,
        "C",
        "module_temperature_margin_celsius",
    ),
    Quantity(
        "Bias Current [mA]",
        ("Laser bias current", "Laser tx bias current"),
        "Laser bias current",
        False,
        "mA",
        "module_bias_margin_ma",
    ),
    Quantity(
        "Rx Power Current [dBm]",
        ("Receiver signal average optical power", "Rcvr signal avg optical power", "Receiver signal OMA"),
        "Laser rx power",
        True,
        "dBm",
        "module_rx_power_margin_db",
    ),
    Quantity(
        "Tx Power Current [dBm]",
        ("Laser output power", "Transmit avg optical power"),
        "Laser output power",
        True,
        "dBm",
        "module_tx_power_margin_db",
    ),
)


class Reading(NamedTuple):
    """The values of a quantity in all lanes that are in use, and the limit."""

    quantity: Quantity
    values: tuple[float, ...]
    limit: float

    @property
    def worst(self) -> float:
        """The value of the lane that is closest to the limit."""
        return min(self.values) if self.quantity.is_low else max(self.values)

    @property
    def margin(self) -> float:
        """The distance of the worst lane to the limit; negative beyond it."""
        return (self.worst - self.limit) * (1 if self.quantity.is_low else -1)


def mlxlink_readings(report: dict[str, str]) -> Iterator[Reading]:
    """Yield the readings of an output of `mlxlink -m`; a cable of copper has none, or only zeros."""
    for quantity in QUANTITIES:
        match = _MLXLINK.match(report.get(quantity.mlxlink, ""))
        if match and (match[2], match[3]) != ("0", "0"):
            values = [float(value) for value in match[1].split(",")]
            limit = float(match[2] if quantity.is_low else match[3])
            yield from _reading(quantity, values, limit)


def ethtool_readings(report: dict[str, str]) -> Iterator[Reading]:
    """Yield the readings of an output of `ethtool -m`."""
    for quantity in QUANTITIES:
        texts = [text for name, text in report.items() if _CHANNEL.sub("", name) in quantity.ethtool]
        limit = report.get(f"{quantity.limit} {'low' if quantity.is_low else 'high'} alarm threshold", "")
        values = [float(match[1]) for text in texts if (match := _VALUE.search(text))]
        match = _VALUE.search(limit)
        if match:
            yield from _reading(quantity, values, float(match[1]))


def _reading(quantity: Quantity, values: list[float], limit: float) -> Iterator[Reading]:
    if quantity.unit == "dBm":
        values = [value for value in values if value > DARK_DBM]
    elif quantity.unit == "mA":
        values = [value for value in values if value > 0]
    if values and abs(limit) < float("inf"):
        yield Reading(quantity, tuple(values), limit)


@CHECKS.warning("backend.modules", "Modules are within the limits that they state", 17)
@remedy.monitor("Clean the connectors, improve the cooling, or replace the module")
def modules(host: Host) -> Iterator[Finding]:
    """Find modules with too little light, too much current or heat, and state the distances to the limits."""
    any_module = False
    for subject, serial, readings in _modules(host):
        any_module = True
        if serial:
            yield stated("module_serial", serial, subject)
        for reading in readings:
            quantity = reading.quantity
            name = quantity.fact.removeprefix("module_").partition("_margin")[0].replace("_", " ")
            bound = "at least" if quantity.is_low else "at most"
            text = f"{name} {reading.worst:g} {quantity.unit}, expected {bound} {reading.limit:g}"
            yield checked(reading.margin >= 0, text, subject)
            yield stated(quantity.fact, round(reading.margin, 3), subject)
    if not any_module:
        raise Missing("no module states its light and its limits: cables of copper have none")


def _modules(host: Host) -> Iterator[tuple[str, str, list[Reading]]]:
    """Yield (interface, or device without one; serial number; readings) of each module with a reading."""
    names: dict[str, str] = {}
    devices: list[tuple[str, str]] = []
    with suppress(Missing):  # a host without RDMA, or without NVIDIA's cards
        names = {port.device: name for port, name in interfaces(host)}
        devices = list(nvidia_devices(host))
    others = set(backend_interfaces(host)) if names or not devices else set()
    for device, address in devices:
        try:
            report = module_report(host.run("mlxlink", "-d", address, "-m"))
        except Missing:  # not installed: ethtool reads the modules of Ethernet
            continue
        others.discard(names.get(device, ""))
        if readings := list(mlxlink_readings(report)):
            yield names.get(device, device), report.get("Vendor Serial Number", ""), readings
    for name in sorted(others):
        try:
            report = module_report(host.run("ethtool", "-m", name))
        except Unreadable:  # a virtual function, or a port without a module
            continue
        if readings := list(ethtool_readings(report)):
            yield name, report.get("Vendor SN", ""), readings
