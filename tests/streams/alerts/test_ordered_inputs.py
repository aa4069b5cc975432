"""Half an hour of topics gives the same alerts however it is read. A simulated fleet with faults by script
fills a log, which is read again in other ways: at once, in other pieces, by workers that die.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final
from zlib import crc32

import pytest

from producers.sim.settings import SimSettings
from producers.sim.shape import Shape
from producers.sim.simulation import EPOCH_NS, Simulation
from producers.sim.topology import Fleet
from schemas import codec
from schemas.kafka.message import Message
from schemas.topics import (
    ALERTS,
    CLOCK_OFFSETS,
    CONFIG,
    CONTENTION,
    DELAYS,
    INVENTORY,
    LINK_HEALTH,
    LINKS,
    PATHS,
    Topic,
)
from streams.alerts.ordered_inputs import AlertInputs, read_from
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.links.health.shard_health import ShardHealth
from streams.runtime.flow_table import FlowTable
from streams.runtime.route_table import RouteTable
from tests.examples import draws
from tests.streams.alerts.script import RULE, T0, slow
from tests.streams.contention.test_detector import queue

MS: Final = 1_000_000
S: Final = 1_000_000_000
HALF_HOUR_S: Final = 1800
LATENCY_NS: Final = 3 * MS
"""From an agent to the log."""
BEHIND_NS: Final = 150 * MS
SLOT, SLOTS = 100 * MS, 10
FAULTS: Final = (
    "flap 12 leaf1>spine1 every 8s after 30s", "grey 5% leaf2>spine2 after 210s for 30s",
    "blackhole leaf1>spine2 after 300s for 20s", "dead h2 after 350s for 20s",
    "down leaf2<>spine1 after 750s for 40s", "blackhole h4:eth1>leaf2:swp2 after 1250s for 15s",
    "dead h3 after 1500s for 30s", "grey 30% leaf1>spine1 after 1650s for 40s",
)  # fmt: skip
CPU_STARVED_S: Final = range(430, 490)
STORM: Final = range(600, 630)
SLOW: Final = (range(500, 560), range(1400, 1450))
QUEUED: Final = (range(310, 325), range(850, 910))
UNSYNCED: Final = range(1000, 1040)
MISWIRED: Final = range(1100, 1200)


class Log:
    """A log of two partitions a topic, in simulated time."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def put(self, topic: Topic, key: str, at_ns: int, record: dict[str, Any] | None, **more: Any) -> None:
        partition = more.get("partition", crc32(key.encode()) % 2)
        value = None if record is None else more.get("value") or codec.encode(topic.record, record)
        kept = record if topic is LINKS else None
        append_ns = at_ns // MS * MS
        number = len(self.messages)
        self.messages.append(Message(append_ns, topic.name, partition, number, key, value, kept))

    def of(self, *topics: Topic) -> list[Message]:
        names = {topic.name for topic in topics}
        return [m for m in self.messages if m.topic in names]


def health_changes(
    evidence: Iterable[Message], paths: Iterable[Message], seed: int | None
) -> list[tuple[int, str, Any]]:
    """Return the link health of evidence; `seed`: of extra evaluations at random times."""
    rng, book = random.Random(seed), RouteTable()
    health = ShardHealth("fabric", source="fabric.links/0")
    changes_at: list[tuple[int, str, Any]] = []
    now_ns = 0
    for message in sorted([*evidence, *paths]):
        if message.topic == PATHS.name:
            book.take(message.key.encode(), message.value, None, message.append_ns)
            continue
        while seed is not None and now_ns < message.append_ns:
            changes_at += [(now_ns, *change) for change in health.evaluate(now_ns)]
            now_ns = max(now_ns, message.append_ns - 600 * MS) + rng.choice((1, 5, 30, 100)) * MS
        changes = health.ingest(message.record or {}, message.append_ns, book, message.offset)
        changes_at += [(message.append_ns, *change) for change in changes]
    return changes_at


