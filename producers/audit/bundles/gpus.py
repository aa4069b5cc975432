"""Reads the GPUs and PCI devices of a support bundle, from outputs of `nvidia-smi -q` and `lspci -nn`.

`nvml_report` returns the report that `producers.audit.gpu.nvml` prints. Values that nvidia-smi does not
print are marked, so that their checks are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from producers.audit.gpu.nvidia import NOT_RECORDED
from producers.audit.gpu.nvml import pci_address

Fields = Mapping[str, str]
"""Values of a GPU by name, after the names of its sections: `ECC Errors/Volatile/DRAM Correctable`."""
_GPU: Final = re.compile(r"^GPU ([0-9A-Fa-f:.]+)$", re.MULTILINE)
_FIELD: Final = re.compile(r"^( +)([^:]+?)\s*(?:: (.*))?$")
_PCI: Final = re.compile(
    r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) .*?\[([0-9a-f]{4})\]: "
    r".*\[([0-9a-f]{4}):([0-9a-f]{4})\](?:.*\(rev ([0-9a-f]{2})\))?"
)
_ON: Final = {"Enabled": 1, "Disabled": 0, "Yes": 1, "No": 0}
_COMPUTE_MODES: Final = {"Default": 0, "Exclusive_Thread": 1, "Prohibited": 2, "Exclusive_Process": 3}
_UNITS: Final = {"MiB": 1 << 20, "W": 1000, "MHz": 1, "C": 1}
"""Factors of nvidia-smi's units to those of the report: bytes, mW, MHz, degrees Celsius."""


