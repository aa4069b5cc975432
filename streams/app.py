"""The stream worker: the stages of the pipeline, in the order of its data.

A stage is a declaration in its domain's folder (`streams/runtime/operator.py` defines the interface); the
table here lists every stage. `streams/runtime/faust/` runs the stages in a worker, `LogRunner` over a
recorded log, `SimRunner` over a simulated fleet.
"""

from __future__ import annotations

from typing import Final

from streams.alerts.stage import AlertsStage
from streams.clock.stage import ClockStage
from streams.contention.stage import ContentionStage
from streams.delays.stage import DelayStage
from streams.diagnosis.stage import DiagnosisStage
from streams.links.schedule.stage import ScheduleStage
from streams.links.stage import LinksStage
from streams.policy.stage import PolicyStage
from streams.queues.stage import QueuesStage
from streams.runtime.operator import Stage
from streams.runtime.settings import Stage as StageName
from streams.runtime.settings import StreamSettings

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
APPS: Final[tuple[tuple[str, set[StageName], int], ...]] = (
    ("", {"map", "solve"}, 25),
    ("-links", {"links"}, 0),
    ("-policy", {"policy"}, 0),
)
"""Stages that share an app: the suffix of its consumer group, their names, ms for which fetches gather."""
SINK_GATHER_MS: Final = 500
"""The same for the history sink, which is not urgent."""


def main(settings: StreamSettings) -> int:
    """Run one worker in this process. Return the exit code: 0 after SIGTERM or SIGINT, 70 after an abort."""
    from streams.runtime.faust.worker import (  # loads Faust, which others of `STAGES` do not need
        AppStages,
        run,
    )

    apps: list[AppStages] = []
    for suffix, names, gather_ms in APPS:
        stages = [stage() for name, stage in STAGES if name in names and name in settings.stages]
        if stages:
            apps.append(AppStages(suffix, stages, gather_ms))
    if "sink" in settings.stages and settings.history is not None:
        from streams.history.clickhouse import stores_of  # loads Arrow, which only the sink needs
        from streams.history.stage import HistoryStage

        # An app of its own: a failed ClickHouse delays no stage.
        sinks = [HistoryStage(topic, store) for topic, store in stores_of(settings.history)]
        apps.append(AppStages("-sink", sinks, SINK_GATHER_MS))
    return run(settings, apps)
