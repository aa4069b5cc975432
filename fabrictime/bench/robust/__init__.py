"""Measures robustness: hostile records, log time that jumps, stopped agents, clocks.

Each part is a module of this package. `fabrictime bench robust records [--quick]` runs one part.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fabrictime.bench import Target
from fabrictime.bench._parts import Parts, measure_parts, targets_of

NAME: Final = "robust"
PARTS: Final[Parts] = {
    "records": {
        "hostile_records": Target("records", ">=", 1_000_000),
        "processes_ended": Target("processes", "<=", 0),
        "verdicts_changed": Target("subjects", "<=", 0),
        "figures_spoilt": Target("figures", "<=", 0),
    },
    "log_time": {
        "log_time_jumps_survived": Target("1", ">=", 1.0),
        "windows_resume_s": Target("s", "<=", 3),
    },
    "agents": {
        "agent_stop_called_host_down": Target("agents", "<=", 0),
        "dead_host_called_agent_down": Target("hosts", "<=", 0),
    },
    "blind": {
        "blind_but_well": Target("min", "<=", 0),
    },
    "clocks": {
        "free_running_p99_over_unix_p99": Target("1", "<=", 1.1),
        "bound_coverage": Target("1", ">=", 0.999),
        "bound_over_p99_error": Target("1", "<=", 4),
    },
}
TARGETS: Final = targets_of(PARTS)
run: Final = partial(measure_parts, NAME, PARTS)
