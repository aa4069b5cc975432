"""Reads `lldpctl -f json` and `-f json0` of one host or switch: its ports and the neighbour at each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fabrictime.imports.base import BadImport, Found, Hints, has_key, json_table, text_of


def fits(text: str) -> bool:
    """Return whether a text looks like lldpctl's JSON."""
    return has_key(text, "lldp")


def read(text: str, hints: Hints) -> Found:
    """Return the cables of the host or switch that wrote the file: `hints.host`. Raises BadImport."""
    if not hints.host:
        raise BadImport("lldpctl does not name its own host: give --host, or name the file after the host")
    part = Found()
    for port, neighbour in _neighbours(json_table(text)):
        chassis, there = neighbour
        part.connect((hints.host, port), (chassis, there), place=f"interface {port}")
    return part


def _neighbours(content: dict[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    for section in _items(content.get("lldp")):
        for entry in _items(section.get("interface")):
            named = {entry["name"]: entry} if isinstance(entry.get("name"), str) else entry
            for port, facts in named.items():
                for fact in _items(facts):
                    chassis, there = _chassis(fact.get("chassis")), _port(fact.get("port"))
                    if chassis and there:
                        yield port, (chassis, there)


def _items(value: Any) -> list[dict[str, Any]]:
    """Return the tables in `value`, a list of tables or a single table; json0 always writes lists."""
    return [table for table in (value if isinstance(value, list) else [value]) if isinstance(table, dict)]


def _value(value: Any) -> str:
    for element in value if isinstance(value, list) else [value]:
        text = text_of(element.get("value") if isinstance(element, dict) else element)
        if text:
            return text
    return ""


def _chassis(value: Any) -> str:
    """Return the system name of a neighbour. In json0 it is a field of the table, in json the table's key."""
    for table in _items(value):
        if "name" in table:
            return _value(table["name"])
        for name, facts in table.items():
            if isinstance(facts, dict):
                return str(name)
    return ""


def _port(value: Any) -> str:
    """Return the name of a port: its id if the id is an interface name, else its description."""
    for table in _items(value):
        ids = _items(table.get("id"))
        for one in ids:
            if one.get("type") in ("ifname", "local"):
                return text_of(one.get("value"))
        return _value(table.get("descr")) or "".join(text_of(one.get("value")) for one in ids[:1])
    return ""