def _fields(text: str) -> Fields:
    """Return the values in a GPU's part of the output, by name."""
    fields, above = dict[str, str](), list[tuple[int, str]]()
    for line in text.splitlines():
        match = _FIELD.match(line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        while above and above[-1][0] >= depth:
            above.pop()
        path = "/".join([*(part for _, part in above), name])
        if match[3] is None:
            above.append((depth, name))
        else:
            fields[path] = match[3].strip()
    return fields


def _figure(text: str) -> int | None:
    """Return a number with its unit in the report's unit; None if the GPU does not have the value."""
    number, _, unit = text.partition(" ")
    return None if number in ("N/A", "[N/A]") else round(float(number) * _UNITS.get(unit, 1))


def _first(fields: Fields, *names: str) -> str:
    """Return the first of these fields that exists: drivers name it differently. Raises KeyError."""
    return fields[next((name for name in names if name in fields), names[0])]


def _sum(fields: Fields, section: str, *kinds: str) -> int | None:
    figures = [
        _figure(value) for name, value in fields.items() if name.startswith(section) and name.endswith(kinds)
    ]
    known = [figure for figure in figures if figure is not None]
    if not figures:
        raise KeyError(section)
    return sum(known) if known else None


def _switches(fields: Fields, *names: str) -> list[int | None] | None:
    """Return 1 (on) or 0 (off) for each field; None if the GPU has none of the fields."""
    states = [_ON.get(fields[name], _figure_or_none(fields[name])) for name in names]
    return None if all(state is None for state in states) else states


def _figure_or_none(text: str) -> int | None:
    return int(text) if text.isdigit() else None


CORRECTED: Final = ("SRAM Correctable", "DRAM Correctable")
UNCORRECTED: Final = (
    *("SRAM Uncorrectable", "DRAM Uncorrectable"),
    *("SRAM Uncorrectable Parity", "SRAM Uncorrectable SEC-DED"),
)
READERS: Final[Mapping[str, Callable[[Fields], Any]]] = {
    "name": lambda fields: fields["Product Name"],
    "uuid": lambda fields: fields["GPU UUID"],
    "vbios": lambda fields: fields["VBIOS Version"],
    "inforom": lambda fields: fields["Inforom Version/Image Version"],
    "gsp_version": lambda fields: fields["GSP Firmware Version"],
    "ecc_mode": lambda fields: _switches(fields, "ECC Mode/Current", "ECC Mode/Pending"),
    "ecc_corrected": lambda fields: _sum(fields, "ECC Errors/Volatile/", *CORRECTED),
    "ecc_uncorrected": lambda fields: _sum(fields, "ECC Errors/Volatile/", *UNCORRECTED),
    "remapped_rows": lambda fields: _switches(
        fields,
        "Remapped Rows/Correctable Error",
        "Remapped Rows/Uncorrectable Error",
        "Remapped Rows/Pending",
        "Remapped Rows/Remapping Failure Occurred",
    ),
    "retired_pages": lambda fields: _sum(fields, "Retired Pages/", "Single Bit ECC", "Double Bit ECC"),
    "temperature_c": lambda fields: _figure(fields["Temperature/GPU Current Temp"]),
    "slowdown_c": lambda fields: _figure(fields["Temperature/GPU Slowdown Temp"]),
    "memory_temperature_c": lambda fields: _figure(fields["Temperature/Memory Current Temp"]),
    "memory_max_c": lambda fields: _figure(fields["Temperature/Memory Max Operating Temp"]),
    "power_limit_mw": lambda fields: _figure(
        _first(
            fields,
            "GPU Power Readings/Current Power Limit",
            "Power Readings/Enforced Power Limit",
            "Power Readings/Power Limit",
        )
    ),
    "power_default_mw": lambda fields: _figure(
        _first(fields, "GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit")
    ),
    "sm_max_mhz": lambda fields: _figure(fields["Max Clocks/SM"]),
    "application_mhz": lambda fields: _figure(fields["Applications Clocks/Graphics"]),
    "application_default_mhz": lambda fields: _figure(fields["Default Applications Clocks/Graphics"]),
    "persistence": lambda fields: _ON[fields["Persistence Mode"]],
    "mig": lambda fields: _switches(fields, "MIG Mode/Current", "MIG Mode/Pending"),
    "compute_mode": lambda fields: _COMPUTE_MODES[fields["Compute Mode"]],
    "memory_total_bytes": lambda fields: _figure(fields["FB Memory Usage/Total"]),
    "memory_used_bytes": lambda fields: _figure(fields["FB Memory Usage/Used"]),
}
"""Values of NVML's report that nvidia-smi prints under the same meaning."""
OTHERS: Final = (
    *(
        "gsp_mode",
        "sram",
        "retirement_pending",
        "nvlink_active",
        "nvlink_errors",
        "nvlink_mbps",
        "peers",
        "fabric",
    ),
    *("clock_reasons", "power_mw", "pcie_replays", "processes", "graphics_processes"),
)
"""Values of the report that nvidia-smi does not print, or not in the same form."""


def nvml_report(text: str, command: Sequence[str] = ()) -> str:
    """Return the report as JSON; empty if the output lists no GPU, or if the command asks for samples."""
    parts = _GPU.split(text)
    if len(parts) < 3 or len(command) > 1:
        return ""
    head = dict(line.partition(":")[::2] for line in parts[0].splitlines())
    versions = {name.strip(): value.strip() for name, value in head.items()}
    return json.dumps(
        {
            "driver": versions.get("Driver Version", ""),
            "cuda": versions.get("CUDA Version", ""),
            "nvml": versions.get("Driver Version", ""),
            "gpus": [
                {"address": pci_address(address), **_values(_fields(part))}
                for address, part in zip(parts[1::2], parts[2::2], strict=True)
            ],
        }
    )


def _values(fields: Fields) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(OTHERS, NOT_RECORDED)
    for name, read_value in READERS.items():
        try:
            values[name] = read_value(fields)
        except (KeyError, ValueError):  # another driver prints it otherwise
            values[name] = NOT_RECORDED
    return values


def pci_files(text: str) -> dict[str, str]:
    """Return class, ids and revision of the devices in an output of `lspci -nn`, as files of sysfs."""
    files: dict[str, str] = {}
    for line in text.splitlines():
        match = _PCI.match(line)
        if match:
            address = match[1] if match[1].count(":") == 2 else f"0000:{match[1]}"
            values = {
                "class": f"0x{match[2]}00",
                "vendor": f"0x{match[3]}",
                "device": f"0x{match[4]}",
                "revision": f"0x{match[5] or '00'}",
            }
            files |= {f"/sys/bus/pci/devices/{address}/{name}": value for name, value in values.items()}
    return files
