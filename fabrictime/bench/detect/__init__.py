"""Measures detection against known truth: paths, links, queues and contention.

Each part is a module of this package. Some run on the fabric of real packets, some on the simulated fleet.
`fabrictime bench detect queues [--quick]` runs one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "detect"
TARGETS: Final[Mapping[str, Target]] = {
    "topology_links_found": Target("1", ">=", 1.0),
    "topology_links_found_after_move": Target("1", ">=", 1.0),
    "dead_link_detect_ms_p50": Target("ms", "<=", 40),
    "dead_link_detect_ms_p99": Target("ms", "<=", 120),
    "link_probed_every_ms": Target("ms", "<=", 5),
    "flow_route_probed_every_ms": Target("ms", "<=", 5),
    "agents_probes_per_second": Target("1/s", "<=", 10_000),
    "dead_link_localised_right": Target("1", ">=", 0.99),
    "dead_link_false": Target("1", "<=", 0.001),
    "grey_link_5pct_detect_s_p95": Target("s", "<=", 2),
    "false_alarms_10min": Target("alarms", "<=", 0),
    "flap_count_exact": Target("1", ">=", 1.0),
    "contention_open_ms_p95": Target("ms", "<=", 150),
    "contention_close_ms_p95": Target("ms", "<=", 1_000),
    "contention_link_right": Target("1", ">=", 0.98),
    "contention_kind_right": Target("1", ">=", 0.95),
    "contention_kind_right_without_reports": Target("1", ">=", 0.9),
    "queue_error_bytes_rms": Target("bytes", "<=", 4_000),
    "utilisation_error_1s": Target("1", "<=", 0.01),
    "utilisation_error_10s_probes_alone": Target("1", "<=", 0.03),
    "queue_inference_realtime_factor_1ms": Target("x", ">=", 0.5),
    "queue_inference_realtime_factor_10ms": Target("x", ">=", 2),
    "inference_vs_sklearn": Target("x", ">=", 20),
    "inference_us_per_slot_link": Target("us"),
    "inference_cores_sim64": Target("cores", "<=", 0.05),
    "queue_rms_over_perfect_probe_4000pps_batch8": Target("1", "<=", 1.25),
    "queue_rms_over_perfect_probe_4000pps_batch48": Target("1", "<=", 1.25),
    "queue_rms_over_perfect_probe_2000pps_batch8": Target("1", "<=", 1.25),
    "queue_rms_over_perfect_probe_2000pps_batch48": Target("1", "<=", 1.25),
    "queue_rms_over_perfect_probe_1000pps_batch8": Target("1", "<=", 1.25),
    "queue_rms_over_perfect_probe_1000pps_batch48": Target("1", "<=", 1.25),
    "queue_rms_over_last_slot": Target("1", "<=", 0.9),
    "idle_link_slots_above_3kb": Target("1", "<=", 0.02),
    "depth_above_probe_evidence": Target("slots", "<=", 0),
    "bound_bytes_coverage": Target("1", ">=", 0.95),
    "utilisation_bound_coverage": Target("1", ">=", 0.95),
    "slots_published": Target("1", ">=", 0.999),
    "cost_per_block_1s_behind_over_none": Target("1", "<=", 1.1),
    "false_queue_after_clock_step_s": Target("s", "<=", 0),
    "standing_queue_found_4000pps_with_reports": Target("1", ">=", 1.0),
    "standing_queue_found_4000pps_without_reports": Target("1", ">=", 1.0),
    "standing_queue_found_2000pps_with_reports": Target("1", ">=", 1.0),
    "standing_queue_found_2000pps_without_reports": Target("1", ">=", 1.0),
    "standing_queue_found_1000pps_with_reports": Target("1", ">=", 1.0),
    "standing_queue_found_1000pps_without_reports": Target("1", ">=", 1.0),
    "standing_queue_link_right_4000pps_with_reports": Target("1", ">=", 0.98),
    "standing_queue_link_right_4000pps_without_reports": Target("1", ">=", 0.98),
    "standing_queue_link_right_2000pps_with_reports": Target("1", ">=", 0.98),
    "standing_queue_link_right_2000pps_without_reports": Target("1", ">=", 0.98),
    "standing_queue_link_right_1000pps_with_reports": Target("1", ">=", 0.98),
    "standing_queue_link_right_1000pps_without_reports": Target("1", ">=", 0.98),
    "standing_queue_opened_ms_p95_4000pps_with_reports": Target("ms", "<=", 150),
    "standing_queue_opened_ms_p95_4000pps_without_reports": Target("ms", "<=", 150),
    "standing_queue_opened_ms_p95_2000pps_with_reports": Target("ms", "<=", 150),
    "standing_queue_opened_ms_p95_2000pps_without_reports": Target("ms", "<=", 150),
    "standing_queue_opened_ms_p95_1000pps_with_reports": Target("ms", "<=", 150),
    "standing_queue_opened_ms_p95_1000pps_without_reports": Target("ms", "<=", 150),
    "standing_kind_right_with_reports": Target("1", ">=", 0.95),
    "standing_kind_right_without_reports": Target("1", ">=", 0.9),
    "sim_realtime_factor": Target("x", ">=", 1),
    "web_names_fault_s_worst": Target("s", "<=", 1),
    "web_names_fault_right": Target("1", ">=", 1.0),
}

PARTS: Final = {
    "paths": ("topology_links_found", "topology_links_found_after_move"),
    "dead_links": (
        "dead_link_detect_ms_p50",
        "dead_link_detect_ms_p99",
        "link_probed_every_ms",
        "flow_route_probed_every_ms",
        "agents_probes_per_second",
    ),
    "links": (
        "dead_link_localised_right",
        "dead_link_false",
        "grey_link_5pct_detect_s_p95",
        "false_alarms_10min",
        "flap_count_exact",
    ),
    "contention": (
        "contention_open_ms_p95",
        "contention_close_ms_p95",
        "contention_link_right",
        "contention_kind_right",
        "contention_kind_right_without_reports",
    ),
    "queues": (
        "queue_error_bytes_rms",
        "utilisation_error_1s",
        "utilisation_error_10s_probes_alone",
        "queue_inference_realtime_factor_1ms",
        "queue_inference_realtime_factor_10ms",
        "inference_vs_sklearn",
    ),
    "inference_cost": ("inference_us_per_slot_link", "inference_cores_sim64"),
    "shared_queues": (
        "queue_rms_over_perfect_probe_4000pps_batch8",
        "queue_rms_over_perfect_probe_4000pps_batch48",
        "queue_rms_over_perfect_probe_2000pps_batch8",
        "queue_rms_over_perfect_probe_2000pps_batch48",
        "queue_rms_over_perfect_probe_1000pps_batch8",
        "queue_rms_over_perfect_probe_1000pps_batch48",
        "queue_rms_over_last_slot",
        "idle_link_slots_above_3kb",
        "depth_above_probe_evidence",
        "bound_bytes_coverage",
        "utilisation_bound_coverage",
    ),
    "shared_load": ("slots_published", "cost_per_block_1s_behind_over_none"),
    "clock_steps": ("false_queue_after_clock_step_s",),
    "standing_queues": (
        "standing_queue_found_4000pps_with_reports",
        "standing_queue_found_4000pps_without_reports",
        "standing_queue_found_2000pps_with_reports",
        "standing_queue_found_2000pps_without_reports",
        "standing_queue_found_1000pps_with_reports",
        "standing_queue_found_1000pps_without_reports",
        "standing_queue_link_right_4000pps_with_reports",
        "standing_queue_link_right_4000pps_without_reports",
        "standing_queue_link_right_2000pps_with_reports",
        "standing_queue_link_right_2000pps_without_reports",
        "standing_queue_link_right_1000pps_with_reports",
        "standing_queue_link_right_1000pps_without_reports",
        "standing_queue_opened_ms_p95_4000pps_with_reports",
        "standing_queue_opened_ms_p95_4000pps_without_reports",
        "standing_queue_opened_ms_p95_2000pps_with_reports",
        "standing_queue_opened_ms_p95_2000pps_without_reports",
        "standing_queue_opened_ms_p95_1000pps_with_reports",
        "standing_queue_opened_ms_p95_1000pps_without_reports",
        "standing_kind_right_with_reports",
        "standing_kind_right_without_reports",
    ),
    "sim": ("sim_realtime_factor",),
    "web": ("web_names_fault_s_worst", "web_names_fault_right"),
}
"""Keys of the figures that each part must return, by part; a part is a module with `measure(progress,
quick)`."""


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all if it is empty, one by one; return the figures by key."""
    return measure_parts(NAME, PARTS, parts, progress, quick)
