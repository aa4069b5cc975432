"""Makes the host of a case: the recorded one with changes, or an empty one with the case's files alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from fabrictime.bench.field._cases import BadCase, Table
from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost, bridge
from fabrictime.testbed.audit.recorded_network import LOOPBACK
from producers.audit.host.base import NVML
from producers.audit.host.network import Dcb, Interface, Neighbour, Route, Rule
from producers.ports.ethtool import LinkSettings

LOG_S: Final = 859_000.0
"""Time, s since boot, of the first line of a kernel log that states no times."""
_PLACE: Final = re.compile(r"\{([nmi])(?::(\w+))?\}")
_TIME: Final = re.compile(r"^\[ *\d+\.\d+\] ")


def host_of(table: Table) -> RecordedHost:
    """Return the recorded host with a case's changes, or an empty host with the case's files alone."""
    base = table.get("base", "healthy")
    if base not in ("healthy", "empty"):
        raise BadCase(f"host.base {base!r}, expected healthy or empty")
    host = HEALTHY.copy() if base == "healthy" else empty_host()
    changed(host, table)
    return host


def empty_host() -> RecordedHost:
    """Return a host without files and commands, and with the loopback device alone."""
    host = RecordedHost({}, {})
    host.network = {
        "interfaces": [Interface("lo", 1, 65536, "unknown", LOOPBACK, addresses=("127.0.0.1/8",))],
        "routes": [],
        "rules": [],
        "neighbours": [],
        "dcb": {},
        "ethtool_statistics": {},
        "link_settings": {},
        "reach": {"silent": set(), "filtered": set(), "largest": 9000, "seconds": 0.0002, "code": 0},
    }
    host.nics = ()
    return host


def changed(host: RecordedHost, table: Table) -> None:
    """Apply a case's changes to a host."""
    for part in table.get("without", ()):
        _remove(host, part)
    _files(host, table)
    for loop in table.get("each", ()):
        _repeat(host, loop)
    for address, control in table.get("acs", {}).items():
        host.files[f"/sys/bus/pci/devices/{address}/config"] = acs_bridge(control)
    host.links |= table.get("links", {})
    for run in table.get("commands", ()):
        host.commands |= dict.fromkeys(recorded_commands(*run["command"]), run["output"])
    _kernel_log(host, table)
    _units(host, table.get("units", {}))
    host.slow |= {tuple(command) for command in table.get("slow", ())}
    host.denied |= set(table.get("denied", ()))
    host.spaces |= {path: _space(space) for path, space in table.get("spaces", {}).items()}
    host.status = table.get("clock_status", host.status)
    host.nics = tuple(table.get("nics", host.nics))
    _gpus(host, table.get("gpus", ()))
    _network(host.network, table)


def _remove(host: RecordedHost, part: str) -> None:
    """Remove files, links and commands whose names contain `part`."""
    host.files = {path: content for path, content in host.files.items() if part not in path}
    host.links = {path: target for path, target in host.links.items() if part not in path}
    host.commands = {
        command: output for command, output in host.commands.items() if part not in " ".join(command)
    }


def _files(host: RecordedHost, table: Table) -> None:
    host.files |= table.get("files", {})
    host.files |= {path: bytes.fromhex(content) for path, content in table.get("bytes", {}).items()}
    for path, content in table.get("append", {}).items():
        host.files[path] = host.read(path) + "\n" + content
    host.later |= table.get("later", {})


def acs_bridge(control: int) -> bytes:
    """Return a PCIe bridge's configuration space whose ACS control register has the value `control`."""
    space = bytearray(bridge(redirects=True))
    space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


def _repeat(host: RecordedHost, loop: Table) -> None:
    """Add files and links once for each `n`, and with a list `m` for each pair of different `n` and `m`.

    `{n}`, `{m}` and `{i}`, the index of `m` among the values other than `n`, stand for numbers; `{n:02x}` has
    a format.
    """
    for n in loop["n"]:
        peers = [m for m in loop["m"] if m != n] if "m" in loop else [n]
        for i, m in enumerate(peers):
            values = {"n": n, "m": m, "i": i}
            for name, entries in (("files", host.files), ("links", host.links)):
                for path, content in loop.get(name, {}).items():
                    entries[_filled(path, values)] = _filled(content, values)


def _filled(text: str, values: Mapping[str, Any]) -> str:
    return _PLACE.sub(lambda match: format(values[match[1]], match[2] or ""), text)


def recorded_commands(*beginning: str) -> list[tuple[str, ...]]:
    """Return the recorded host's commands that begin with these words, or else the words as a command."""
    return [each for each in HEALTHY.commands if each[: len(beginning)] == beginning] or [beginning]


def _kernel_log(host: RecordedHost, table: Table) -> None:
    """Set the output of dmesg: lines of level warning and above, and lines below it, with times or without.

    A line without a time gets a time shortly before the recorded host's uptime.
    """
    if "kernel_log" not in table and "kernel_info" not in table:
        return
    warnings = _timed(table.get("kernel_log", ""))
    lines = sorted([*_timed(table.get("kernel_info", "")), *warnings], key=_seconds)
    for command in recorded_commands("dmesg"):
        shown = warnings if any(option.startswith("--level") for option in command) else lines
        shown = [_TIME.sub("", line) for line in shown] if "--notime" in command else shown
        host.commands[command] = "\n".join(shown) + "\n"


