"""Measures operation: alerts, drains, metrics, installation, security, and the cost of a host's agent.

Each part is a module of this package. `fabrictime bench operate alerts [--quick]` runs one part.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fabrictime.bench import Target
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "operate"
PARTS: Final[Parts] = {
    "alerts": {
        "alert_delivery_lost": Target("alerts", "<=", 0),
        "alert_repeats_per_kill": Target("notifications", "<=", 1),
        "alert_notifier_kills": Target("kills", ">=", 200),
        "alert_delivery_s_p50": Target("s"),
    },
    "drains": {
        "verdict_to_cordon_ms_p99": Target("ms", "<=", 165),
        "verdict_to_cordon_ms_p50": Target("ms"),
        "verdicts": Target("verdicts", ">=", 200),
        "verdicts_without_drain": Target("verdicts", "<=", 0),
    },
    "metrics": {
        "metrics_without_help_or_unit": Target("metrics", "<=", 0),
        "promtool_errors": Target("errors", "<=", 0),
        "series_per_host_agent": Target("series", "<=", 40),
        "series_control_plane": Target("series", "<=", 1_500),
    },
    "install": {
        "install_to_synced_s": Target("s", "<=", 60),
        "start_to_synced_s": Target("s", "<=", 15),
    },
    "agent": {
        "agent_pss_mb": Target("MB", "<=", 150),
        "agent_cpu_percent": Target("%", "<=", 40),
        "agent_log_connections": Target("1"),
    },
    "security": {
        "unauthorised_accepted": Target("attempts", "<=", 0),
        "unauthorised_attempts": Target("attempts", ">=", 200),
    },
    "broker": {
        "kafka_broker_killed_lost_acknowledged": Target("records", "<=", 0),
        "duplicates_in_history": Target("records", "<=", 0),
    },
    "restart": {
        "rolling_restart_windows_late_s": Target("s", "<=", 2),
        "rolling_restart_false_alarms": Target("alerts", "<=", 0),
        "rolling_restart_lost_decisions": Target("decisions", "<=", 0),
        "rolling_restart_clock_steps": Target("steps", "<=", 0),
    },
    "versions": {
        "mixed_versions_windows_late_s": Target("s", "<=", 2),
        "mixed_versions_false_alarms": Target("alerts", "<=", 0),
        "mixed_versions_lost_decisions": Target("decisions", "<=", 0),
        "mixed_versions_clock_steps": Target("steps", "<=", 0),
        "mixed_versions_rejects": Target("records", "<=", 0),
    },
    "commands": {
        "command_without_pipeline_s": Target("s", "<=", 1),
        "command_start_s": Target("s"),
    },
}
TARGETS: Final = targets_of(PARTS)
run: Final = partial(measure_parts, NAME, PARTS)
