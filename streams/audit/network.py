"""Checks of the fabric, by the records of the product's topics: one rule and one function for each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Final

from schemas.records import AuditAction, AuditResult, AuditSeverity
from streams.audit.agreement import classes, ecn, egress, mtus
from streams.audit.cabling import Cabling
from streams.audit.causes import one_error_per_cause
from streams.audit.clock_quality import clock_quality
from streams.audit.connectivity import connectivity
from streams.audit.ecmp import uplinks
from streams.audit.fabric_records import FabricRecords
from streams.audit.leaves import leaves_by_delay, leaves_by_route, traced_cables
from streams.audit.link_state import link_health, link_history, link_queues
from streams.audit.path_delays import asymmetries, one_way_delays
from streams.audit.rail_reach import rail_reach
from streams.audit.rails import rails
from streams.audit.results import Found, Rule, Scope, results_of

__all__ = ["RULES", "fabric_results"]

_ERROR, _WARNING = AuditSeverity.ERROR, AuditSeverity.WARNING

RULES: Final = tuple(
    Rule(f"fabric.{name}", title, severity, action, remedy)
    for name, title, severity, action, remedy in (
        (
            "connectivity",
            "Every NIC reaches every other",
            _ERROR,
            AuditAction.ISOLATE,
            "Check the NIC's port, address and route; `fabrictime links` names dead links",
        ),
        (
            "rails",
            "Every NIC is on a leaf of its rail",
            _ERROR,
            AuditAction.MONITOR,
            "Move the cable to the leaf of the NIC's rail",
        ),
        (
            "cables",
            "Cables are as in the topology file",
            _ERROR,
            AuditAction.MONITOR,
            "Move the cable, or correct the topology file",
        ),
        (
            "uplinks",
            "Routes use all uplinks of a leaf",
            _WARNING,
            AuditAction.MONITOR,
            "Check that the uplink is up and in the routing protocol's equal-cost group",
        ),
        (
            "delay",
            "One-way delays are as on other paths of equal length",
            _WARNING,
            AuditAction.MONITOR,
            "Check length and transceiver of the cable, and FEC and queueing of the port",
        ),
        (
            "asymmetry",
            "Paths take equally long in both directions",
            _WARNING,
            AuditAction.MONITOR,
            "Check the fibres of both directions, and the timestamps of the NIC",
        ),
        (
            "clocks",
            "Clocks of NICs are synchronised to fabric time",
            _WARNING,
            AuditAction.RESET,
            "`fabrictime clock` gives the state; check the NIC's timestamps and its probes",
        ),
        (
            "links",
            "No link is dead, grey or flapping",
            _ERROR,
            AuditAction.REPLACE,
            "Replace cable or transceiver; `fabrictime links` gives the evidence",
        ),
        (
            "link-history",
            "No link was dead, grey or flapping since the last audit",
            _WARNING,
            AuditAction.MONITOR,
            "Reseat or clean the cable; replace it if the link goes down again",
        ),
        (
            "queues",
            "Queues are as long as on links that are as busy",
            _WARNING,
            AuditAction.MONITOR,
            "Compare the link's rate and its share of hashed flows with the others",
        ),
        (
            "mtu",
            "NICs of a rail have the same MTU",
            _ERROR,
            AuditAction.MONITOR,
            "ip link set dev INTERFACE mtu MTU, and in the network's configuration",
        ),
        (
            "egress",
            "Packets of a NIC leave by that NIC",
            _ERROR,
            AuditAction.MONITOR,
            "Add a policy rule for the NIC's address, with a routing table of its own: `ip rule`",
        ),
        (
            "rail-reach",
            "NICs of a rail reach each other by their own device",
            _ERROR,
            AuditAction.MONITOR,
            "Add the rail's route to the table of the NIC's address: ip route add NETWORK via GATEWAY "
            "dev INTERFACE table N",
        ),
        (
            "ecn",
            "Packets stay ECN-capable on the way",
            _WARNING,
            AuditAction.MONITOR,
            "Find the host or switch that clears the ECN field: firewall rules, tunnels, QoS policies",
        ),
        (
            "classes",
            "All NICs probe the same traffic classes",
            _WARNING,
            AuditAction.MONITOR,
            "Set probes.classes alike on all hosts, and restart the agent",
        ),
    )
)
"""All checks of the fabric, in the order of the report."""


def fabric_results(fabric: FabricRecords, scope: Scope, only: Iterable[str] = ()) -> list[AuditResult]:
    """Return the results of the fabric's checks, of all or of those with these ids.

    Findings of links between switches have the host `fleet`. A fault that two of the checks find is one
    error.
    """
    chosen = frozenset(only)
    finders = _finders(fabric)
    return one_error_per_cause(
        result
        for rule in RULES
        if not chosen or rule.check in chosen
        for result in results_of(rule, finders[rule.check](), scope)
    )


def _finders(fabric: FabricRecords) -> dict[str, Callable[[], Iterator[Found]]]:
    traced = cache(partial(traced_cables, fabric))

    @cache
    def wired() -> Cabling:
        return Cabling(fabric, traced())

    def on_rails() -> Iterator[Found]:
        leaf_of = leaves_by_route(fabric) or leaves_by_delay(fabric)
        return rails(fabric, leaf_of, traced(), wired().swaps)

    finders: dict[str, Callable[[], Iterator[Found]]] = {
        "connectivity": partial(connectivity, fabric),
        "rails": on_rails,
        "cables": lambda: wired().findings(),
        "uplinks": partial(uplinks, fabric),
        "delay": partial(one_way_delays, fabric),
        "asymmetry": partial(asymmetries, fabric),
        "clocks": partial(clock_quality, fabric),
        "links": partial(link_health, fabric),
        "link-history": partial(link_history, fabric),
        "queues": partial(link_queues, fabric),
        "mtu": partial(mtus, fabric),
        "egress": partial(egress, fabric),
        "rail-reach": partial(rail_reach, fabric),
        "ecn": partial(ecn, fabric),
        "classes": partial(classes, fabric),
    }
    return {f"fabric.{name}": find for name, find in finders.items()}
