"""Reads the diagnoses of jobs from the log, for the commands about jobs.

All records of a job are in one partition. Only the heads of records are decoded, and for a few records the
parts by rank and by flow. An hour of a job of 256 ranks is read within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fabrictime.state.job_story import HEAD, Run, ordered, telling, with_parts
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import Start, TopicMissing, TopicReader, back, tail
from schemas.kafka.settings import KafkaSettings
from schemas.messages import check_key
from schemas.topics import DIAGNOSES

RECENT_S: Final = 3600.0
"""How far back in the log a job is searched, s."""
NAMED_MESSAGES: Final = 500
"""Number of the newest records of each partition from which known jobs are listed if the requested one is
unknown.
"""


def _messages(cluster: KafkaSettings | str, start: Start, key: str | None = None) -> list[Message]:
    """Return the messages of diagnoses; empty if the log, of an older version, does not have the topic."""
    try:
        with TopicReader.open(cluster, {DIAGNOSES: start}, key=key) as reader:
            return list(reader.read_to_end())
    except TopicMissing:
        return []


def _heads(messages: list[Message], registry: codec.Registry | None) -> list[tuple[dict[str, Any], Message]]:
    """Return (head, message) of each record; unreadable records are left out."""
    heads = []
    for message in messages:
        if message.value is None:
            continue
        try:
            head = codec.decode_head(message.value, DIAGNOSES.record, HEAD, registry)
            check_key(DIAGNOSES, message.key_bytes, head)
        except codec.BadRecord:
            continue
        heads.append((head, message))
    return heads


def run_of(
    cluster: KafkaSettings | str,
    job: str,
    start: Start,
    registry: codec.Registry | None = None,
    is_of_run: Callable[[Mapping[str, Any]], bool] = lambda head: True,
) -> Run | None:
    """Return a job's records from `start` on; None if there are none.

    `is_of_run`: returns whether the record with a head belongs to the run. Raises ValueError if the log
    cannot be read.
    """
    messages = _messages(cluster, start, key=job)
    read = [(head, message) for head, message in _heads(messages, registry) if is_of_run(head)]
    heads = ordered(head for head, _ in read)
    if not heads:
        return None
    values = {(head["number"], head["begin_ns"]): message.value or b"" for head, message in read}

    def decoded(head: Mapping[str, Any]) -> Mapping[str, Any]:
        value = values[head["number"], head["begin_ns"]]
        record: Mapping[str, Any] = codec.decode(value, DIAGNOSES.record, registry)
        return record

    best = telling(heads)
    return Run(job, heads, [with_parts(heads, best, decoded), with_parts(heads, heads[-1], decoded)])


def newest_of_jobs(
    cluster: KafkaSettings | str, since_s: float | None, registry: codec.Registry | None = None
) -> dict[str, Mapping[str, Any]]:
    """Return, by job, the head of its newest record. Raises ValueError if the log cannot be read.

    `since_s`: how many seconds back to read; None reads the newest records of each partition.
    """
    start = tail(NAMED_MESSAGES) if since_s is None else back(since_s)
    messages = _messages(cluster, start)
    newest: dict[str, Mapping[str, Any]] = {}
    for head, _ in _heads(messages, registry):
        previous = newest.get(head["job"])
        if previous is None or (previous["number"], previous["end_ns"]) <= (head["number"], head["end_ns"]):
            newest[head["job"]] = head
    return dict(sorted(newest.items()))
