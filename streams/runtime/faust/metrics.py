"""The metrics of one Faust app in a worker: messages taken, published and rejected, and its stages' lag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from streams.runtime.faust.context import WorkerContext
from streams.runtime.faust.ownership import Ownership

HISTORY: Final = "history"
"""Name of the sinks of all topics, as one stage."""


class ServiceMetrics:
    """Reads the metrics of one service from its objects, which the worker's thread changes meanwhile."""

    def __init__(self, context: WorkerContext, owned: Sequence[Ownership]) -> None:
        self._context, self._owned = context, owned
        context.outputs.expect(topic for stage in owned for topic in stage.definition.outputs)
        SOURCES.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield the present value of each metric."""
        context = self._context
        yield Sample("fabrictime_records_rejected_total", context.rejected)
        yield Sample("fabrictime_rejects_unpublished_total", context.reject_budget.dropped)
        yield Sample("fabrictime_evaluations_failed_total", context.failed_evaluations)
        yield Sample("fabrictime_records_published_total", context.acknowledged)
        yield Sample("fabrictime_log_append_seconds_sum", context.append_s)
        yield Sample("fabrictime_log_append_seconds_count", context.acknowledged)
        yield from context.outputs.samples()
        for owned in self._owned:
            yield from self._stage_samples(owned)

    def _stage_samples(self, owned: Ownership) -> Iterator[Sample]:
        stage = (HISTORY if owned.definition.store is not None else owned.stage,)
        yield Sample("fabrictime_stage_records_total", owned.received, stage)
        yield Sample("fabrictime_stage_partitions", len(owned.generation.tps), stage)
        yield Sample("fabrictime_stage_skipped_records_total", owned.left_out, stage)
        ends = self._context.end_offsets
        lags = [ends[tp] - offset for tp, offset in owned.reached.items() if tp in ends]
        if lags:
            yield Sample("fabrictime_stage_lag_records", sum(max(0, lag) for lag in lags), stage)
