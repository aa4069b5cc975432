"""Measures networks of other kinds than the testbed's own.

Each part is a module of this package. `fabrictime bench networks nics [--quick]` runs one part.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fabrictime.bench import Target
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "networks"
PARTS: Final[Parts] = {
    "nics": {
        "egress_right": Target("1", ">=", 1.0),
        "unreachable_peers_chosen": Target("peers", "<=", 0),
    },
    "classes": {
        "classes_told_apart": Target("1", ">=", 1.0),
        "ce_count_error": Target("1", "<=", 0.01),
        "contention_open_by_ce_ms": Target("ms", "<=", 1),
    },
    "switches": {
        "switch_classes_told_apart": Target("1", ">=", 1.0),
        "switch_ce_count_error": Target("1", "<=", 0.01),
        "switch_contention_open_by_ce_ms": Target("ms", "<=", 1),
    },
    "links": {
        "simulated_dead_link_named_or_in_set": Target("1", ">=", 1.0),
        "simulated_false_links": Target("links", "<=", 0),
        "simulated_dead_link_set_size_p50": Target("cables", "<=", 2),
        "simulated_unexplained_loss_alert_s": Target("s", "<=", 10),
    },
    "testbed": {
        "dead_link_named_or_in_set": Target("1", ">=", 1.0),
        "false_links": Target("links", "<=", 0),
        "dead_link_set_size_p50": Target("cables", "<=", 2),
        "unexplained_loss_alert_s": Target("s", "<=", 10),
    },
    "mtu": {
        "mtu_fault_found_with_size": Target("1", ">=", 1.0),
        "mtu_false_grey": Target("links", "<=", 0),
    },
    "imports": {
        "imports_right": Target("1", ">=", 1.0),
        "imports_fuzzed": Target("inputs", ">=", 1_000_000),
        "import_crashes": Target("crashes", "<=", 0),
    },
    "agent": {
        "agent_install_mb": Target("MB", "<=", 120),
        "agent_import_s": Target("s", "<=", 1),
        "agent_rss_mb": Target("MB", "<=", 80),
    },
}
TARGETS: Final = targets_of(PARTS)
run: Final = partial(measure_parts, NAME, PARTS)
