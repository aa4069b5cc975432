"""Replays the diagnosis of jobs over an interval of the log and compares with the published records.

The replay reads what a new owner of all jobs would read. Nothing is published. Other rules may be given, to
see which verdicts they change. The good time of jobs that began before is taken from their last records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from fabrictime.commands.replay_alerts import LogReader, Span, read_all
from fabrictime.state.units import seconds_text
from schemas import codec
from schemas.kafka.settings import KafkaSettings
from schemas.records import Diagnosis
from schemas.topics import CLOCK_OFFSETS, DIAGNOSES
from streams.diagnosis.inputs import TICK_NS, DiagnosisInputs, read_from
from streams.diagnosis.rules import DiagnosisRules

__all__ = ["Difference", "Replayed", "as_json", "compare", "lines_of", "main", "rules_of"]

S: Final = 1_000_000_000
EDGE_NS: Final = 5 * S
"""ns before the end in which records may not have been published yet."""
PAST_NS: Final = 120 * S
"""Published records before the interval from which the jobs' good time is known."""
LARGE: Final = frozenset({"time_splits", "flows", "evidence", "alternatives"})
"""Fields whose difference is named without values."""

Records = dict[tuple[str, int], Diagnosis]
"""(job, number) to the record; a number is a second of log time."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of the replay; `fields` as (published, replayed)."""

    job: str
    number: int
    kind: str
    fields: Mapping[str, tuple[Any, Any]]

    def line(self) -> str:
        """Return it as one line."""
        more = "; ".join(
            name if name in LARGE else f"{name} {was!r}, replayed {now!r}"
            for name, (was, now) in self.fields.items()
        )
        return f"{self.job} {self.number}: {self.kind}" + (f": {more}" if more else "")


@dataclass(slots=True)
class Replayed:
    """The result of a replay."""

    span: Span
    records: list[Diagnosis]
    """Those of the interval as replayed."""
    differences: list[Difference]
    published: int
    messages: int
    took_s: float


def rules_of(given: Sequence[str]) -> DiagnosisRules:
    """Return the rules with changes such as `slow_ratio=1.3`. Raises ValueError for an unknown one."""
    kinds = {name: type(value) for name, value in asdict(DiagnosisRules()).items()}
    changes = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in kinds:
            raise ValueError(f"--rule {text}: expected NAME=NUMBER with a name of {', '.join(sorted(kinds))}")
        try:
            changes[name] = kinds[name](value)
        except ValueError:
            raise ValueError(f"--rule {text}: {value!r}, expected a number") from None
    return DiagnosisRules(**changes)


def compare(span: Span, live: Records, again: Records) -> list[Difference]:
    """Return how published and replayed records of an interval differ."""
    found = []
    for identity in sorted(live.keys() | again.keys()):
        was, now = live.get(identity), again.get(identity)
        if was is None:
            if identity[1] * TICK_NS < span.to_ns - EDGE_NS:
                found.append(Difference(*identity, "is replayed, and was not published", {}))
        elif now is None:
            found.append(Difference(*identity, "was published, and is not replayed", {}))
        elif was != now:
            new = dict(now)
            changed = {name: (value, new.get(name)) for name, value in was.items() if value != new.get(name)}
            found.append(Difference(*identity, "differs", changed))
    return found


def main(
    cluster: KafkaSettings | str,
    span: Span,
    *,
    rules: DiagnosisRules | None = None,
    registry: codec.Registry | None = None,
    progress: Callable[[int, int], None] = lambda messages, at_ns: None,
) -> Replayed:
    """Replay an interval as a worker would that takes over at its start, and compare.

    `progress` gets the number of messages and the time reached. Raises ValueError if the log cannot be read.
    """
    began_s = time.monotonic()
    live = {
        (record["job"], record["number"]): record
        for _, record in read_all(cluster, DIAGNOSES, span.to_ns + EDGE_NS, registry, span.from_ns)
        if _in(span, record)
    }
    before = read_all(cluster, DIAGNOSES, span.from_ns, registry, span.from_ns - PAST_NS)
    starts_ns = read_from(span.from_ns)
    inputs = DiagnosisInputs(
        span.from_ns,
        registry=registry,
        rules=rules,
        log_offset_ns=_log_offset_ns(cluster, starts_ns[CLOCK_OFFSETS.name], span.to_ns, registry),
        past=[record for _, record in before],
    )
    again: Records = {}
    taken = 0
    log = LogReader(cluster)
    try:
        for messages, mark_ns in log.read(starts_ns, span.to_ns):
            taken += len(messages)
            for message in messages:
                inputs.add(message)
            _keep(again, inputs.evaluate(mark_ns - 1))
            progress(taken, mark_ns)
        _keep(again, inputs.evaluate(span.to_ns - 1))
    finally:
        log.close()
    progress(taken, span.to_ns)
    return Replayed(
        span,
        [again[identity] for identity in sorted(again)],
        compare(span, live, again),
        len(live),
        taken,
        time.monotonic() - began_s,
    )


def _keep(known: Records, records: Sequence[Diagnosis]) -> None:
    for record in records:
        # through the codec, as the published records are
        known[record["job"], record["number"]] = codec.decode(codec.encode(Diagnosis, record), Diagnosis)


def _in(span: Span, record: Diagnosis) -> bool:
    return span.from_ns <= record["number"] * TICK_NS < span.to_ns


def _log_offset_ns(
    cluster: KafkaSettings | str, from_ns: int, to_ns: int, registry: codec.Registry | None
) -> int:
    """Return fabric time minus append time, from the first clocks."""
    for _, record in read_all(cluster, CLOCK_OFFSETS, to_ns, registry, from_ns):
        return record["log_offset_ns"]
    return 0


def as_json(found: Replayed) -> str:
    """Return the result as one line of JSON."""
    return json.dumps(
        {
            "from_ns": found.span.from_ns,
            "to_ns": found.span.to_ns,
            "messages": found.messages,
            "took_s": round(found.took_s, 3),
            "published": found.published,
            "diagnoses": found.records,
            "differences": [
                {
                    "job": each.job,
                    "number": each.number,
                    "kind": each.kind,
                    "fields": {
                        name: {"published": was, "replayed": now} for name, (was, now) in each.fields.items()
                    },
                }
                for each in found.differences
            ],
        },
        allow_nan=False,
    )


def lines_of(found: Replayed) -> list[str]:
    """Return the result as lines: each change of a verdict, each difference, the total."""
    lines: list[str] = []
    last: dict[str, tuple[str, str]] = {}
    for each in found.records:
        verdict = (each["verdict"], each["subject"])
        if last.get(each["job"]) != verdict:
            lines.append(f"{each['job']} {each['number']}: {each['verdict']}: {each['text']}")
        last[each["job"]] = verdict
    lines += [f"DIFFERENT {each.line()}" for each in found.differences]
    verdict_text = f"{len(found.differences)} differ" if found.differences else "all the same"
    lines.append(
        f"{seconds_text((found.span.to_ns - found.span.from_ns) / S)} of the log, {found.messages:,} messages"
        f" in {found.took_s:.1f} s: {found.published} diagnoses were published, {len(found.records)} "
        f"replayed: {verdict_text}"
    )
    return lines
