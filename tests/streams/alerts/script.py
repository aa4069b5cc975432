"""Scripts of a shard's records, and the alerts that they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from native.core import bucket_of
from schemas import codec
from schemas.topics import ALERTS, CLOCK_OFFSETS, CONTENTION, DELAYS, LINK_HEALTH
from streams.alerts.book import Published
from streams.alerts.shard_alerts import ShardAlerts
from streams.runtime.thresholds import Thresholds

MS = 1_000_000
S = 1_000_000_000
T0 = 1_760_000_000 * S
SHIFT = 7_000
"""Fabric time minus the log's."""

RULE = {"name": "gold", "from_group": "h1", "to_group": "h2", "p99_us": 20.0, "for_s": 5.0}

Input = tuple[str, str, dict[str, Any] | None, int]


def cable(leaf: int, spine: int) -> str:
    return f"leaf{leaf}:swp{spine + 2}<>spine{spine}:swp{leaf}"


def access(host: int) -> str:
    return f"h{host}:eth1<>leaf{(host + 1) // 2}:swp{2 - host % 2}"


class Script:
    """Writes the records that a shard's other stages would."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.now_ns = T0
        self._seq: dict[str, int] = {}
        self.flap_ns: dict[str, list[int]] = {}
        """Times at which each subject went down, ns."""

    def wait(self, seconds: float) -> Script:
        self.now_ns += round(seconds * S)
        return self

    def health(self, subject: str, state: str, kind: str = "LINK", loss: float = 0.0, **more: Any) -> Script:
        seq = self._seq[subject] = self._seq.get(subject, 0) + 1
        at_ns = self.now_ns + SHIFT
        flap_ns = self.flap_ns.setdefault(subject, [])
        flap_ns += [at_ns] if state == "DOWN" else []
        record = {
            "subject": subject, "kind": kind, "shard": "fabric", "seq": seq, "state": state, "before": "UP",
            "links": [subject.replace("<>", ">")] if kind == "LINK" else [],
            "candidates": more.get("candidates", []),
            "since_ns": at_ns - 20 * MS, "evaluated_ns": at_ns, "loss_rate": loss or None,
            "classes": [],
            "max_packet_bytes": None,
            "flaps_hour": len(flap_ns), "flaps_total": len(flap_ns), "flap_ns": list(flap_ns),
            "detected_by": "PROBES",
            "text": f"{subject} is {state}",
        }  # fmt: skip
        codec.encode(LINK_HEALTH.record, record)
        self.inputs.append((LINK_HEALTH.name, subject, record, self.now_ns))
        return self

    def forget(self, subject: str) -> Script:
        self.inputs.append((LINK_HEALTH.name, subject, None, self.now_ns))
        return self

    def queue(self, link: str, state: str, opened_s: float, kind: str = "INCAST", **more: Any) -> Script:
        at_ns, opened_ns = self.now_ns + SHIFT, T0 + SHIFT + round(opened_s * S)
        record = {
            "window_id": f"fabric/{link}/{opened_ns}", "link": link, "shard": "fabric", "update": 1,
            "state": state, "kind": kind, "confidence": 1.0, "opened_ns": opened_ns, "updated_ns": at_ns,
            "closed_ns": at_ns if state == "CLOSED" else None, "depth_bytes": 1.0, "depth_peak_bytes": 2.0,
            "delay_ns": 1.0, "over_ns": 0, "over_byte_s": 0.0, "rate_bps": 0, "flows": [], "jobs": ["j1"],
            "links": more.get("links", []), "text": f"queue at {link}",
        }  # fmt: skip
        codec.encode(CONTENTION.record, record)
        self.inputs.append((CONTENTION.name, link, record, self.now_ns))
        return self

    def clocks(self, states: Sequence[str], log_offset_ns: int = 0) -> Script:
        window = self.now_ns // S
        record = {
            "shard": "fabric", "window": window, "part": 0, "parts": 1,
            "window_start_ns": window * S + SHIFT, "window_end_ns": (window + 1) * S + SHIFT,
            "clocks": [{"clock": f"h{i + 1}/system", "state": state} for i, state in enumerate(states)],
            "log_offset_ns": log_offset_ns,
        }  # fmt: skip
        self.inputs.append((CLOCK_OFFSETS.name, "fabric/0", record, self.now_ns))
        return self


def book(**thresholds: float) -> ShardAlerts:
    cables = {"leaf1": 6, "leaf2": 6, "leaf3": 6, "leaf4": 6} | {f"spine{i}": 4 for i in range(1, 5)}
    return ShardAlerts("fabric", Thresholds(thresholds), lambda node: cables.get(node, 0))


def ingest(alerts: ShardAlerts, topic: str, key: str, record: Any, append_ns: int) -> Published:
    if topic == DELAYS.name:
        return alerts.ingest_delays(record)
    if topic == LINK_HEALTH.name:
        return alerts.ingest_health(key, record, append_ns)
    if topic == CONTENTION.name:
        return alerts.ingest_contention(record, append_ns)
    return alerts.ingest_clocks(record, append_ns)


def play(inputs: Sequence[Input], alerts: ShardAlerts | None = None, rest_s: float = 700) -> list[Any]:
    """Every alert record of some inputs, in the order in which it is published."""
    alerts = alerts or book()
    found = []
    for topic, key, record, append_ns in inputs:
        found += ingest(alerts, topic, key, record, append_ns)
    found += alerts.evaluate(inputs[-1][3] + round(rest_s * S))
    for key, record in found:
        codec.encode(ALERTS.record, record)
        assert key == record["alert_id"]
    return [record for _, record in found]


def lines(records: Sequence[Any]) -> list[tuple[str, str, str]]:
    return [(r["kind"], r["subject"], r["state"]) for r in records]


def slow(window: int, us: float) -> Input:
    """Return one second of h1's measured delays: all probes to h2 took this long."""
    start_ns = T0 + window * S
    legs = {
        f"{leg}_{key}": value
        for leg, each in (("forward", 1e3 * us), ("reverse", 3e3))
        for key, value in (
            ("min_ns", each), ("p50_ns", each), ("p99_ns", each), ("bucket", [bucket_of(each)]),
            ("bucket_count", [100]),
        )
    }  # fmt: skip
    path = {
        "peer": "h2/eth1", "path": 9320, "count": 100, "lost": 0, "no_t3": 0, "rtt_min_ns": 6e3,
        "rtt_p50_ns": 6e3, "rtt_p99_ns": 6e3, "bound_ns": 50.0, **legs,
    }  # fmt: skip
    record = {
        "nic": "h1/eth1", "shard": "fabric", "window": window, "part": 0, "parts": 1,
        "window_start_ns": start_ns, "window_end_ns": start_ns + S, "state": "SYNCED", "paths": [path],
    }  # fmt: skip
    codec.encode(DELAYS.record, record)
    return (DELAYS.name, "h1/eth1", record, start_ns + S + 100 * MS)
