"""Chart frames of the Actions tab, and its links to other tabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from fabrictime.state.action_entries import NS_PER_S, ActionEntry
from fabrictime.state.action_text import LINK_CAUSES, QUEUE_CAUSES, action_text, cause_text
from fabrictime.state.flow_history import Sample
from fabrictime.state.labels import arrow
from fabrictime.web.addresses import alert_address, contention_address, fabric_address
from schemas.ids import host_of
from schemas.reasons import Reason
from schemas.records import Alert

GAP_NS: Final = 2 * NS_PER_S
"""Time without a report after which the chart shows a gap, ns: reports arrive every second."""
MAX_LABEL: Final = 90


def cause_links(kind: str, reason: Reason, alerts: Iterable[Alert]) -> list[tuple[str, str]]:
    """Return (label, address) for each tab that shows the cause of a decision."""
    links: list[tuple[str, str]] = []
    subject = ""
    if kind in LINK_CAUSES and reason.subject:
        subject = reason.subject
        if "<>" in subject:
            address = fabric_address(link=subject.replace("<>", ">"))
            links.append((f"{arrow(subject)} in the fabric", address))
        else:
            host = host_of(subject)
            links.append((f"{host} in the fabric", fabric_address(node=host)))
    elif kind in QUEUE_CAUSES and reason.window_id:
        subject = reason.subject
        links.append((f"queue at {arrow(subject)}", contention_address(reason.window_id)))
    if subject:
        for alert in alerts:
            if subject == alert["subject"] or subject in alert["links"] or subject in alert["grouped"]:
                links.append((f"alert: {alert['text']}"[:MAX_LABEL], alert_address(alert["alert_id"])))
                break
    return links


def flow_history_frame(
    samples: Sequence[Sample], entries: Iterable[ActionEntry], flow_id: str, now_ns: int, span_ns: int
) -> dict[str, Any]:
    """Return the chart frame of one flow's last `span_ns`: rate, limit, round trip, path, and a mark for each
    action.

    Times are in ms. A null is a gap in the reports.
    """
    begin_ns = now_ns - span_ns
    t: list[int] = []
    rate: list[float | None] = []
    rtt: list[int | None] = []
    limit: list[int | None] = []
    path: list[int | None] = []
    before: Sample | None = None
    for sample in samples:
        if sample.end_ns < begin_ns:
            continue
        if before is not None and sample.start_ns > before.end_ns + GAP_NS:
            t.append(before.end_ns // 1_000_000 + 1)
            for column in (rate, rtt, limit, path):
                column.append(None)
        t.append(sample.end_ns // 1_000_000)
        rate.append(round(sample.rate_bps))
        rtt.append(sample.rtt_ns)
        limit.append(sample.limit_bps)
        path.append(sample.path)
        before = sample
    return {
        "flow": flow_id,
        "from": begin_ns // 1_000_000,
        "to": now_ns // 1_000_000,
        "t": t,
        "rate": rate,
        "rtt": rtt,
        "limit": limit,
        "path": path,
        "marks": [_mark(entry) for entry in entries if entry.at_ns >= begin_ns],
    }


def _mark(entry: ActionEntry) -> list[Any]:
    at_ns = entry.done_ns if entry.done and entry.done_ns is not None else entry.at_ns
    return [
        at_ns // 1_000_000,
        entry.kind,
        action_text(entry),
        entry.outcome,
        cause_text(entry.kind, entry.reason),
        int(entry.done),
        entry.decision_id,
    ]
