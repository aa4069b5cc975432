"""Measures the audit: checks covered, planted faults, outlier hosts, wrong cables, time and cost.

Each part is a module of this package. `fabrictime bench audit hosts [--quick]` runs one part.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fabrictime.bench import Target
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "audit"
PARTS: Final[Parts] = {
    "hosts": {
        "rows_covered": Target("rows", ">=", 108),
        "rows_beyond": Target("checks", ">=", 12),
        "planted_faults_found": Target("1", ">=", 1.0),
        "planted_fault_kinds": Target("kinds", ">=", 120),
        "healthy_fleet_false_errors": Target("findings", "<=", 0),
        "unknown_reported_as_passed": Target("results", "<=", 0),
    },
    "fleet": {
        "odd_one_out_found": Target("1", ">=", 1.0),
        "false_outliers": Target("findings", "<=", 0),
        "miswired_rails_named_right": Target("1", ">=", 1.0),
    },
    "scale": {
        "audit_1000_hosts_s": Target("s", "<=", 30),
        "audit_1000_hosts_mb": Target("MB", "<=", 500),
    },
    "live": {
        "audit_64_hosts_s": Target("s", "<=", 20),
        "full_mesh_64_nics_s": Target("s", "<=", 5),
        "passive_cpu_share": Target("1", "<=", 0.005),
        "agent_rss_mb": Target("MB", "<=", 80),
    },
}
TARGETS: Final = targets_of(PARTS)
run: Final = partial(measure_parts, NAME, PARTS)
