"""Publishes the links that drop large packets, or possible causes if no known link explains the drops."""

from __future__ import annotations

from schemas.ids import cable_id
from schemas.records import DetectedBy, HealthKind
from schemas.topology import Topology
from streams.links.evidence.path_table import Routes
from streams.links.health.subjects import SubjectTable
from streams.links.localise.sizes import MAX_WAIT_NS, PathSizes
from streams.links.localise.unnamed_sizes import find_unnamed_limit, unnamed_limits


def check_size_limits(
    table: SubjectTable, sizes: PathSizes, routes: Routes, topology: Topology, now_ns: int
) -> None:
    """Publish links that begin or cease to drop large packets, and limits that no known link explains."""
    name = f"sizes@{table.shard}"
    limited = [s for s in table.by_name.values() if s.size_limits]
    if not (sizes.any_limited or limited or name in table.by_name):
        return
    sizes.forget(now_ns)
    for limit in sizes.limits(routes, now_ns):
        s = table.get(cable_id(limit.link), HealthKind.LINK)
        if not table.is_settled(s) and not s.dead:
            table.set_size_limit(s, limit, now_ns)
    for s in limited:
        over = [link for link, limit in s.size_limits.items() if sizes.disproves(limit, routes)]
        for link in over:
            del s.size_limits[link]
        if over and not table.is_settled(s):
            table.settle(s, now_ns, now_ns, DetectedBy.PROBES)
    _check_unnamed(table, sizes, routes, topology, now_ns)


def _check_unnamed(
    table: SubjectTable, sizes: PathSizes, routes: Routes, topology: Topology, now_ns: int
) -> None:
    name = f"sizes@{table.shard}"
    named = {link for s in table.by_name.values() for link in s.size_limits}
    limited = unnamed_limits(sizes, routes, named)
    unnamed_limit = find_unnamed_limit(limited, sizes, routes, topology, now_ns)
    if unnamed_limit is not None:
        text = unnamed_limit.text(table.clock(unnamed_limit.since_ns))
        table.report(
            name,
            HealthKind.PATHS,
            text,
            unnamed_limit.since_ns,
            now_ns,
            unnamed_limit.candidates,
            unnamed_limit.passed_bytes,
        )
    elif not limited and now_ns - sizes.first_ns >= MAX_WAIT_NS:  # a new owner knows no results at first
        table.end(name, "large packets pass again, or a known link explains where they do not", now_ns)
