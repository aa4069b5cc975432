"""Reads SONiC's minigraph.xml: the links between devices, their rates and the kinds of devices."""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element

from fabrictime.imports.base import BadImport, Found, Hints, xml_root
from fabrictime.imports.sonic import KINDS, is_inside

_MBPS: Final = 1_000_000


def fits(text: str) -> bool:
    """Return whether a text looks like SONiC's minigraph.xml."""
    return re.search(r"<(?:\w+:)?DeviceMiniGraph\b", text) is not None


def read(text: str, hints: Hints) -> Found:
    """Return the cables. Links other than DeviceInterfaceLink (consoles, management) are left out. So are
    links between parts of one chassis, because its ASICs are devices of the file too.

    Raises BadImport.
    """
    part, inside = Found(), set()
    root = xml_root(text)
    for device in _all(root, "Device"):
        kind, name = _type_of(device), _child(device, "Hostname")
        if name and is_inside(kind):
            inside.add(name)
        elif name and "Server" in kind:
            part.hosts.add(name)
        elif name and kind in KINDS and kind != "LeafRouter":
            part.kinds[name] = KINDS[kind]
    for link in _all(root, "DeviceLinkBase"):
        if _child(link, "ElementType") != "DeviceInterfaceLink":
            continue
        start = _child(link, "StartDevice"), _child(link, "StartPort")
        end = _child(link, "EndDevice"), _child(link, "EndPort")
        if start[0] in inside or end[0] in inside:
            continue
        if not all((*start, *end)):
            raise BadImport(f"link from {start[0]!r} to {end[0]!r}: device or port missing")
        rate = _child(link, "Bandwidth")
        part.connect(start, end, int(rate) * _MBPS if rate.isdecimal() and len(rate) < 10 else 0)
    return part


def _all(root: Element, name: str) -> list[Element]:
    """Return all elements with this name, in any XML namespace."""
    return [element for element in root.iter() if element.tag.rpartition("}")[2] == name]


def _child(element: Element, name: str) -> str:
    for child in element:
        if child.tag.rpartition("}")[2] == name:
            return (child.text or "").strip()
    return ""


def _type_of(device: Element) -> str:
    for key, value in device.attrib.items():
        if key.rpartition("}")[2] == "type":
            return value.rpartition(":")[2]
    return _child(device, "ElementType")
