"""The stream worker: the stages of the pipeline, in the order of its data.

A stage is a declaration in its domain's folder (`streams/runtime/operator.py` defines the interface); this
table is the list of all of them. `streams/runtime/faust/` runs the stages in a worker, `LogRunner` over a
recorded log, `SimRunner` over a simulated fleet.
"""

from __future__ import annotations

from typing import Final

from streams.alerts.stage import AlertsStage
from streams.clock.stage import ClockStage
from streams.contention.stage import ContentionStage
from streams.delays.stage import DelayStage
from streams.diagnosis.stage import DiagnosisStage
from streams.links.probe_schedule_stage import ScheduleStage
from streams.links.stage import LinksStage
from streams.policy.stage import PolicyStage
from streams.queues.stage import QueuesStage
from streams.runtime.operator import Stage
from streams.runtime.settings import Stage as StageName
from streams.runtime.settings import StreamSettings

__all__ = ["STAGES", "main"]

STAGES: Final[tuple[tuple[StageName, type[Stage]], ...]] = (
    ("map", DelayStage),
    ("solve", ClockStage),
    ("solve", ScheduleStage),
    ("links", LinksStage),
    ("solve", QueuesStage),
    ("solve", ContentionStage),
    ("links", AlertsStage),
    ("solve", DiagnosisStage),
    ("policy", PolicyStage),
)
"""The stages, each with the name under which the settings select it."""
APPS: Final[tuple[tuple[str, set[StageName], bool], ...]] = (
    ("", {"map", "solve"}, False),
    ("-links", {"links"}, True),
    ("-policy", {"policy"}, True),
)
"""Stages that share an app: the suffix of its consumer group, their names, whether they are urgent."""


def main(settings: StreamSettings) -> int:
    """Run one worker in this process. Returns 0 after SIGTERM or SIGINT, 70 after an abort."""
    from streams.runtime.faust.worker import (  # loads Faust, which others of `STAGES` do not need
        AppStages,
        run,
    )

    apps: list[AppStages] = []
    for suffix, names, is_urgent in APPS:
        stages = [stage() for name, stage in STAGES if name in names and name in settings.stages]
        if stages:
            apps.append(AppStages(suffix, stages, is_urgent))
    if "sink" not in settings.stages or settings.history is None:
        return run(settings, apps, None)
    from streams.history.stage import sinks_of  # loads Arrow, which only the sink needs

    return run(settings, apps, sinks_of)
