"""Replays the policy over an interval of the log and compares with the published decisions.

`fabric.policy-cycles` names the inputs that each cycle used. An epoch is replayed from its first cycle on.
The result is a line per decision and per difference. Nothing is published or acted on; the mode makes no
difference.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fabrictime.commands.replay_alerts import LogReader, Span, read_all
from fabrictime.state.units import seconds_text
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.settings import KafkaSettings
from schemas.records import Decision, PolicyCycles
from schemas.topics import DECISIONS, POLICY_CYCLES
from schemas.topology import Topology
from streams.policy.inputs import DECISION_LOOKBACK_NS, read_from
from streams.policy.replay import earlier_decisions, replay_cycles

__all__ = ["Difference", "Replayed", "as_json", "compare", "lines_of", "main"]

MS: Final = 1_000_000
S: Final = 1_000_000_000
AFTER_NS: Final = 5 * S
"""ns after the end within which rounds and decisions of the span are in the log."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of the replay; `fields` as (published, replayed)."""

    decision_id: str
    kind: str
    fields: Mapping[str, tuple[Any, Any]]

    def line(self) -> str:
        """Return it as one line."""
        more = "; ".join(f"{name} {was!r}, replayed {now!r}" for name, (was, now) in self.fields.items())
        return f"{self.decision_id}: {self.kind}" + (f": {more}" if more else "")


@dataclass(slots=True)
class Replayed:
    """The result of a replay."""

    span: Span
    decisions: list[Decision]
    """Those of the span as replayed."""
    differences: list[Difference]
    published: int
    rounds: int
    epochs: int
    messages: int
    took_s: float


def compare(live: Mapping[str, Decision], again: Mapping[str, Decision]) -> list[Difference]:
    """Return how decisions, by id, differ."""
    found = []
    for name in sorted(live.keys() | again.keys()):
        was, now = live.get(name), again.get(name)
        if was is None:
            found.append(Difference(name, "is replayed, and was not published", {}))
        elif now is None:
            found.append(Difference(name, "was published, and is not replayed", {}))
        elif was != now:
            new = dict(now)
            fields = {key: (value, new.get(key)) for key, value in was.items() if value != new.get(key)}
            found.append(Difference(name, "differs", fields))
    return found


def main(
    cluster: KafkaSettings | str,
    span: Span,
    *,
    topology: Topology | None = None,
    registry: codec.Registry | None = None,
    default_shard: str = "fabric",
    progress: Callable[[int, int], None] = lambda messages, at_ns: None,
) -> Replayed:
    """Replay the policy over an interval and compare.

    `progress` gets the number of messages and the time reached. Raises ValueError if the log cannot be read
    or a cycle is missing.
    """
    began_s = time.monotonic()
    inside = {
        (record["shard"], record["epoch"])
        for _, record in read_all(cluster, POLICY_CYCLES, span.to_ns + AFTER_NS, registry, span.from_ns)
    }
    again: dict[str, Decision] = {}
    rounds = taken = 0
    live: dict[str, Decision] = {}
    if inside:
        first_ns = min(epoch for _, epoch in inside) * MS
        past = [
            (record, message.append_ns)
            for message, record in read_all(
                cluster, DECISIONS, span.to_ns + AFTER_NS, registry, first_ns - DECISION_LOOKBACK_NS
            )
        ]
        published: dict[tuple[str, int], list[PolicyCycles]] = defaultdict(list)
        for _, record in read_all(cluster, POLICY_CYCLES, span.to_ns + AFTER_NS, registry, first_ns):
            if (record["shard"], record["epoch"]) in inside:
                published[record["shard"], record["epoch"]].append(record)
        since = read_from(first_ns // MS)
        messages = []
        log = LogReader(cluster)
        try:
            for got, mark_ns in log.read(since, span.to_ns + AFTER_NS):
                messages += got
                progress(len(messages), mark_ns)
        finally:
            log.close()
        taken = len(messages)
        for (shard, epoch), records in sorted(published.items()):
            made = replay_cycles(
                records,
                _of_epoch(messages, epoch),
                earlier_decisions(epoch, past),
                default_shard=default_shard,
                topology=topology,
                registry=registry,
            )
            rounds += sum(len(record["cycles"]) for record in records)
            again |= {each["decision_id"]: each for each in made if _in(span, each)}
            live |= {
                each["decision_id"]: each
                for each, _ in past
                if (each["shard"], each["epoch"]) == (shard, epoch) and _in(span, each)
            }
    progress(taken, span.to_ns)
    decisions = sorted(again.values(), key=lambda each: (each["shard"], each["epoch"], each["seq"]))
    return Replayed(
        span,
        decisions,
        compare(live, again),
        len(live),
        rounds,
        len(inside),
        taken,
        time.monotonic() - began_s,
    )


def _of_epoch(messages: list[Message], epoch: int) -> list[Message]:
    since = read_from(epoch)
    return [message for message in messages if message.append_ns >= since[message.topic]]


def _in(span: Span, decision: Decision) -> bool:
    return span.from_ns <= int(decision["at_ns"]) < span.to_ns


def as_json(found: Replayed) -> str:
    """Return the result as one line of JSON."""
    decisions = [{**each, "signature": each["signature"].hex()} for each in found.decisions]
    return json.dumps(
        {
            "from_ns": found.span.from_ns,
            "to_ns": found.span.to_ns,
            "messages": found.messages,
            "cycles": found.rounds,
            "epochs": found.epochs,
            "took_s": round(found.took_s, 3),
            "published": found.published,
            "decisions": decisions,
            "differences": [
                {
                    "decision_id": d.decision_id,
                    "kind": d.kind,
                    "fields": {
                        name: {"published": str(a), "replayed": str(b)} for name, (a, b) in d.fields.items()
                    },
                }
                for d in found.differences
            ],
        },
        allow_nan=False,
    )


def lines_of(found: Replayed) -> list[str]:
    """Return the result as lines: each decision of the interval, each difference, the total."""
    lines = [f"{each['action']} {each['text']}" for each in found.decisions]
    lines += [f"DIFFERENT {each.line()}" for each in found.differences]
    verdict = f"{len(found.differences)} differ" if found.differences else "all the same"
    lines.append(
        f"{seconds_text((found.span.to_ns - found.span.from_ns) / S)} of the log, {found.rounds:,} rounds of "
        f"{found.epochs} epochs, {found.messages:,} messages in {found.took_s:.1f} s: {found.published} "
        f"decisions were published, {len(found.decisions)} replayed: {verdict}"
    )
    return lines
