"""Replays a stage that takes its inputs as read: each of its operators follows its recorded steps.

An operator that began shortly before the interval is replayed from its begin, and gives the same output to
the byte. An older one begins `WARM_UP_NS` before the interval like a new owner. A worker publishes its steps
twice a second, so the last outputs before its death have none: they are counted, and are no difference.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

from fabrictime.commands.replay_compare import Difference, Records, compare
from fabrictime.commands.replay_reader import partition_count
from fabrictime.commands.replay_run import Replay, Replayed
from schemas import codec
from schemas.identities import identity_of
from schemas.kafka.start import BEGINNING, Start, since
from schemas.records import Steps
from schemas.topics import STEPS, TOPICS, Topic
from streams.runtime.operator import Stage
from streams.runtime.step_runner import StepRunner
from streams.runtime.units import NS_PER_MS, NS_PER_S

__all__ = ["replay_steps"]

EPOCH_BACK_NS: Final = 900 * NS_PER_S
"""Time before the interval at which an operator may have begun to be replayed from its begin."""
WARM_UP_NS: Final = 120 * NS_PER_S
"""Time before the interval at which an older operator begins like a new owner."""
PAST_NS: Final = 300 * NS_PER_S
"""Time of published records, and of tables that are not compacted, before the begin of an operator."""
EDGE_NS: Final = NS_PER_S
"""Time in which outputs of the begin and the end of the interval are published."""
UNRECORDED_NS: Final = 2 * NS_PER_S
"""Time after the last step of the log in which its worker may have published outputs."""

Epochs = dict[tuple[int, int], list[Steps]]
"""Partition and epoch to the records of its steps."""
Value = tuple[str, str, bytes | None]
"""Topic, key and value of a message."""


def replay_steps(stage: Stage, run: Replay) -> Replayed:
    """Replay the operators of a stage over an interval, and compare. Raises ValueError for a bad log."""
    began_s, run.messages, run.first_ns = time.monotonic(), 0, None
    runners = _runners(stage, run)
    published: list[tuple[Value, int]] = []
    replayed: list[tuple[Value, int]] = []
    outputs = {topic.name for topic in stage.outputs}
    if runners:
        from_ns = min(runner.begin_ns for runner in runners)
        for messages, _ in run.read(_starts(stage, run, from_ns), run.span.to_ns):
            for message in messages:
                if message.topic in outputs and message.append_ns >= run.span.from_ns:
                    published.append(((message.topic, message.key, message.value), message.append_ns))
                for runner in runners:
                    runner.offer(message)
            replayed += _outputs(runners, run)
        replayed += _outputs(runners, run, is_complete=True)
    differences, unrecorded = _compared(run, published, replayed, _gaps(runners))
    return Replayed(
        stage.name,
        run.span,
        [],
        differences,
        len(published),
        run.messages,
        time.monotonic() - began_s,
        replayed=sum(log_ns >= run.span.from_ns for _, log_ns in replayed),
        unrecorded=unrecorded,
        covered_s=run.covered_s,
    )


def _runners(stage: Stage, run: Replay) -> list[StepRunner]:
    """Return a runner for each operator of the stage that took a step in the interval."""
    epochs: Epochs = defaultdict(list)
    last_ns: dict[tuple[int, int], int] = {}
    for message, record in run.collect(STEPS, BEGINNING, run.span.to_ns):
        if record["stage"] == stage.name:
            operator = record["partition"], record["epoch"]
            epochs[operator].append(record)
            last_ns[operator] = message.append_ns
    if not epochs:
        return []
    count = partition_count(run.cluster, stage.owner)
    return [
        StepRunner(
            stage,
            records,
            run.settings,
            count,
            run.topology,
            run.registry,
            run.span.from_ns - WARM_UP_NS if _is_old(epoch, run) else 0,
        )
        for (partition, epoch), records in sorted(epochs.items())
        if last_ns[partition, epoch] >= run.span.from_ns
    ]


def _gaps(runners: Sequence[StepRunner]) -> list[tuple[int, int]]:
    """Return the log times in which workers may have published outputs whose steps died with them.

    `runners`: by partition and epoch. From the last step of an operator to the begin of the next one.
    """
    gaps = []
    for runner, following in zip_longest(runners, runners[1:]):
        end_ns = runner.last_ns + UNRECORDED_NS
        if following is not None and following.epoch.partition == runner.epoch.partition:
            end_ns = max(end_ns, following.begin_ns)
        gaps.append((runner.last_ns, end_ns))
    return gaps


def _is_old(epoch: int, run: Replay) -> bool:
    return epoch * NS_PER_MS < run.span.from_ns - EPOCH_BACK_NS


def _starts(stage: Stage, run: Replay, from_ns: int) -> dict[Topic, Start]:
    """Return where each topic is read from, given the begin of the oldest operator."""
    restored = [restore.topic for restore in stage.restores(run.tables(()), 1)]
    return {
        topic: BEGINNING if topic.retention_ms is None else since(from_ns - PAST_NS)
        for topic in (stage.owner, *stage.tables, *stage.outputs, *restored)
    }


def _outputs(
    runners: Iterable[StepRunner], run: Replay, *, is_complete: bool = False
) -> Iterator[tuple[Value, int]]:
    """Yield the outputs of the steps whose messages have been read, of those in the interval."""
    for runner in runners:
        for replayed in runner.run(is_complete=is_complete):
            if run.span.from_ns - EDGE_NS <= replayed.log_ns < run.span.to_ns:
                output = replayed.output
                yield (output.topic.name, output.key, output.value(run.registry)), replayed.log_ns


def _compared(
    run: Replay,
    published: Sequence[tuple[Value, int]],
    replayed: Sequence[tuple[Value, int]],
    gaps: Sequence[tuple[int, int]],
) -> tuple[list[Difference], int]:
    """Return the differences, and the number of published outputs whose steps were not recorded.

    Values that are equal to the byte need not be decoded.
    """
    live, again = Counter(value for value, _ in published), Counter(value for value, _ in replayed)
    differing_live, differing_again = live - again, again - live
    differences: list[Difference] = []
    unrecorded = 0
    for topic in sorted({name for name, _, _ in (*differing_live, *differing_again)}):
        was = _records(run, topic, published, differing_live)
        now = _records(run, topic, replayed, differing_again)
        for difference in compare(TOPICS[topic], run.span, was, now, EDGE_NS):
            _, at_ns = was.get(difference.identity, (None, 0))
            has_no_steps = any(begin_ns <= at_ns < end_ns for begin_ns, end_ns in gaps)
            if has_no_steps and difference.identity not in now:
                unrecorded += 1
            else:
                differences.append(difference)
    return differences, unrecorded


def _records(
    run: Replay, topic: str, values: Iterable[tuple[Value, int]], differing: Counter[Value]
) -> Records:
    """Return the records of a topic among those that differ, with their log time."""
    records: Records = {}
    for value, at_ns in values:
        name, key, body = value
        if name == topic and differing[value]:
            record = {"key": key} if body is None else codec.decode(body, TOPICS[topic].type, run.registry)
            identity = (key, at_ns) if body is None else identity_of(TOPICS[topic], record)
            records[identity] = (record, at_ns)
    return records
