"""Measures workload monitoring: the profilers' cost, the diagnosis of jobs, and the time of an explanation.

Each part is a module of this package. `fabrictime bench workload plugin [--quick]` runs one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "workload"
TARGETS: Final[Mapping[str, Target]] = {
    "plugin_ns_per_event_p50": Target("1", "<=", 3),
    "plugin_ns_per_event_p99": Target("1", "<=", 12),
    "plugin_events_lost": Target("events", "<=", 0),
    "loss_counted_exactly": Target("1", ">=", 1.0),
    "sampled_split_error": Target("points", "<=", 2),
    "job_slowdown": Target("1", "<=", 0.004),
    "trace_bytes_per_rank_hour": Target("B", "<=", 1_500_000),
    "real_job_diagnosis_right": Target("1", ">=", 0.95),
    "real_job_network_blamed_wrongly": Target("1", "<=", 0.005),
    "explain_answer_s": Target("s", "<=", 2),
    "explain_log_bytes": Target("B"),
    "diagnosis_right": Target("1", ">=", 0.975),
    "calibration_error": Target("1", "<=", 0.05),
    "confidence_auroc": Target("1", ">=", 0.8),
    "verdict_changes_per_minute": Target("1/min", "<=", 1),
    "network_blamed_wrongly": Target("1", "<=", 0.005),
    "anomaly_s_p90": Target("s", "<=", 3.6),
    "root_cause_s_p60": Target("s", "<=", 8),
    "evaluate_256_ranks_ms": Target("ms", "<=", 20),
    "postmortem_right": Target("1", ">=", 0.9),
    "postmortem_false_causes": Target("folders"),
    "postmortem_folders": Target("folders"),
}

PARTS: Final[Mapping[str, Sequence[str]]] = {
    "plugin": (
        "plugin_ns_per_event_p50",
        "plugin_ns_per_event_p99",
        "plugin_events_lost",
        "loss_counted_exactly",
        "sampled_split_error",
    ),
    "mpi": (
        "job_slowdown",
        "trace_bytes_per_rank_hour",
        "real_job_diagnosis_right",
        "real_job_network_blamed_wrongly",
    ),
    "explain": ("explain_answer_s", "explain_log_bytes"),
    "diagnosis": (
        "diagnosis_right",
        "calibration_error",
        "confidence_auroc",
        "verdict_changes_per_minute",
        "network_blamed_wrongly",
        "anomaly_s_p90",
        "root_cause_s_p60",
        "evaluate_256_ranks_ms",
    ),
    "postmortem": ("postmortem_right", "postmortem_false_causes", "postmortem_folders"),
}
"""Keys of the figures that each part must return, by part; a part is a module with `measure(progress,
quick)`."""


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all if it is empty, one by one; return the figures by key."""
    return measure_parts(NAME, PARTS, progress, quick, parts)