@cache
def half_hour() -> Log:
    """The log after half an hour."""
    log = Log()
    fleet = Fleet(Shape(hosts=4, hosts_per_rack=2, spines=2), 1)
    settings = SimSettings.model_validate({
        "nics": 4, "seed": 7, "load": 0.0, "jobs": (), "rate_pps": 120, "peers": 3, "step_us": 1000,
        "shard": "fabric", "faults": FAULTS,
    })  # fmt: skip
    run = Simulation(settings, topics=(INVENTORY, PATHS, LINKS), fleet=fleet)
    for out in run.advance(HALF_HOUR_S):
        record, at_ns = out.record(), out.at_ns + LATENCY_NS
        second = (out.at_ns - EPOCH_NS) // S
        if out.topic is LINKS:
            if record["nic"] == "h1/eth1" and second in CPU_STARVED_S:
                record |= {"trouble": ["STARVED"], "late_ns": 90 * MS}
            if record["nic"] == "h4/eth1" and second in STORM:
                record["paths"] = [path | {"answered": 90 * path["answered"]} for path in record["paths"]]
            log.put(LINKS, "fabric", at_ns, record, partition=0, value=b"-")
        else:
            log.put(out.topic, out.key, at_ns, record)
    _config(log)
    _wires(log)
    _clocks(log)
    _delays(log)
    _queues(log)
    for at_ns, subject, record in health_changes(log.of(LINKS), log.of(PATHS), seed=1):
        log.put(LINK_HEALTH, subject, at_ns + 2 * MS, record)
    log.messages.sort()
    return log


def _config(log: Log) -> None:
    def configure(second: int, version: int, rules: list[Any], **thresholds: float) -> None:
        log.put(CONFIG, "*", EPOCH_NS + second * S, {
            "host": "*", "version": version, "at_ns": 0, "by": "test", "mode": "UNKNOWN",
            "latency_rules": rules,
            "thresholds": [{"name": name, "value": value} for name, value in thresholds.items()],
        }, partition=0)  # fmt: skip

    configure(0, 1, [], alert_storm_min_pps=1500)
    configure(150, 2, [RULE], alert_storm_min_pps=1500)
    configure(1410, 3, [RULE | {"p99_us": 50.0}], alert_storm_min_pps=1500, alert_clear_s=9)


def _wires(log: Log) -> None:
    newest = next(m for m in reversed(log.of(PATHS)) if m.key == "h3/eth1>h4/eth1")
    record = codec.decode(newest.value or b"", PATHS.record)
    contradiction = "hop 1 is leaf2, and the file wires h3:eth1 to leaf1:swp9"
    for second, text in ((MISWIRED.start, contradiction), (MISWIRED.stop, None)):
        paths = [path | {"contradiction": text} for path in record["paths"]]
        log.put(PATHS, newest.key, EPOCH_NS + second * S, record | {"paths": paths})


def _clocks(log: Log) -> None:
    for second in range(HALF_HOUR_S):
        window, offset_ns = EPOCH_NS // S + second, 7_000 + second // 10
        state = "UNSYNCED" if second in UNSYNCED else "SYNCED"
        log.put(CLOCK_OFFSETS, "fabric/0", (window + 1) * S + 200 * MS, {
            "shard": "fabric", "domain": "fabric", "window": window, "part": 0, "parts": 1,
            "window_start_ns": window * S + offset_ns, "window_end_ns": (window + 1) * S + offset_ns,
            "log_offset_ns": offset_ns, "solved_ns": 0, "reference": "h1/ptp0",
            "clocks": [
                {"clock": f"h{n}/ptp0", "at_ns": 0, "offset_ns": 0.0, "drift_ppb": 0.0, "bound_ns": 1.0,
                 "pairs": 3, "residual_ns": 0.0, "drift_sigma_ppb": 0.0,
                 "state": state if n > 2 else "SYNCED"}
                for n in range(1, 5)
            ],
        })  # fmt: skip