def _timed(text: str) -> list[str]:
    # a line that begins with blanks continues the message before it, as dmesg prints it
    lines = [line for line in re.split(r"\n(?!\s)", text.strip("\n")) if line.strip()]
    return [
        line if _TIME.match(line) else f"[{LOG_S + number / 10_000:.6f}] {line}"
        for number, line in enumerate(lines)
    ]


def _seconds(line: str) -> float:
    return float(line[1 : line.index("]")])


def _units(host: RecordedHost, units: Table) -> None:
    """Set properties of systemd's units in the output of `systemctl show`."""
    for command in recorded_commands("systemctl", "show") if units else ():
        blocks = {
            block.split("\n")[0].removeprefix("Id=").removesuffix(".service"): block
            for block in host.commands.get(command, "").strip().split("\n\n")
            if block
        }
        for unit, properties in units.items():
            fields = {"LoadState": "loaded", "ActiveState": "active", "NRestarts": "0"} | properties
            lines = [f"Id={unit}.service", *(f"{key}={value}" for key, value in fields.items())]
            blocks[unit] = "\n".join(lines)
        host.commands[command] = "\n\n".join(blocks.values()) + "\n"


def _space(values: Iterable[int]) -> tuple[int, int, int, int]:
    size, free, inodes, free_inodes = values
    return size, free, inodes, free_inodes


def _gpus(host: RecordedHost, tables: Iterable[Table]) -> None:
    """Change fields of NVML's report: of the GPU `index`, else of all GPUs; `gone` removes the GPU.

    NVML has no value for the fields of the list `unsupported`.
    """
    for table in tables:
        report = json.loads(host.commands[(NVML,)])
        fields = {key: value for key, value in table.items() if key not in ("index", "gone", "unsupported")}
        fields |= dict.fromkeys(table.get("unsupported", ()))
        changed_gpus = report["gpus"] if "index" not in table else [report["gpus"][table["index"]]]
        if table.get("gone"):
            report["gpus"] = [gpu for gpu in report["gpus"] if gpu not in changed_gpus]
        for gpu in changed_gpus:
            unknown = fields.keys() - gpu.keys()
            if unknown:
                raise BadCase(f"gpus: no field {', '.join(sorted(unknown))} in the report")
            gpu.update(fields)
        host.commands[(NVML,)] = json.dumps(report)


def _network(network: dict[str, Any], table: Table) -> None:
    for change in table.get("interfaces", ()):
        _interface(network["interfaces"], change)
    for name, kind in (("routes", Route), ("rules", Rule), ("neighbours", Neighbour)):
        if name in table:
            network[name] = [kind(**entry) for entry in table[name]]
    for name, entry in table.get("dcb", {}).items():
        network["dcb"][name] = _dcb(network["dcb"].get(name), entry)
    for name, counters in table.get("ethtool_statistics", {}).items():
        network["ethtool_statistics"].setdefault(name, {}).update(counters)
    for name, (rate_bps, duplex, negotiates) in table.get("link_settings", {}).items():
        network["link_settings"][name] = LinkSettings(rate_bps, duplex, negotiates)
    for key, value in table.get("reach", {}).items():
        network["reach"][key] = set(value) if isinstance(value, list) else value


def _interface(interfaces: list[Interface], change: Mapping[str, Any]) -> None:
    """Change an interface, or add it if it is new; with `gone = true` remove it."""
    fields = dict(change)
    name, is_gone = fields.pop("name"), fields.pop("gone", False)
    if "flags" in fields:
        fields["flags"] = frozenset(fields["flags"])
    if "addresses" in fields:
        fields["addresses"] = tuple(fields["addresses"])
    interface = next((each for each in interfaces if each.name == name), None)
    if interface is not None:
        interfaces.remove(interface)
    if interface is not None and not is_gone:
        counters = interface.counters | fields.pop("counters", {})
        interfaces.append(replace(interface, counters=counters, **fields))
    elif not is_gone:
        common: dict[str, Any] = {
            "index": len(interfaces) + 20,
            "mtu": 1500,
            "operstate": "up",
            "flags": frozenset({"UP", "LOWER_UP", "RUNNING", "BROADCAST", "MULTICAST"}),
        }
        interfaces.append(Interface(name, **(common | fields)))


def _dcb(known: Dcb | None, entry: Mapping[str, Any]) -> Dcb:
    fields: dict[str, Any] = {}
    for key, value in entry.items():
        if key == "pfc_priorities":
            fields[key] = frozenset(value)
        elif key == "dscp_priority":
            fields[key] = {int(dscp): priority for dscp, priority in value.items()}
        else:
            fields[key] = tuple(value)
    common: dict[str, Any] = dict.fromkeys(
        ("pfc_priorities", "pfc_pauses", "trust", "priority_class", "class_percent")
    )
    return replace(known, **fields) if known is not None else Dcb(**(common | {"dscp_priority": {}} | fields))
