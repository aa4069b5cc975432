"""Writes the testbed's plan as the files of other tools, with the cables that an import must find.

Cables of formats without port names have missing or numbered ports. NCCL's files have no cables.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fabrictime.testbed.fabric.topology import Cable, Plan, Port
from schemas.ids import end_id

MBPS: Final = 1_000_000
SONIC_KINDS: Final = {"host": "Server", "leaf": "ToRRouter", "spine": "SpineRouter"}


@dataclass(slots=True)
class ToolFiles:
    """The texts of a tool's files by name, and the cables that they describe, as pairs of ends."""

    texts: dict[str, str] = field(default_factory=dict)
    cables: set[frozenset[str]] = field(default_factory=set)


def _ends(cable: Cable, name_of: Callable[[Port, Port], str]) -> frozenset[str]:
    low, up = cable.lower, cable.upper
    return frozenset((end_id(low.node, name_of(low, up)), end_id(up.node, name_of(up, low))))


def _as_they_are(plan: Plan) -> set[frozenset[str]]:
    return {_ends(cable, lambda port, _: port.name) for cable in plan.cables}


def _switches(plan: Plan) -> list[str]:
    return [node.name for node in plan.nodes.values() if node.kind != "host"]


def _lldp(plan: Plan) -> ToolFiles:
    files = ToolFiles(cables=_as_they_are(plan))
    for name in _switches(plan):
        interfaces = []
        for port in plan.nodes[name].ports:
            far = plan.far[name, port.name]
            interfaces.append(
                {
                    port.name: {
                        "via": "LLDP",
                        "chassis": {far.node: {"id": {"type": "mac", "value": far.mac}}},
                        "port": {"id": {"type": "ifname", "value": far.name}, "descr": f"to {name}"},
                    }
                }
            )
        files.texts[f"{name}.json"] = json.dumps({"lldp": {"interface": interfaces}})
    return files


