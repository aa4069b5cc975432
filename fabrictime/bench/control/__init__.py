"""Measures the closed loop against ECMP and against OBSERVE: failover, failback, steering, pause.

Each part is a module of this package. Some run on the fabric of real packets, some on the simulated fleet.
`fabrictime bench control failover [--quick]` runs one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fabrictime.bench import Missing, Progress, Target, Value
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "control"
PARTS: Final[Parts] = {
    "failover": {
        "failover_to_90pct_ms_p50": Target("ms", "<=", 60),
        "failover_to_90pct_ms_p99": Target("ms", "<=", 200),
        "second_failure_survived": Target("1", ">=", 1.0),
        "failback_within_s": Target("s", "<=", 1),
        "flows_moved_onto_dead_path": Target("flows", "<=", 0),
        "decision_to_applied_ms_p99": Target("ms", "<=", 20),
    },
    "local_repair": {
        "local_repair_failover_ms_p99": Target("ms", "<=", 150),
    },
    "alltoall": {
        "two_alltoall_throughput_vs_ecmp": Target("x", ">=", 1.29),
        "two_alltoall_vs_optimum": Target("1", ">=", 0.95),
        "oscillations_10min": Target("flows", "<=", 0),
        "pause_stops_within_ms": Target("ms", "<=", 1_000),
    },
    "sim": {
        "sim_two_alltoall_vs_ecmp": Target("x", ">=", 1.29),
        "sim_two_alltoall_vs_flowlet": Target("x", ">=", 1.33),
        "sim_contended_share_of_line_rate": Target("1", ">=", 0.92),
        "sim_contended_delay_us_p99": Target("us", "<=", 50),
    },
    "incast": {
        "incast_bystander_rpc_p99_vs_unpaced": Target("1", "<=", 0.36),
        "incast_queue_p99_vs_unpaced": Target("1", "<=", 0.25),
        "incast_goodput_vs_unpaced": Target("1", ">=", 0.92),
    },
    "slices": {
        "slice_guarantee_error": Target("1", "<=", 0.02),
        "idle_bandwidth_reused": Target("1", ">=", 0.95),
    },
    "collision": {
        "probe_delay_p99_after_vs_before": Target("1", "<=", 0.05),
    },
}
ELSEWHERE: Final[Parts] = {"guest": {"rdma_failover_vs_transport_error": Target("1", "<=", 0.5)}}
"""Figures that no part measures: the guest of tests/rdma prints them."""
TARGETS: Final = targets_of(PARTS) | targets_of(ELSEWHERE)


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all if it is empty, one by one; return the figures by key."""
    missing = Missing("measured in the guest of tests/rdma, which prints it")
    elsewhere = dict.fromkeys(ELSEWHERE["guest"], missing)
    return measure_parts(NAME, PARTS, progress, quick, parts) | ({} if parts else elsewhere)
