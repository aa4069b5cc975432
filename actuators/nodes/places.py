"""Racks, rails and leaf switches of hosts from the inventory, and failures caused by the network. Pure.

A fault of a switch makes several hosts fail the same check. Draining these hosts repairs nothing. So no host
is drained for a network failure that hosts of the same leaf switch share, or that an alert explains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from actuators.nodes.fitness import AuditHistory, Outcome
from schemas.records import Alert, AlertKind, AlertState, AuditCategory, Nic

NETWORK: Final = frozenset(
    {AuditCategory.FRONTEND, AuditCategory.BACKEND, AuditCategory.FABRIC, AuditCategory.COLLECTIVES}
)
"""Categories of checks whose failure may be a fault of the network."""
NETWORK_ALERTS: Final = frozenset(
    {
        AlertKind.LINK_DOWN,
        AlertKind.LINK_GREY,
        AlertKind.LINK_FLAPPING,
        AlertKind.NIC_DOWN,
        AlertKind.HOST_DOWN,
        AlertKind.MISWIRED,
        AlertKind.UNEXPLAINED_LOSS,
    }
)
MAX_NAMED: Final = 3


class Places:
    """The inventory records of each host's NICs: its racks, rails and leaf switches."""

    def __init__(self) -> None:
        self._nics: dict[str, dict[str, Nic]] = {}

    def take(self, nic: Nic) -> None:
        """Add or replace an inventory record."""
        self._nics.setdefault(nic["host"], {})[nic["device"]] = nic

    def __contains__(self, host: object) -> bool:
        """Return whether the inventory has a host."""
        return host in self._nics

    def rack_of(self, host: str) -> str | None:
        """Return the rack of a host; None if the rack is unknown."""
        return next((nic["rack"] for nic in self._nics.get(host, {}).values() if nic["rack"]), None)

    def rails_of(self, host: str, subjects: Collection[str]) -> frozenset[int]:
        """Return the rails of the NICs of a host that are in `subjects`."""
        nics = self._nics.get(host, {})
        rails = (nics[subject]["rail"] for subject in subjects if subject in nics)
        return frozenset(rail for rail in rails if rail is not None)

    def leaves_of(self, host: str, subjects: Collection[str]) -> set[str]:
        """Return the leaf switches of a host's NICs in `subjects`; if none is there, of all its NICs.

        A leaf is named by its address, or else by rack and rail.
        """
        nics = self._nics.get(host, {})
        named_nics = [nics[subject] for subject in subjects if subject in nics] or list(nics.values())
        return {_leaf(nic) for nic in named_nics} or {""}


def _leaf(nic: Nic) -> str:
    return nic["first_hop"] or f"{nic['shard']}/{nic['rack'] or ''}/{nic['rail']}"


class NetworkFindings:
    """Identifies the audit failures of hosts that the network causes."""

    def __init__(
        self, audits: AuditHistory, places: Places, hosts_of: Callable[[Alert], Iterator[str]]
    ) -> None:
        """Keep the sources. `hosts_of`: returns the hosts that an alert concerns."""
        self._audits, self._places, self._hosts_of = audits, places, hosts_of
        self._alerts: dict[str, Alert] = {}

    def take_alert(self, alert: Alert) -> None:
        """Process a record of `fabric.alerts`."""
        if alert["state"] == AlertState.CLEARED:
            self._alerts.pop(alert["alert_id"], None)
        elif alert["kind"] in NETWORK_ALERTS:
            self._alerts[alert["alert_id"]] = alert

    def obstacle(self, host: str, outcome: Outcome, since_ns: int) -> str:
        """Return why the network explains a failed check of a host; empty if the host itself is at fault."""
        if outcome.category not in NETWORK:
            return ""
        for alert_id, alert in self._alerts.items():
            hosts = set(self._hosts_of(alert))
            if host in hosts and len(hosts) > 1:
                return (
                    f"{outcome.check}: a fault of the network: alert {alert_id} concerns {len(hosts)} hosts"
                )
        sharers = self._sharers(host, outcome, since_ns)
        if not sharers:
            return ""
        names = ", ".join(sharers[:MAX_NAMED]) + ("" if len(sharers) <= MAX_NAMED else " and more")
        return f"{outcome.check}: a fault of the network: {names} at the same leaf switch fail it too"

    def _sharers(self, host: str, outcome: Outcome, since_ns: int) -> list[str]:
        """Return the other hosts at the same leaf switch that fail the same check."""
        leaves = self._places.leaves_of(host, outcome.subjects)
        return [
            other
            for other in sorted(self._audits.failing.get(outcome.check, set()) - {host})
            if (newest := self._audits.newest(other, outcome.check, since_ns)) is not None
            and newest.is_failed
            and leaves & self._places.leaves_of(other, newest.subjects)
        ]