def _sonic(plan: Plan) -> ToolFiles:
    files = ToolFiles(cables=_as_they_are(plan))
    for name in _switches(plan):
        node = plan.nodes[name]
        fars = {port.name: plan.far[name, port.name] for port in node.ports}
        content: dict[str, Any] = {
            "DEVICE_METADATA": {"localhost": {"hostname": name, "type": SONIC_KINDS[node.kind]}},
            "PORT": {port.name: {"speed": str(port.rate_bps // MBPS)} for port in node.ports},
            "DEVICE_NEIGHBOR": {port: {"name": far.node, "port": far.name} for port, far in fars.items()},
            "DEVICE_NEIGHBOR_METADATA": {
                far.node: {"type": SONIC_KINDS[plan.nodes[far.node].kind]} for far in fars.values()
            },
            "INTERFACE": {f"{port.name}|{port.address}/31": {} for port in node.ports},
        }
        files.texts[f"{name}.json"] = json.dumps(content)
    return files


def _minigraph(plan: Plan) -> ToolFiles:
    links = "".join(
        f"<DeviceLinkBase><ElementType>DeviceInterfaceLink</ElementType>"
        f"<Bandwidth>{cable.lower.rate_bps // MBPS}</Bandwidth>"
        f"<EndDevice>{cable.upper.node}</EndDevice><EndPort>{cable.upper.name}</EndPort>"
        f"<StartDevice>{cable.lower.node}</StartDevice><StartPort>{cable.lower.name}</StartPort>"
        f"</DeviceLinkBase>"
        for cable in plan.cables
    )
    devices = "".join(
        f'<Device i:type="{SONIC_KINDS[node.kind]}"><Hostname>{node.name}</Hostname></Device>'
        for node in plan.nodes.values()
    )
    text = (
        '<?xml version="1.0"?><DeviceMiniGraph xmlns="Microsoft.Search.Autopilot.Evolution" '
        'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><PngDec>'
        f"<DeviceInterfaceLinks>{links}</DeviceInterfaceLinks><Devices>{devices}</Devices>"
        "</PngDec></DeviceMiniGraph>"
    )
    return ToolFiles({"minigraph.xml": text}, _as_they_are(plan))


def _containerlab(plan: Plan) -> ToolFiles:
    kinds = {"host": "linux", "leaf": "nokia_srlinux", "spine": "nokia_srlinux"}
    nodes = "".join(f"    {node.name}: {{kind: {kinds[node.kind]}}}\n" for node in plan.nodes.values())
    links = "".join(f'    - endpoints: ["{cable.lower}", "{cable.upper}"]\n' for cable in plan.cables)
    text = f"name: lab\ntopology:\n  nodes:\n{nodes}  links:\n{links}"
    return ToolFiles({"lab.clab.yml": text}, _as_they_are(plan))


def _slurm(plan: Plan) -> ToolFiles:
    lines = []
    for name in _switches(plan):
        fars = {plan.far[name, port.name].node for port in plan.nodes[name].ports}
        below = "host" if plan.nodes[name].kind == "leaf" else "leaf"
        listed = ",".join(sorted(far for far in fars if plan.nodes[far].kind == below))
        lines.append(f"SwitchName={name} {'Nodes' if below == 'host' else 'Switches'}={listed}")

    def name_of(port: Port, far: Port) -> str:
        return "eth0" if plan.nodes[port.node].kind == "host" else far.node

    return ToolFiles({"topology.conf": "\n".join(lines)}, {_ends(cable, name_of) for cable in plan.cables})


def _ibnetdiscover(plan: Plan) -> ToolFiles:
    guids = {name: f"{number:016x}" for number, name in enumerate(plan.nodes, 0xFC6A_0000)}

    def number_of(port: Port) -> int:
        return plan.nodes[port.node].ports.index(port) + 1

    def is_host(port: Port) -> bool:
        return plan.nodes[port.node].kind == "host"

    def node_of(port: Port) -> str:
        return f"{'H' if is_host(port) else 'S'}-{guids[port.node]}"

    def title_of(port: Port) -> str:
        return f"{port.node} mlx5_0" if is_host(port) else port.node

    lines = []
    for node in plan.nodes.values():
        first = node.ports[0]
        kind = "Ca" if node.kind == "host" else "Switch"
        lines.append(f'{kind}\t{len(node.ports)} "{node_of(first)}"\t\t# "{title_of(first)}"')
        for port in node.ports:
            far = plan.far[node.name, port.name]
            lines.append(
                f'[{number_of(port)}]\t"{node_of(far)}"[{number_of(far)}]\t\t# "{title_of(far)}" lid 1 4xNDR'
            )
        lines.append("")

    def name_of(port: Port, _: Port) -> str:
        return "mlx5_0" if is_host(port) else str(number_of(port))

    return ToolFiles({"ibnetdiscover.txt": "\n".join(lines)}, {_ends(c, name_of) for c in plan.cables})


def _nccl(plan: Plan) -> ToolFiles:
    files = ToolFiles()
    for node in plan.nodes.values():
        if node.kind == "host":
            nets = "".join(f'<net name="{port.name}" dev="0" speed="100000"/>' for port in node.ports)
            files.texts[f"{node.name}.xml"] = (
                f'<system version="1"><cpu numaid="0"><nic>{nets}</nic></cpu></system>'
            )
    return files


def _ptm(plan: Plan) -> ToolFiles:
    edges = "".join(
        f'  "{cable.lower.node}":"{cable.lower.name}" -- "{cable.upper.node}":"{cable.upper.name}";\n'
        for cable in plan.cables
    )
    return ToolFiles({"topology.dot": f"graph G {{\n{edges}}}\n"}, _as_they_are(plan))


def _netbox(plan: Plan) -> ToolFiles:
    rows = [
        f"{number},,cat6a,connected,{cable.lower.node},dcim.interface,{cable.lower.name},"
        f"{cable.upper.node},dcim.interface,{cable.upper.name}"
        for number, cable in enumerate(plan.cables, 1)
    ]
    head = "id,Label,Type,Status,Side A Device,Side A Type,Side A Name,Side B Device,Side B Type,Side B Name"
    return ToolFiles({"cables.csv": "\n".join([head, *rows])}, _as_they_are(plan))


FILES: Final[dict[str, Callable[[Plan], ToolFiles]]] = {
    "lldp": _lldp,
    "sonic": _sonic,
    "minigraph": _minigraph,
    "containerlab": _containerlab,
    "slurm": _slurm,
    "ibnetdiscover": _ibnetdiscover,
    "nccl": _nccl,
    "ptm": _ptm,
    "netbox": _netbox,
}
"""Functions that write the files of a format, by the name of the format."""
