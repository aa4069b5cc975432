"""Replays the stages of the pipeline over an interval of a log, and compares their records.

A replay reads what a new owner would read that takes over at the start of the interval. Nothing is published.
Beyond the compaction lag (24 h) the inputs are only as complete as the log.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fabrictime.commands.replay_compare import Records, compare, inside
from fabrictime.commands.replay_reader import read_interval
from fabrictime.commands.replay_run import AFTER_NS, Changes, Replay, Replayed
from fabrictime.commands.replay_steps import replay_steps
from schemas import codec
from schemas.identities import identity_of
from schemas.kafka.start import since
from schemas.records import PolicyCycles
from schemas.topics import (
    ALERTS,
    CONFIG,
    DECISIONS,
    DIAGNOSES,
    POLICY_CYCLES,
    Topic,
)
from streams import app
from streams.alerts.stage import AlertsStage
from streams.diagnosis.stage import DiagnosisStage
from streams.policy.inputs import DECISION_LOOKBACK_NS, INPUTS, read_from
from streams.policy.replay import replay_epoch
from streams.policy.stage import PolicyStage
from streams.runtime.live_config import EVERYONE
from streams.runtime.log_runner import run_timed
from streams.runtime.operator import Moment, Output, Owner, Stage
from streams.runtime.past import PastMessages, start_of
from streams.runtime.units import NS_PER_MS, NS_PER_S

__all__ = ["STAGES", "replay"]

Outputs = Iterator[tuple[Moment, Output]]


# ------------------------------------------------------------------------------------------------ runs


def _timed(run: Replay, stage: Stage) -> Outputs:
    """Replay a timed stage from the start of the interval."""
    from_ns, to_ns = run.span.from_ns, run.span.to_ns
    tables = run.tables(stage.tables)
    past = {}
    for restore in stage.restores(tables, 1):
        past_messages = PastMessages(restore, run.registry)
        for messages, _ in read_interval(run.cluster, {restore.topic: start_of(restore, from_ns)}, from_ns):
            for message in messages:
                past_messages.add(message)
        past[restore.topic.name] = past_messages.messages()
    first = [] if EVERYONE in tables.config.all() else run.first_config()
    for message in first:
        tables.take(message)
    owner = Owner(stage.epoch(from_ns, past, run.registry), frozenset((0,)), 1, run.settings, run.registry)
    operator = stage.make(owner, -1, tables)
    operator.restore(past, tables)
    operator.take(first, tables)
    starts = {topic: since(from_ns) for topic in stage.tables}
    starts |= {each.topic: each.start(from_ns, tables) for each in stage.inputs if each.start is not None}
    yield from run_timed(stage, operator, tables, run.read(starts, to_ns), from_ns, to_ns)


def _by_cycles(run: Replay, stage: Stage) -> Outputs:
    """Replay the policy by its published cycles, each epoch from its first cycle on."""
    span, end_ns = run.span, run.span.to_ns + AFTER_NS
    cycles = run.collect(POLICY_CYCLES, since(span.from_ns), end_ns)
    epochs = {(record["shard"], record["epoch"]) for _, record in cycles}
    if not epochs:
        return
    first = min(epoch for _, epoch in epochs)
    first_ns = first * NS_PER_MS
    past = [message for message, _ in run.collect(DECISIONS, since(first_ns - DECISION_LOOKBACK_NS), end_ns)]
    published: dict[tuple[str, int], list[PolicyCycles]] = defaultdict(list)
    for _, record in run.collect(POLICY_CYCLES, since(first_ns), end_ns):
        published[record["shard"], record["epoch"]].append(record)
    starts_ns = read_from(first)
    starts = {topic: since(starts_ns[topic.name]) for topic in INPUTS}
    messages = [message for batch, _ in run.read(starts, end_ns) for message in batch]
    if not any(each.topic == CONFIG.name and each.key == EVERYONE for each in messages):
        messages += run.first_config()
    for shard_epoch in sorted(epochs):
        yield from replay_epoch(
            published[shard_epoch],
            messages,
            past,
            default_shard=run.settings.default_shard,
            topology=run.topology,
            registry=run.registry,
        )


@dataclass(frozen=True, slots=True)
class _Replayable:
    """How a stage is replayed. `edge_ns`: see `compare`."""

    make: Callable[[Changes], Stage]
    run: Callable[[Replay, Stage], Outputs]
    compared: Topic
    edge_ns: int


TIMED: Final[Mapping[str, _Replayable]] = {
    "alerts": _Replayable(lambda changes: AlertsStage(), _timed, ALERTS, 2 * NS_PER_S),
    "diagnosis": _Replayable(lambda changes: DiagnosisStage(changes.rules), _timed, DIAGNOSES, 5 * NS_PER_S),
    "policy": _Replayable(lambda changes: PolicyStage(), _by_cycles, DECISIONS, 0),
}
"""The stages that follow the log's time, or cycles of their own."""
BY_STEPS: Final[Mapping[str, type[Stage]]] = {
    stage.name: stage for _, stage in app.STAGES if stage.per_partition
}
"""The stages that follow their recorded steps."""
STAGES: Final = (*BY_STEPS, *TIMED)
"""The stages that replay."""


def replay(name: str, run: Replay) -> Replayed:
    """Replay a stage over an interval, and compare. Raises ValueError if the log cannot be read."""
    if name in BY_STEPS:
        return replay_steps(BY_STEPS[name](), run)
    began_s, how = time.monotonic(), TIMED[name]
    span, topic, run.messages, run.first_ns = run.span, how.compared, 0, None
    stage = how.make(run.changes)
    live: Records = {}
    for message, record in run.collect(topic, since(span.from_ns - AFTER_NS), span.to_ns + AFTER_NS):
        live[identity_of(topic, record)] = [(record, message.append_ns)]
    again: Records = {}
    for moment, output in how.run(run, stage):
        value = output.value(run.registry)
        if output.topic is topic and value is not None:
            record = codec.decode(value, topic.type, run.registry)  # through the codec, as the published ones
            again[identity_of(topic, record)] = [(record, moment.log_ns)]
    run.progress(run.messages, span.to_ns)
    return Replayed(
        name,
        span,
        inside(span, again),
        compare(topic, span, live, again, how.edge_ns),
        len(inside(span, live)),
        run.messages,
        time.monotonic() - began_s,
        covered_s=run.covered_s,
    )
