"""Measures workload monitoring: the profilers' cost, the diagnosis of jobs, and the time of an explanation.

Each part is a module of this package. `fabrictime bench workload plugin [--quick]` runs one part.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fabrictime.bench import Target
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "workload"
PARTS: Final[Parts] = {
    "plugin": {
        "plugin_ns_per_event_p50": Target("1", "<=", 3),
        "plugin_ns_per_event_p99": Target("1", "<=", 12),
        "plugin_events_lost": Target("events", "<=", 0),
        "loss_counted_exactly": Target("1", ">=", 1.0),
        "sampled_split_error": Target("points", "<=", 2),
    },
    "mpi": {
        "job_slowdown": Target("1", "<=", 0.004),
        "trace_bytes_per_rank_hour": Target("B", "<=", 1_500_000),
        "real_job_diagnosis_right": Target("1", ">=", 0.95),
        "real_job_network_blamed_wrongly": Target("1", "<=", 0.005),
    },
    "explain": {
        "explain_answer_s": Target("s", "<=", 2),
        "explain_log_bytes": Target("B"),
    },
    "diagnosis": {
        "diagnosis_right": Target("1", ">=", 0.975),
        "calibration_error": Target("1", "<=", 0.05),
        "confidence_auroc": Target("1", ">=", 0.8),
        "verdict_changes_per_minute": Target("1/min", "<=", 1),
        "network_blamed_wrongly": Target("1", "<=", 0.005),
        "anomaly_s_p90": Target("s", "<=", 3.6),
        "root_cause_s_p60": Target("s", "<=", 8),
        "evaluate_256_ranks_ms": Target("ms", "<=", 20),
    },
    "postmortem": {
        "postmortem_right": Target("1", ">=", 0.9),
        "postmortem_false_causes": Target("folders"),
        "postmortem_folders": Target("folders"),
    },
}
TARGETS: Final = targets_of(PARTS)
run: Final = partial(measure_parts, NAME, PARTS)
