"""Measures robustness: hostile records, log time that jumps, stopped agents, clocks.

Each part is a module of this package. `fabrictime bench robust records [--quick]` runs one part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabrictime.bench import Progress, Target, Value
from fabrictime.bench._parts import measure_parts

NAME: Final = "robust"
TARGETS: Final[Mapping[str, Target]] = {
    "hostile_records": Target("records", ">=", 1_000_000),
    "processes_ended": Target("processes", "<=", 0),
    "verdicts_changed": Target("subjects", "<=", 0),
    "figures_spoilt": Target("figures", "<=", 0),
    "log_time_jumps_survived": Target("1", ">=", 1.0),
    "windows_resume_s": Target("s", "<=", 3),
    "agent_stop_called_host_down": Target("agents", "<=", 0),
    "dead_host_called_agent_down": Target("hosts", "<=", 0),
    "blind_but_well": Target("min", "<=", 0),
    "free_running_p99_over_unix_p99": Target("1", "<=", 1.1),
    "bound_coverage": Target("1", ">=", 0.999),
    "bound_over_p99_error": Target("1", "<=", 4),
}

PARTS: Final = {
    "records": ("hostile_records", "processes_ended", "verdicts_changed", "figures_spoilt"),
    "log_time": ("log_time_jumps_survived", "windows_resume_s"),
    "agents": ("agent_stop_called_host_down", "dead_host_called_agent_down"),
    "blind": ("blind_but_well",),
    "clocks": ("free_running_p99_over_unix_p99", "bound_coverage", "bound_over_p99_error"),
}
"""Keys of the figures that each part must return, by part; a part is a module with `measure(progress,
quick)`."""


def run(progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> dict[str, Value]:
    """Measure the parts named in `parts`, or all if it is empty, one by one; return the figures by key."""
    return measure_parts(NAME, PARTS, parts, progress, quick)
