"""Runs the checks of the fabric on records of the product's topics: one rule and one function each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Final

from schemas.audit_remedy import remedy
from schemas.records import AuditResult
from streams.audit.causes import one_error_per_cause
from streams.audit.fabric.agreement import classes, ecn, egress, mtus
from streams.audit.fabric.cabling import Cabling
from streams.audit.fabric.clock_quality import clock_quality
from streams.audit.fabric.connectivity import connectivity
from streams.audit.fabric.ecmp import uplinks
from streams.audit.fabric.leaves import leaves_by_delay, leaves_by_route, traced_cables
from streams.audit.fabric.link_state import link_health, link_history, link_queues
from streams.audit.fabric.path_delays import asymmetries, one_way_delays
from streams.audit.fabric.rail_reach import rail_reach
from streams.audit.fabric.rails import rails
from streams.audit.fabric.records import FabricRecords
from streams.audit.fabric.transport import job_transports
from streams.audit.hosts.trends import part_trends
from streams.audit.results import Found, Scope, error, results_of, rule_of, warning


@error("fabric.rails", "Every NIC is on a leaf of its rail")
@remedy.monitor("Move the cable to the leaf of the NIC's rail")
def _rails(fabric: FabricRecords, cabling: Callable[[], Cabling]) -> Iterator[Found]:
    leaf_of = leaves_by_route(fabric) or leaves_by_delay(fabric)
    return rails(fabric, leaf_of, cabling().actual, cabling().swaps)


@error("fabric.cables", "Cables are as in the topology file", 44)
@remedy.monitor("Move the cable, or correct the topology file")
def _cables(_: FabricRecords, cabling: Callable[[], Cabling]) -> Iterator[Found]:
    return cabling().findings()


@warning("fabric.trends", "No link or module approaches its limit, or fails again and again", 16, 17, 65)
@remedy.monitor("Clean and reseat the connector, else replace the part before the day that the text names")
def _trends(fabric: FabricRecords) -> Iterator[Found]:
    return part_trends(fabric.history)


_FINDERS: Final[tuple[Callable[..., Iterator[Found]], ...]] = (
    connectivity,
    _rails,
    _cables,
    uplinks,
    one_way_delays,
    asymmetries,
    clock_quality,
    link_health,
    link_history,
    link_queues,
    mtus,
    egress,
    rail_reach,
    ecn,
    classes,
    job_transports,
    _trends,
)
RULES: Final = tuple(map(rule_of, _FINDERS))
"""All checks of the fabric, in the order of the report."""


def fabric_results(fabric: FabricRecords, scope: Scope, only: Iterable[str] = ()) -> list[AuditResult]:
    """Return the results of all checks of the fabric, or only of those with the ids in `only`.

    Findings about links between switches have the host `fleet`. A fault that two checks find is one error.
    """
    check_ids = frozenset(only)
    cabling = cache(lambda: Cabling(fabric, traced_cables(fabric)))
    return one_error_per_cause(
        result
        for find, declared in zip(_FINDERS, RULES, strict=True)
        if not check_ids or declared.check in check_ids
        for result in results_of(
            declared, find(fabric, cabling) if find in (_rails, _cables) else find(fabric), scope
        )
    )
