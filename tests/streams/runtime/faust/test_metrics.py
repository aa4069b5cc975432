"""A worker's metrics: what its stages received, how far they lag, what it rejected."""

from types import SimpleNamespace

import pytest
from faust.types import TP

from schemas.metrics.sources import Sources
from streams.links.stage import LinksStage
from streams.runtime.faust.metrics import ServiceMetrics
from streams.runtime.faust.operator_stage import OperatorStage
from streams.runtime.faust.ownership import Generation
from tests.streams.runtime.fake_context import TP0, TP1, FakeContext


class Sink(LinksStage):
    """A stage with a store, as those of history."""

    name = "sink of fabric.links"
    store = SimpleNamespace()


@pytest.fixture
def context():
    return FakeContext()


def figures(metrics):
    sources = Sources()
    sources.add(metrics.samples)
    samples = {(s.name.removeprefix("fabrictime_"), *s.labels): s.value for s in sources.collect()}
    assert samples["metrics_errors_total",] == 0
    return samples


async def test_a_stage_reports_messages_partitions_and_lag(context):
    owned = OperatorStage(context, LinksStage())
    metrics = ServiceMetrics(context, [owned])
    assert ("stage_lag_records", "links") not in figures(metrics), "unknown before the first check"
    owned.generation = Generation([TP0, TP1])
    owned.received = 7
    context.end_offsets = {TP0: 10, TP1: 5, TP("other", 0): 99}
    owned._partitions = {
        tp: SimpleNamespace(tp=tp, next_offset=offset, skipped=0) for tp, offset in ((TP0, 4), (TP1, 6))
    }
    owned.generation.revoking = False
    seen = figures(metrics)
    assert seen["stage_records_total", "links"] == 7
    assert seen["stage_partitions", "links"] == 2
    assert seen["stage_lag_records", "links"] == 6, "a position beyond an old end counts as no lag"


async def test_rejects_and_acknowledgements_are_those_of_the_context(context):
    context.rejected, context.failed_evaluations = 3, 2
    context.acknowledged, context.append_s = 4, 0.5
    seen = figures(ServiceMetrics(context, []))
    assert seen["records_rejected_total",] == 3
    assert seen["evaluations_failed_total",] == 2
    assert (seen["records_published_total",], seen["log_append_seconds_sum",]) == (4, 0.5)


async def test_the_sinks_of_all_topics_are_one_stage(context):
    owned = [OperatorStage(context, Sink()), OperatorStage(context, Sink())]
    for stage in owned:
        stage.received = 5
    seen = figures(ServiceMetrics(context, owned))
    assert seen["stage_records_total", "history"] == 10
