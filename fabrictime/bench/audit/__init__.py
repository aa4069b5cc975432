"""Measures the audit: published checks covered, planted faults found, odd hosts, wrong cables, time and cost.

Each part is a module of this package. `fabrictime bench audit hosts [--quick]` runs one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "audit"
TARGETS: Final[Mapping[str, Target]] = {
    "rows_covered": Target("rows", ">=", 108),
    "rows_beyond": Target("checks", ">=", 12),
    "planted_faults_found": Target("1", ">=", 1.0),
    "planted_fault_kinds": Target("kinds", ">=", 120),
    "healthy_fleet_false_errors": Target("findings", "<=", 0),
    "unknown_reported_as_passed": Target("results", "<=", 0),
    "odd_one_out_found": Target("1", ">=", 1.0),
    "false_outliers": Target("findings", "<=", 0),
    "miswired_rails_named_right": Target("1", ">=", 1.0),
    "audit_64_hosts_s": Target("s", "<=", 20),
    "full_mesh_64_nics_s": Target("s", "<=", 5),
    "audit_1000_hosts_s": Target("s", "<=", 30),
    "audit_1000_hosts_mb": Target("MB", "<=", 500),
    "passive_cpu_share": Target("1", "<=", 0.005),
    "agent_rss_mb": Target("MB", "<=", 80),
}

PARTS: Final = {
    "hosts": (
        "rows_covered",
        "rows_beyond",
        "planted_faults_found",
        "planted_fault_kinds",
        "healthy_fleet_false_errors",
        "unknown_reported_as_passed",
    ),
    "fleet": ("odd_one_out_found", "false_outliers", "miswired_rails_named_right"),
    "scale": ("audit_1000_hosts_s", "audit_1000_hosts_mb"),
    "live": ("audit_64_hosts_s", "full_mesh_64_nics_s", "passive_cpu_share", "agent_rss_mb"),
}
"""Keys of the figures that each part must return, by part; a part is a module with `measure(progress,
quick)`."""


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all if it is empty, one by one; return the figures by key."""
    return measure_parts(NAME, PARTS, parts, progress, quick)