def _delays(log: Log) -> None:
    for second in range(125, HALF_HOUR_S):
        _, nic, record, append_ns = slow(second, 90.0 if any(second in each for each in SLOW) else 4.0)
        assert record is not None
        shift_ns = EPOCH_NS - T0
        for name in ("window_start_ns", "window_end_ns"):
            record[name] += shift_ns
        log.put(DELAYS, nic, append_ns + shift_ns, record)


def _queues(log: Log) -> None:
    tail = FlowTable(RouteTable(), lambda nic: True)
    watch = ContentionDetector("fabric", tail.of("fabric"), lambda nic: True, lambda: 4, lambda _: 10**9)
    for second in range(HALF_HOUR_S):
        stands = any(second in each for each in QUEUED)
        window = EPOCH_NS // S + second
        record = {
            "shard": "fabric", "window": window, "part": 0, "parts": 1, "window_start_ns": window * S,
            "slot_ns": SLOT, "slots": SLOTS, "synced": True, "paths": 10, "solved_ns": 1,
            "links": [queue("leaf1:swp4>spine2:swp1", 80e3)] if stands else [],
        }  # fmt: skip
        for made in watch.ingest(
            codec.decode(codec.encode("LinkQueues", record), "LinkQueues"), ContentionRules()
        ):
            log.put(CONTENTION, made["link"], (window + 1) * S + 40 * MS, made)


# ---------------------------------------------------------------------------------------- reading

Alerts = dict[tuple[str, int], dict[str, Any]]


def merged(published: Iterable[tuple[str, dict[str, Any]]], found: Alerts | None = None) -> Alerts:
    """Return alerts by identity; an alert that is published twice must be equal."""
    found = {} if found is None else found
    for key, record in published:
        assert key == record["alert_id"]
        codec.encode(ALERTS.record, record)
        same = found.setdefault((record["alert_id"], record["update"]), record)
        assert same == record
    return found


