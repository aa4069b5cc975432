"""Arrow types of the history tables' columns."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from schemas import tables

__all__ = ["arrow_schema"]

_TIME: Final = pa.timestamp("ns", tz="UTC")
_INT: Final = pa.int64()
_COUNT: Final = pa.uint32()
_FIGURE: Final = pa.float32()
_EXACT: Final = pa.float64()
_TEXT: Final = pa.string()
_BYTES: Final = pa.binary()

_KIND_OF: Final[dict[str, pa.DataType]] = {
    "window_start": _TIME,
    "window_end": _TIME,
    "path": _COUNT,
    "count": _COUNT,
    "lost": _COUNT,
    "no_t3": _COUNT,
    "dscp": pa.uint8(),
    **dict.fromkeys(("ecn", "forward_ce", "reverse_ce"), _COUNT),
    "pairs": _COUNT,
    "nics": _COUNT,
    "batches": _COUNT,
    "lost_batches": _COUNT,
    "restarts": _COUNT,
    "part": _COUNT,
    "parts": _COUNT,
    "probe_port": _COUNT,
    "gone": pa.uint8(),
    "rail": pa.int32(),
    "partition": pa.int32(),
    "forward_bucket": pa.list_(pa.uint16()),
    "reverse_bucket": pa.list_(pa.uint16()),
    "forward_bucket_count": pa.list_(pa.uint32()),
    "reverse_bucket_count": pa.list_(pa.uint32()),
    "addresses": pa.list_(_TEXT),
    "capabilities": pa.list_(_TEXT),
    "networks": pa.list_(_TEXT),
    "path_ports": pa.list_(_COUNT),
    "accepted": _COUNT,
    **dict.fromkeys(
        (
            "drift_ppb",
            "offset_fraction_ns",
            "knot_offset_fraction_ns",
            "residual_ns",
            "event_ns",
            "knot_bound_ns",
            "asymmetry_ns",
            "weight",
        ),
        _EXACT,
    ),
    **dict.fromkeys(("margin_ns", "noise_ns"), _FIGURE),
    "key": _BYTES,
    "head": _BYTES,
    **dict.fromkeys(("since", "opened", "raised", "reported", "decided", "done", "checked", "began"), _TIME),
    **dict.fromkeys(
        (
            "links",
            "candidates",
            "jobs",
            "grouped",
            "flow_id",
            "flow_nic",
            "flow_peer",
            "flow_job",
            "evidence_topic",
            "evidence_key",
            "evidence_text",
            "can",
            "finding_subject",
            "finding_status",
            "finding_text",
            "fact_name",
            "fact_subject",
            "fact_text",
            "subjects",
            "evidence_subject",
            "evidence_quantity",
            "alternative_verdict",
            "alternative_subject",
            "alternative_text",
            "missing",
        ),
        pa.list_(_TEXT),
    ),
    **dict.fromkeys(
        ("flow_rate_bps", "flow_share", "alternative_confidence", "class_loss_rate"), pa.list_(_FIGURE)
    ),
    "class_dscp": pa.list_(pa.int32()),
    "class_is_lossy": pa.list_(pa.uint8()),
    **dict.fromkeys(("flap_ns", "evidence_at_ns"), pa.list_(_INT)),
    **dict.fromkeys(("fact_number", "evidence_number", "evidence_expected"), pa.list_(_EXACT)),
    "ranks": pa.list_(_COUNT),
    **dict.fromkeys(("synced", "from_flows", "complete", "blames_network"), pa.uint8()),
    **dict.fromkeys(
        (
            "flaps_hour",
            "max_packet_bytes",
            "paths_dead",
            "paths_living",
            "probers",
            "group",
            "flows_total",
            "source_port",
            "peer_port",
            "changes",
            "slot_probes",
            "from_path",
            "to_path",
            "checks",
            "ranks_seen",
            "ranks_total",
            "hosts",
            "rank",
        ),
        _COUNT,
    ),
    **dict.fromkeys(
        (
            "loss_rate",
            "loss_rate_low",
            "loss_rate_high",
            "depth_mean_bytes",
            "depth_max_bytes",
            "ce_share",
            "bound_bytes",
            "utilisation",
            "utilisation_bound",
            "depth_bytes",
            "depth_peak_bytes",
            "confidence",
            "busy_share",
            "receiver_limited_share",
            "sender_limited_share",
            "loss_share",
        ),
        _FIGURE,
    ),
    **dict.fromkeys(("over_byte_s", "bus_bps", "expected_bus_bps", "simulation_pace"), _EXACT),
    **dict.fromkeys(
        (
            "subject",
            "kind",
            "before",
            "detected_by",
            "text",
            "link",
            "window_id",
            "alert_id",
            "severity",
            "boot",
            "source_address",
            "peer_address",
            "protocol",
            "job",
            "tenant",
            "leg",
            "found",
            "contradiction",
            "first_hop",
            "egress",
            "decision_id",
            "action",
            "outcome",
            "reason_kind",
            "reason_subject",
            "reason_window_id",
            "how",
            "ud",
            "sku",
            "check",
            "category",
            "title",
            "status",
            "remedy",
            "verdict",
            "process",
            "communicator_id",
            "function",
            "algorithm",
        ),
        _TEXT,
    ),
    **dict.fromkeys(
        (
            "nic",
            "peer",
            "shard",
            "state",
            "domain",
            "clock",
            "source",
            "host",
            "device",
            "rack",
            "stamp",
            "topic",
            "reader",
            "reason",
            "detail",
            "event",
            "reference",
            "prober",
        ),
        _TEXT,
    ),
    **{
        f"{kind}_{level}_ns": _FIGURE
        for kind in ("forward", "reverse", "rtt")
        for level in ("min", "p50", "p99")
    },
}
"""Arrow type by column, for columns other than int64."""

_KIND_IN: Final[dict[tuple[str, str], pa.DataType]] = {
    (tables.DELAYS, "bound_ns"): _FIGURE,
    (tables.CLOCKS, "bound_ns"): _EXACT,
    (tables.CLOCKS, "drift_sigma_ppb"): _EXACT,
    (tables.NIC_WINDOWS, "lost"): _INT,
    (tables.PAIR_FITS, "samples"): _COUNT,
    (tables.PAIR_FITS, "sigma_ns"): _FIGURE,
    (tables.PAIR_FITS, "drift_sigma_ppb"): _FIGURE,
    (tables.SUSPECTS, "sigma_ns"): _EXACT,
    (tables.LINK_QUEUES, "samples"): _COUNT,
    (tables.CONTENTION, "delay_ns"): _FIGURE,
    (tables.ALERTS, "nics"): pa.list_(_TEXT),
    (tables.FLOWS, "flow_id"): _TEXT,
    (tables.FLOWS, "rate_bps"): _EXACT,
    (tables.AUDIT, "run"): _TEXT,
    (tables.DIAGNOSES, "nics"): pa.list_(_TEXT),
    (tables.DIAGNOSES, "bound_ns"): _EXACT,
    (tables.JOB_FLOWS, "rate_bps"): _EXACT,
    (tables.JOB_FLOWS, "paths"): _COUNT,
    (tables.COLLECTIVES, "count"): _INT,
    (tables.JOB_NICS, "queue_pairs"): _COUNT,
    **{(table, "flow_id"): _TEXT for table in (tables.DECISIONS, tables.ACTIONS)},
}
"""Arrow type by table and column, where one column name has two types."""


def arrow_schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table's rows, columns in the table's order."""
    return pa.schema(
        [
            (name, _KIND_IN.get((table, name), _KIND_OF.get(name, _INT)))
            for name in tables.TABLES[table].column_names
        ]
    )
