"""Measures detection against known truth: paths, links, queues and contention.

Each part is a module of this package. Some run on the fabric of real packets, some on the simulated fleet.
`fabrictime bench detect queues [--quick]` runs one part.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fabrictime.bench import Target
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "detect"
RATES_PPS: Final = (4_000, 2_000, 1_000)
PARTS: Final[Parts] = {
    "paths": {
        "topology_links_found": Target("1", ">=", 1.0),
        "topology_links_found_after_move": Target("1", ">=", 1.0),
        "topology_found_after_s": Target("s"),
        "topology_found_after_move_s": Target("s"),
        "flow_paths_right": Target("1", ">=", 1.0),
        "flow_path_known_ms_p95": Target("ms"),
        "ways_right": Target("1", ">=", 1.0),
        "ways_known_s": Target("s"),
    },
    "dead_links": {
        "dead_link_detect_ms_p50": Target("ms", "<=", 40),
        "dead_link_detect_ms_p99": Target("ms", "<=", 120),
        "link_probed_every_ms": Target("ms", "<=", 5),
        "flow_route_probed_every_ms": Target("ms", "<=", 5),
        "agents_probes_per_second": Target("1/s", "<=", 10_000),
    },
    "links": {
        "dead_link_localised_right": Target("1", ">=", 0.99),
        "dead_link_false": Target("1", "<=", 0.001),
        "grey_link_5pct_detect_s_p95": Target("s", "<=", 2),
        "false_alarms_10min": Target("alarms", "<=", 0),
        "flap_count_exact": Target("1", ">=", 1.0),
    },
    "contention": {
        "contention_open_ms_p95": Target("ms", "<=", 150),
        "contention_close_ms_p95": Target("ms", "<=", 1_000),
        "contention_link_right": Target("1", ">=", 0.98),
        "contention_kind_right": Target("1", ">=", 0.95),
        "contention_kind_right_without_reports": Target("1", ">=", 0.9),
    },
    "queues": {
        "queue_error_bytes_rms": Target("bytes", "<=", 4_000),
        "utilisation_error_1s": Target("1", "<=", 0.01),
        "utilisation_error_10s_probes_alone": Target("1", "<=", 0.03),
        "queue_inference_realtime_factor_1ms": Target("x", ">=", 0.5),
        "queue_inference_realtime_factor_10ms": Target("x", ">=", 2),
        "inference_vs_sklearn": Target("x", ">=", 20),
    },
    "inference_cost": {
        "inference_us_per_slot_link": Target("us"),
        "inference_cores_sim64": Target("cores", "<=", 0.05),
    },
    "shared_queues": {
        **{
            f"queue_rms_over_perfect_probe_{rate}pps_batch{batch}": Target("1", "<=", 1.25)
            for rate in RATES_PPS
            for batch in (8, 48)
        },
        "queue_rms_over_last_slot": Target("1", "<=", 0.9),
        "idle_link_slots_above_3kb": Target("1", "<=", 0.02),
        "depth_above_probe_evidence": Target("slots", "<=", 0),
        "bound_bytes_coverage": Target("1", ">=", 0.95),
        "utilisation_bound_coverage": Target("1", ">=", 0.95),
    },
    "shared_load": {
        "slots_published": Target("1", ">=", 0.999),
        "cost_per_block_1s_behind_over_none": Target("1", "<=", 1.1),
    },
    "clock_steps": {"false_queue_after_clock_step_s": Target("s", "<=", 0)},
    "standing_queues": {
        **{
            f"standing_queue_{key}_{rate}pps_{reports}_reports": target
            for key, target in (
                ("found", Target("1", ">=", 1.0)),
                ("link_right", Target("1", ">=", 0.98)),
                ("opened_ms_p95", Target("ms", "<=", 150)),
            )
            for rate in RATES_PPS
            for reports in ("with", "without")
        },
        "standing_kind_right_with_reports": Target("1", ">=", 0.95),
        "standing_kind_right_without_reports": Target("1", ">=", 0.9),
    },
    "sim": {"sim_realtime_factor": Target("x", ">=", 1)},
    "web": {
        "web_names_fault_s_worst": Target("s", "<=", 1),
        "web_names_fault_right": Target("1", ">=", 1.0),
    },
}
TARGETS: Final = targets_of(PARTS)
run: Final = partial(measure_parts, NAME, PARTS)
