"""Measures the product as `fabrictime up` starts it: cores, ages of evidence, latencies, cost per message.

Each part starts a real `up` in a directory of its own and observes it from outside: processor time from
/proc, records from the log, stacks of the worker from a sampling profiler. So a part measures any commit, and
`fabrictime bench compare --against COMMIT pipeline PART` compares two.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from fabrictime.bench import Target
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "pipeline"
PARTS: Final[Parts] = {
    "default": {
        "prober_cores": Target("cores", "<=", 0.02),
        "queue_evidence_age_s_p99": Target("s", "<=", 0.3),
    },
    "sim64": {
        "worker_cores_sim64": Target("cores", "<=", 0.35),
        "transport_us_per_message_sim64": Target("us", "<=", 40),
        "operators_us_per_message_sim64": Target("us", "<=", 100),
        "inference_cores_sim64": Target("cores", "<=", 0.05),
    },
    "sim256": {},
    "faults": {
        f"{name}_ms_p{percent}": Target("ms") for name in ("dead_link", "failover") for percent in (50, 99)
    },
    "saturated": {
        "saturated_dead_link_ms_p50": Target("ms", "<=", 40),
    },
    "collision": {"contention_ms_p50": Target("ms"), "contention_ms_p99": Target("ms")},
    "busy": {
        "queue_evidence_age_s_p99_busy": Target("s", "<=", 0.6),
    },
    "transport": {
        "small_messages_per_core_s": Target("1/s", ">=", 20_000),
    },
    "capacity": {
        "nics_per_worker_core": Target("NICs", ">=", 160),
    },
    "tour": {
        "tour_right_within_3s": Target("1", ">=", 1.0),
        "detection_to_first_move_s_p95": Target("s", "<=", 1.0),
    },
}
RATIO_TARGETS: Final[Mapping[str, Target]] = {
    "cores": Target("x", "<=", 0.6),
    "inference_us_per_slot_and_link_sim64": Target("x", "<=", 0.15),
    "dead_link_ms_p50": Target("x", "<=", 1.05),
    "dead_link_ms_p99": Target("x", "<=", 1.2),
    "failover_ms_p50": Target("x", "<=", 1.05),
    "failover_ms_p99": Target("x", "<=", 1.2),
    "offsets_ms_p99": Target("x", "<=", 1.1),
}
"""Targets of `bench compare` against 89f413fc, for the median of the pairs."""
TARGETS: Final = targets_of(PARTS)
run: Final = partial(measure_parts, NAME, PARTS)
