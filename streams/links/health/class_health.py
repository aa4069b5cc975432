"""Publishes the DSCPs that a shard's network changes: on how many routes, and where."""

from __future__ import annotations

from typing import Final

from schemas.records import HealthKind
from streams.links.evidence.path_table import Routes
from streams.links.health.subjects import SubjectTable
from streams.links.localise.rewritten import FRESH_NS, DscpChanges

MAX_CANDIDATES: Final = 64
"""Most places that one record lists; its text names fewer."""


def check_dscp_changes(table: SubjectTable, changes: DscpChanges, routes: Routes, now_ns: int) -> None:
    """Publish the DSCPs that the network changes and where, or that it changes none any more."""
    name = f"classes@{table.shard}"
    if changes.is_empty and name not in table.by_name:
        return
    if not changes.is_due(table.evidence.paths, now_ns):
        return
    rewritten = changes.find(table.evidence, routes, now_ns)
    if rewritten:
        texts = [change.text(table.clock(change.since_ns)) for change in rewritten]
        places = {place for change in rewritten for group in change.places for place in group}
        since_ns = min(change.since_ns for change in rewritten)
        candidates = tuple(sorted(places)[:MAX_CANDIDATES])
        table.report(name, HealthKind.CLASSES, "; ".join(texts), since_ns, now_ns, candidates)
    elif changes.is_empty and now_ns - table.evidence.first_event_ns >= FRESH_NS:
        # A new owner knows no change at first.
        table.end(name, "probes of all classes arrive with the DSCP with which they left", now_ns)
