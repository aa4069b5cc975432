"""Measures networks of other forms than the testbed's own.

Each part is a module of this package. `fabrictime bench networks nics [--quick]` runs one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "networks"
TARGETS: Final[Mapping[str, Target]] = {
    "dead_link_named_or_in_set": Target("1", ">=", 1.0),
    "false_links": Target("links", "<=", 0),
    "dead_link_set_size_p50": Target("cables", "<=", 2),
    "unexplained_loss_alert_s": Target("s", "<=", 10),
    "simulated_dead_link_named_or_in_set": Target("1", ">=", 1.0),
    "simulated_false_links": Target("links", "<=", 0),
    "simulated_dead_link_set_size_p50": Target("cables", "<=", 2),
    "simulated_unexplained_loss_alert_s": Target("s", "<=", 10),
    "egress_right": Target("1", ">=", 1.0),
    "unreachable_peers_chosen": Target("peers", "<=", 0),
    "classes_told_apart": Target("1", ">=", 1.0),
    "ce_count_error": Target("1", "<=", 0.01),
    "contention_open_by_ce_ms": Target("ms", "<=", 1),
    "switch_classes_told_apart": Target("1", ">=", 1.0),
    "switch_ce_count_error": Target("1", "<=", 0.01),
    "switch_contention_open_by_ce_ms": Target("ms", "<=", 1),
    "mtu_fault_found_with_size": Target("1", ">=", 1.0),
    "mtu_false_grey": Target("links", "<=", 0),
    "imports_right": Target("1", ">=", 1.0),
    "imports_fuzzed": Target("inputs", ">=", 1_000_000),
    "import_crashes": Target("crashes", "<=", 0),
    "agent_install_mb": Target("MB", "<=", 120),
    "agent_import_s": Target("s", "<=", 1),
    "agent_rss_mb": Target("MB", "<=", 80),
}

PARTS: Final = {
    "nics": ("egress_right", "unreachable_peers_chosen"),
    "classes": ("classes_told_apart", "ce_count_error", "contention_open_by_ce_ms"),
    "switches": (
        "switch_classes_told_apart",
        "switch_ce_count_error",
        "switch_contention_open_by_ce_ms",
    ),
    "links": (
        "simulated_dead_link_named_or_in_set",
        "simulated_false_links",
        "simulated_dead_link_set_size_p50",
        "simulated_unexplained_loss_alert_s",
    ),
    "testbed": (
        "dead_link_named_or_in_set",
        "false_links",
        "dead_link_set_size_p50",
        "unexplained_loss_alert_s",
    ),
    "mtu": ("mtu_fault_found_with_size", "mtu_false_grey"),
    "imports": ("imports_right", "imports_fuzzed", "import_crashes"),
    "agent": ("agent_install_mb", "agent_import_s", "agent_rss_mb"),
}
"""Keys of the figures that each part must return, by part; a part is a module with `measure(progress,
quick)`."""


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all if it is empty, one by one; return the figures by key."""
    return measure_parts(NAME, PARTS, parts, progress, quick)
