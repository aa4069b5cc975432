"""Records that policy reads, as its tests publish them."""

from __future__ import annotations

from typing import Any

from schemas import codec
from schemas.ids import cable_id
from schemas.records import ActionReport, ContentionWindow, LinkHealth
from tests.records import make

__all__ = ["action", "health", "window"]

FIELDS = ("host", "decision_id", "shard", "epoch", "seq", "flow_id", "action", "config_version")


def health(link: str, state: str, seq: int, at_ns: int, loss: float = 0.0, **more: Any) -> Any:
    """Return the health of a link's cable."""
    return _checked(
        LinkHealth,
        {
            "subject": cable_id(link) if ">" in link else link,
            "kind": "LINK",
            "shard": "sim",
            "seq": seq,
            "state": state,
            "before": "UP",
            "links": [link],
            "since_ns": at_ns,
            "evaluated_ns": at_ns,
            "loss_rate": loss or None,
            "detected_by": "PROBES",
            **more,
        },
    )


def window(link: str, state: str, kind: str, update: int, opened_ns: int, now_ns: int, **more: Any) -> Any:
    """Return a contention window of a link, without flows."""
    return _checked(
        ContentionWindow,
        {
            "link": link,
            "shard": "sim",
            "update": update,
            "state": state,
            "kind": kind,
            "confidence": 1.0,
            "opened_ns": opened_ns,
            "updated_ns": now_ns,
            "closed_ns": now_ns if state == "CLOSED" else None,
            **more,
        },
    )


def action(decision: dict[str, Any], at_ns: int, from_path: int, to_path: int, outcome: str) -> Any:
    """Return the report of a decision."""
    fields = {key: decision[key] for key in FIELDS}
    paths = {"from_path": from_path, "to_path": to_path}
    return _checked(ActionReport, {**fields, "at_ns": at_ns, "outcome": outcome, **paths, "took_ns": 1000})


def _checked(kind: type[Any], fields: dict[str, Any]) -> Any:
    return codec.decode(codec.encode(kind, make(kind, **fields)), kind)
