"""Measures operation: alerts, drains, metrics, installation, security, and the cost of a host's agent.

Each part is a module of this package. `fabrictime bench operate alerts [--quick]` runs one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "operate"
TARGETS: Final[Mapping[str, Target]] = {
    "alert_delivery_lost": Target("alerts", "<=", 0),
    "alert_repeats_per_kill": Target("notifications", "<=", 1),
    "alert_notifier_kills": Target("kills", ">=", 200),
    "alert_delivery_s_p50": Target("s"),
    "verdict_to_cordon_ms_p99": Target("ms", "<=", 165),
    "verdict_to_cordon_ms_p50": Target("ms"),
    "verdicts": Target("verdicts", ">=", 200),
    "verdicts_without_drain": Target("verdicts", "<=", 0),
    "metrics_without_help_or_unit": Target("metrics", "<=", 0),
    "promtool_errors": Target("errors", "<=", 0),
    "series_per_host_agent": Target("series", "<=", 40),
    "series_control_plane": Target("series", "<=", 1_500),
    "install_to_synced_s": Target("s", "<=", 60),
    "start_to_synced_s": Target("s", "<=", 15),
    "agent_pss_mb": Target("MB", "<=", 150),
    "agent_cpu_percent": Target("%", "<=", 40),
    "agent_log_connections": Target("1"),
    "unauthorised_accepted": Target("attempts", "<=", 0),
    "unauthorised_attempts": Target("attempts", ">=", 200),
    "kafka_broker_killed_lost_acknowledged": Target("records", "<=", 0),
    "duplicates_in_history": Target("records", "<=", 0),
    "rolling_restart_windows_late_s": Target("s", "<=", 2),
    "rolling_restart_false_alarms": Target("alerts", "<=", 0),
    "rolling_restart_lost_decisions": Target("decisions", "<=", 0),
    "rolling_restart_clock_steps": Target("steps", "<=", 0),
    "mixed_versions_windows_late_s": Target("s", "<=", 2),
    "mixed_versions_false_alarms": Target("alerts", "<=", 0),
    "mixed_versions_lost_decisions": Target("decisions", "<=", 0),
    "mixed_versions_clock_steps": Target("steps", "<=", 0),
    "mixed_versions_rejects": Target("records", "<=", 0),
    "command_without_pipeline_s": Target("s", "<=", 1),
    "command_start_s": Target("s"),
}

PARTS: Final = {
    "alerts": (
        "alert_delivery_lost",
        "alert_repeats_per_kill",
        "alert_notifier_kills",
        "alert_delivery_s_p50",
    ),
    "drains": (
        "verdict_to_cordon_ms_p99",
        "verdict_to_cordon_ms_p50",
        "verdicts",
        "verdicts_without_drain",
    ),
    "metrics": (
        "metrics_without_help_or_unit",
        "promtool_errors",
        "series_per_host_agent",
        "series_control_plane",
    ),
    "install": ("install_to_synced_s", "start_to_synced_s"),
    "agent": ("agent_pss_mb", "agent_cpu_percent", "agent_log_connections"),
    "security": ("unauthorised_accepted", "unauthorised_attempts"),
    "broker": ("kafka_broker_killed_lost_acknowledged", "duplicates_in_history"),
    "restart": (
        "rolling_restart_windows_late_s",
        "rolling_restart_false_alarms",
        "rolling_restart_lost_decisions",
        "rolling_restart_clock_steps",
    ),
    "versions": (
        "mixed_versions_windows_late_s",
        "mixed_versions_false_alarms",
        "mixed_versions_lost_decisions",
        "mixed_versions_clock_steps",
        "mixed_versions_rejects",
    ),
    "commands": ("command_without_pipeline_s", "command_start_s"),
}
"""Keys of the figures that each part must return, by part; a part is a module with `measure(progress,
quick)`."""


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all if it is empty, one by one; return the figures by key."""
    return measure_parts(NAME, PARTS, progress, quick, parts)
