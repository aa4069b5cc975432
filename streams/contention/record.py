"""Builds `ContentionWindow` records, with a description in one line of text."""

from __future__ import annotations

from typing import Any, Final

from schemas.ids import end_parts, window_id
from schemas.records import ContendingFlow, ContentionKind, ContentionState, ContentionWindow
from streams.contention.classify import LinkView, Views, best_kind, links_behind, root_of
from streams.contention.rules import ASSUMED_BPS, MAX_FLOWS
from streams.contention.window import Place, Window, weighty_flows
from streams.runtime.flow_table import FlowOnLink

KIND_TEXT: Final = {
    ContentionKind.COLLISION: "fabric collision",
    ContentionKind.INCAST: "incast",
    ContentionKind.SLOW_SENDER: "slow sender",
    ContentionKind.SLOW_RECEIVER: "slow receiver",
    ContentionKind.PAUSE_STORM: "pause storm",
    ContentionKind.UNKNOWN: "no cause found",
}


def signature(window: Window, view: LinkView) -> tuple[Any, ...]:
    """Return a record's kind, evidence and flows: a change of any makes a new record due early."""
    return (
        window.kind,
        window.detected_by,
        frozenset(flow.flow_id for flow in weighty_flows(view.flows)[:MAX_FLOWS]),
    )


def make_record(
    shard: str, view: LinkView, views: Views, state: ContentionState, end_ns: int, *, lost: bool = False
) -> ContentionWindow:
    """Return the record of a link's window; restart its sums. `lost`: it closes because data is missing."""
    link, window = view.link, view.link.window
    if window is None:
        raise ValueError(f"{link.name} has no open window")
    closing = state == ContentionState.CLOSED
    kind, confidence = best_kind(window.scores, window.score_ns)
    span_ns = window.since_published_ns
    depth_bytes = window.depth_bytes_ns / span_ns if span_ns else 0.0
    flows, links = _flow_records(view.flows), _common_links(view, views, kind)
    total = len(weighty_flows(view.flows))
    if closing and window.last is not None:
        flows, links, total = window.last["flows"], window.last["links"], window.last["flows_total"]
    window.update += 1
    closed_ns = max(link.queued_until_ns or link.quiet.since_ns, window.opened_ns) if closing else None
    record: ContentionWindow = {
        "window_id": window_id(shard, link.name, window.opened_ns),
        "link": link.name,
        "shard": shard,
        "update": window.update,
        "state": state,
        "kind": kind,
        "confidence": confidence,
        "opened_ns": window.opened_ns,
        "updated_ns": end_ns,
        "closed_ns": closed_ns,
        "depth_bytes": depth_bytes,
        "depth_peak_bytes": window.peak_bytes,
        "delay_ns": depth_bytes * 8e9 / (link.rate_bps or ASSUMED_BPS),
        "utilisation": window.utilisation,
        "over_ns": window.over_ns,
        "over_byte_s": window.over_byte_s,
        "rate_bps": link.rate_bps,
        "flows": flows,
        "flows_total": total,
        "jobs": sorted({flow["job"] for flow in flows if flow["job"] is not None}),
        "links": links,
        "candidates": list(link.candidates[:MAX_FLOWS]),
        "text": "",
        "detected_by": window.detected_by,
        "ce_share": min(1.0, window.ce_share_ns / span_ns) if span_ns else 0.0,
        "dscp": link.dscp,
    }
    unsure = 0 if closing else sum(not link_flow.certain for link_flow in view.flows)
    record["text"] = _text(record, link.place, unsure, lost=lost)
    window.published_ns, window.published = end_ns, signature(window, view)
    window.depth_bytes_ns = window.ce_share_ns = 0.0
    window.since_published_ns = 0
    if flows or window.last is None:
        window.last = record
    return record


def _flow_records(flows: list[FlowOnLink]) -> list[ContendingFlow]:
    """Return a record of each flow that certainly crosses the link, in the given order, heaviest first."""
    certain = weighty_flows(flows)
    total = sum(flow.rate_bps for flow in certain)
    return [
        {
            "flow_id": flow.flow_id,
            "job": flow.job,
            "tenant": flow.tenant,
            "nic": flow.nic,
            "peer": flow.peer,
            "rate_bps": flow.rate_bps,
            "share": flow.rate_bps / total if total else 0.0,
        }
        for flow in certain[:MAX_FLOWS]
    ]


def _common_links(view: LinkView, views: Views, kind: ContentionKind) -> list[str]:
    """Return the links whose queues have the same cause as this link's."""
    if kind not in (ContentionKind.PAUSE_STORM, ContentionKind.INCAST):
        return []
    root = view if view.link.place.receiver is not None else root_of(view, views)
    if root is None:
        return []
    behind = links_behind(root, views)
    return sorted({root.link.name, *behind}) if behind else []


# ------------------------------------------------------------------------------------------- text


def _text(record: ContentionWindow, place: Place, unsure: int, *, lost: bool) -> str:
    """Describe a queue and its cause in one line. `lost`: the window closes because data is missing."""
    near, _, far = record["link"].partition(">")
    names = [nic or end_parts(end).node for nic, end in ((place.sender, near), (place.receiver, far))]
    parts = [f"{names[0]} to {names[1]}: {KIND_TEXT[record['kind']]}", _flows_text(record, unsure)]
    if record["jobs"]:
        parts.append(f"job {' and '.join(record['jobs'][:3])}")
    if record["closed_ns"] is not None:
        lasted_s = (record["closed_ns"] - record["opened_ns"]) / 1e9
        parts.append(f"over after {lasted_s:.2f} s" if not lost else "no longer measured")
        parts.append(f"at most {_bytes(record['depth_peak_bytes'])}")
    elif record["depth_bytes"] > 0:
        parts.append(f"{_bytes(record['depth_bytes'])} queued, {record['delay_ns'] / 1e3:.0f} us")
    if record["ce_share"] > 0:
        parts.append(f"{100 * record['ce_share']:.0f}% marked with CE")
    if record["dscp"]:
        parts.append(f"class DSCP {record['dscp']}")
    if record["candidates"]:
        candidates = record["candidates"]
        more = f" and {len(candidates) - 2} more" if len(candidates) > 2 else ""
        parts.append(f"aliased with {', '.join(candidates[:2])}{more}")
    return ", ".join(parts)


def _flows_text(record: ContentionWindow, unsure: int) -> str:
    if record["flows_total"]:
        senders = len({flow["nic"] for flow in record["flows"]})
        count = record["flows_total"]
        return f"{count} flow{'s' * (count > 1)} of {senders} sender{'s' * (senders > 1)}"
    if unsure:
        return f"{unsure} flow{'s' * (unsure > 1)} may cross it"
    return "no reported flow"


def _bytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