def follow(
    inputs: AlertInputs, messages: Sequence[Message], rng: random.Random, from_ns: int, to_ns: int
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Read as a worker does: each message comes up to 120 ms after the log took it, whatever its partition;
    it looks each 50 to 400 ms."""
    coming = sorted((m.append_ns + rng.randrange(120) * MS, n) for n, m in enumerate(messages))
    at, now_ns = 0, from_ns
    while now_ns < to_ns:
        now_ns = min(to_ns, now_ns + rng.randrange(50, 400) * MS)
        while at < len(coming) and coming[at][0] <= now_ns:
            inputs.add(messages[coming[at][1]])
            at += 1
        yield from inputs.evaluate(now_ns - BEHIND_NS)
        yield from inputs.evaluate_delays(now_ns - BEHIND_NS)


END_NS: Final = EPOCH_NS + (HALF_HOUR_S + 5) * S


@cache
def at_once() -> Alerts:
    """The alerts of the half hour, read from the start in one piece."""
    inputs = AlertInputs()
    for message in half_hour().messages:
        inputs.add(message)
    out = inputs.evaluate(END_NS) + inputs.evaluate_delays(END_NS)
    assert inputs.late == 0
    assert inputs.rejected == []
    return merged(out)


@pytest.mark.slow("simulates half an hour")
def test_the_half_hour_has_alerts_of_every_kind_each_raised_once() -> None:
    kinds: dict[str, set[str]] = {}
    states: dict[str, list[str]] = {}
    for (alert_id, _), record in sorted(at_once().items()):
        kinds.setdefault(record["kind"], set()).add(alert_id)
        states.setdefault(alert_id, []).append(record["state"])
    assert kinds.keys() >= {
        "LINK_DOWN", "LINK_GREY", "LINK_FLAPPING", "HOST_DOWN", "CONTENTION", "LATENCY", "CLOCKS", "AGENT",
        "PROBE_STORM", "MISWIRED",
    }, kinds  # fmt: skip
    assert len(states) >= 16
    assert all(each[:-1] == ["RAISED"] * (len(each) - 1) for each in states.values())
    assert sum(each[-1] == "CLEARED" for each in states.values()) >= len(states) - 2
    assert len(kinds["LATENCY"]) == 3  # the rule that was changed amid the second is another
    unsynced = next(r for r in at_once().values() if r["kind"] == "CLOCKS")
    assert "do not trust absolute delays" in unsynced["text"]


def test_link_health_does_not_depend_on_the_frequency_of_evaluation() -> None:
    log = half_hour()
    evidence, paths = log.of(LINKS), log.of(PATHS)
    published = [(m.key, m.value) for m in log.of(LINK_HEALTH)]
    again = [
        (subject, None if record is None else codec.encode(LINK_HEALTH.record, record))
        for _, subject, record in health_changes(evidence, paths, seed=None)
    ]
    assert sorted(again, key=repr) == sorted(published, key=repr)


@pytest.mark.parametrize("seed", draws(range(2)))
def test_followed_live_in_whatever_pieces_the_half_hour_gives_the_same_alerts(seed: int) -> None:
    inputs = AlertInputs()
    live = merged(follow(inputs, half_hour().messages, random.Random(seed), EPOCH_NS, END_NS))
    assert inputs.late == 0
    assert live == at_once()


@pytest.mark.parametrize("seed", draws(range(3)))
def test_workers_that_die_at_any_time_raise_the_same_alerts(seed: int) -> None:
    """Each takes over what its predecessor published, the last of which may be lost, and reads again only
    what `read_from` says."""
    rng, messages = random.Random(seed), half_hour().messages
    update_times = sorted({r["updated_ns"] for r in at_once().values()})
    near = [rng.choice(update_times) + rng.randrange(-8_000, 8_000) * MS for _ in range(8)]
    cuts = sorted([*near, *(EPOCH_NS + rng.randrange(20, HALF_HOUR_S) * S for _ in range(4))])
    published: list[tuple[str, dict[str, Any]]] = []
    for begin_ns, end_ns in zip([EPOCH_NS, *cuts], [*cuts, END_NS], strict=True):
        inputs = taken_over(messages, [record for _, record in published], begin_ns)
        known = [m for m in messages if m.append_ns >= begin_ns]
        published += inputs.evaluate(begin_ns - BEHIND_NS) + inputs.evaluate_delays(begin_ns - BEHIND_NS)
        made = list(follow(inputs, known, rng, begin_ns, end_ns))
        lost = rng.choice((0, 0, 1, 2)) if made and end_ns != END_NS else 0
        last_ns = end_ns - 3 * S
        while lost and made and made[-1][1]["updated_ns"] > last_ns:
            made.pop()
            lost -= 1
        published += made
    assert merged(published) == at_once()


def taken_over(messages: Sequence[Message], past: list[dict[str, Any]], now_ns: int) -> AlertInputs:
    """A new owner, with what it reads again."""
    thresholds = AlertInputs()
    for message in messages:
        if message.topic == CONFIG.name and message.append_ns < now_ns:
            thresholds.add(message)
    thresholds.evaluate(now_ns)
    thresholds.evaluate_delays(now_ns)
    longest_s = max((rule["for_s"] for rule in thresholds.config.latency_rules()), default=0.0)
    since = read_from(now_ns, thresholds.config.thresholds(), longest_s)
    inputs = AlertInputs(
        past, starts_ns=since,
        log_offset_ns=7_000 + max(0, (now_ns - EPOCH_NS) // S - 2) // 10,
    )  # fmt: skip
    last: dict[str, Message] = {}
    for message in messages:
        if message.append_ns >= now_ns:
            break
        if message.append_ns >= since[message.topic]:
            inputs.add(message)
        elif message.topic == LINK_HEALTH.name:
            last[message.key] = message
    for message in last.values():
        inputs.add(message)
    return inputs
