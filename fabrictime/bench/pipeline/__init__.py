"""Measures the product as `fabrictime up` starts it: cores, ages of evidence, latencies, cost per message.

Each part starts a real `up` in a directory of its own and observes it from outside: processor time from
/proc, records from the log, stacks of the worker from a sampling profiler. So a part measures any commit, and
`fabrictime bench compare --against COMMIT pipeline PART` compares two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "pipeline"
TARGETS: Final[Mapping[str, Target]] = {
    "prober_cores": Target("cores", "<=", 0.02),
    "queue_evidence_age_s_p99": Target("s", "<=", 0.3),
    "queue_evidence_age_s_p99_busy": Target("s", "<=", 0.6),
    "worker_cores_sim64": Target("cores", "<=", 0.35),
    "transport_us_per_message_sim64": Target("us", "<=", 40),
    "operators_us_per_message_sim64": Target("us", "<=", 100),
    "inference_cores_sim64": Target("cores", "<=", 0.05),
    "nics_per_worker_core": Target("NICs", ">=", 160),
    "small_messages_per_core_s": Target("1/s", ">=", 20_000),
    "saturated_dead_link_ms_p50": Target("ms", "<=", 40),
    "tour_right_within_3s": Target("1", ">=", 1.0),
    "detection_to_first_move_s_p95": Target("s", "<=", 1.0),
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
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "default": ("prober_cores", "queue_evidence_age_s_p99"),
    "sim64": (
        "worker_cores_sim64",
        "transport_us_per_message_sim64",
        "operators_us_per_message_sim64",
        "inference_cores_sim64",
    ),
    "sim256": (),
    "faults": (),
    "saturated": ("saturated_dead_link_ms_p50",),
    "collision": (),
    "busy": ("queue_evidence_age_s_p99_busy",),
    "transport": ("small_messages_per_core_s",),
    "capacity": ("nics_per_worker_core",),
    "tour": ("tour_right_within_3s", "detection_to_first_move_s_p95"),
}
"""Keys of the figures that each part must return, by part; a part is a module with `measure(progress,
quick)`."""


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all if it is empty, one by one; return the figures by key."""
    return measure_parts(NAME, PARTS, parts, progress, quick)
