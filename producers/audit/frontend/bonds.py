"""Bonds of interfaces, as /proc/net/bonding shows them: members that carry no traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, checked
from producers.audit.host.base import Host, Missing
from schemas.audit_remedy import remedy

FOLDER: Final = "/proc/net/bonding"
CHECKS: Final = Checks()


class Member(NamedTuple):
    """A member of a bond. `aggregator`: id of its group under 802.3ad (LACP); empty in other modes."""

    name: str
    state: str
    aggregator: str


def members(text: str) -> tuple[str, list[Member]]:
    """Return the id of a bond's active aggregator, empty if it has none, and the bond's members."""
    head, *parts = text.split("Slave Interface: ")
    bond_members = []
    for part in parts:
        name, _, rest = part.partition("\n")
        fields = _fields(rest)
        bond_members.append(Member(name.strip(), fields["MII Status"], fields.get("Aggregator ID", "")))
    return _fields(head).get("Aggregator ID", ""), bond_members


def backups(text: str) -> set[str]:
    """Return the members of a bond that only stand by: all but the active one, in the mode active-backup."""
    fields = _fields(text.partition("Slave Interface: ")[0])
    active = fields.get("Currently Active Slave", "")
    if "active-backup" not in fields.get("Bonding Mode", "") or active in ("", "None"):
        return set()
    return {member.name for member in members(text)[1]} - {active}


def backup_interfaces(host: Host) -> set[str]:
    """Return the interfaces that stand by in a bond: they drop what reaches them (bonding.rst)."""
    try:
        return set().union(*(backups(host.read(f"{FOLDER}/{bond}")) for bond in host.names(FOLDER)))
    except Missing:
        return set()


def _fields(text: str) -> dict[str, str]:
    """Return the first value of each name; the details of an LACP partner repeat names further below."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(": ")
        fields.setdefault(name, value.strip())
    return fields


@CHECKS.error("frontend.bonds", "All members of bonds carry traffic", 18, 99)
@remedy.replace("Check the member's cable, and LACP on the switch port")
def bonds(host: Host) -> Iterator[Finding]:
    """Find members of bonds that are down or that LACP left out."""
    names = host.names(FOLDER)
    if not names:
        raise Missing("no bond")
    for bond in names:
        active, bond_members = members(host.read(f"{FOLDER}/{bond}"))
        for member in bond_members:
            is_in = member.aggregator == active or not active
            text = f"{member.state}, {'in use' if is_in else 'left out by LACP'}"
            yield checked(member.state == "up" and is_in, text, f"{bond} {member.name}")
