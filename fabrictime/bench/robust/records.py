"""Publishes hostile records to all topics of a running fabric that has one dead link.

Afterwards every process must still run, the dead link must be the only finding, and the figures that users
see must be possible values.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._apache_kafka import NotAvailable, running
from fabrictime.bench._fabric import CannotRun, RunningFabric, running_fabric
from fabrictime.bench._machine import at_niceness
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.robust.hostile import HostileMaker
from fabrictime.runtime import status
from fabrictime.state.live_figures import View, Watcher
from schemas.ids import cable_id
from schemas.kafka.producer import load_producer, produce
from schemas.kafka.reader import BEGINNING, END, TopicReader, tail
from schemas.records import LinkHealth, LinkState
from schemas.topics import CLOCK_OFFSETS, LINK_HEALTH, LINKS, TOPICS

SETTINGS: Final = """
[fabric]
hosts = 8
leaves = 4
spines = 4
"""
RECORDS, QUICK_RECORDS = 800_000, 50_000
KAFKA_RECORDS, KAFKA_QUICK = 200_000, 20_000
MINUTES: Final = 60
"""Time limit of a run with one log, for a busy machine."""
PUBLISH_S: Final = 1_500.0
"""Longest time in which hostile records are published to one log."""
PUBLISH_PER_S: Final = 800.0
"""Hostile records per second: a third more than in the flood that once ended every prober of a fleet."""
PUBLISH_NICENESS: Final = -10
"""Niceness of the writers of hostile records: they stand for other hosts, so they must not slow the
services."""
CATCH_UP_S: Final = 900.0
"""Longest time after the last hostile record until link health and clocks follow from later evidence. A
worker that shares two processors with writers, log and probers is minutes behind then."""
NAMED: Final = 12
"""Maximum number of findings that a note lists."""
SAMPLES: Final = 20
"""Number of good messages of each partition from which hostile ones are made."""
STEADY_S: Final = 20.0
DETECT_S: Final = 30.0
SETTLE_S: Final = 15.0
RECOVERY_S: Final = 60.0
"""Longest time until the verdicts are right again. A forged route that passes all checks stands until the
tracer publishes again the routes of a path that loses every probe, within 30 s (`SILENT_REPUBLISH_S`)."""
MAX_P99_NS: Final = 10e9
MAX_LATE_MS: Final = 600e3
MAX_LOG_OFFSET_NS: Final = 1_000_000_000
"""Maximum difference of fabric time and log time, which both come from this host's clock."""
SEED: Final = 25


class Spoils(NamedTuple):
    """The effects of hostile records with one log."""

    log: str
    sent: int
    ended: list[str]
    changed: list[str]
    spoilt: list[str]


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure on fabrics of eight hosts, with the embedded log and with Apache Kafka; each takes some
    minutes."""
    spoils = [_on("embedded log", SETTINGS, progress, QUICK_RECORDS if quick else RECORDS)]
    missing = ""
    try:
        with tempfile.TemporaryDirectory(prefix="fabrictime-kafka-") as name, running(Path(name)) as address:
            settings = f'{SETTINGS}[up]\nlog_url = "{address}"\nworkers = 1\n'
            spoils.append(_on("Apache Kafka", settings, progress, KAFKA_QUICK if quick else KAFKA_RECORDS))
    except (NotAvailable, CannotRun) as reason:
        missing = f"Apache Kafka not tried: {reason}"
    return figures_of(spoils, missing)


def _on(log: str, settings: str, progress: Progress, records: int) -> Spoils:
    progress(f"robust: {log}")
    with running_fabric(progress, settings, MINUTES) as fabric:
        watcher = Watcher(fabric.bootstrap)
        watcher.start()
        try:
            return _measure(log, fabric, watcher.view, progress, records)
        finally:
            watcher.stop()


def figures_of(spoils: Sequence[Spoils], missing: str = "") -> dict[str, Value]:
    """Return the figures over the runs with each log; notes name the log of each finding."""

    def count(kind: str) -> Figure:
        names = [f"{of_log.log}: {name}" for of_log in spoils for name in getattr(of_log, kind)]
        return Figure(float(len(names)), note=", ".join(names[:NAMED]) or None)

    sent = [f"{of_log.sent:,} {of_log.log}" for of_log in spoils] + ([missing] if missing else [])
    return {
        "hostile_records": Figure(float(sum(of_log.sent for of_log in spoils)), note=", ".join(sent)),
        "processes_ended": count("ended"),
        "verdicts_changed": count("changed"),
        "figures_spoilt": count("spoilt"),
    }


def _measure(log: str, fabric: RunningFabric, view: View, progress: Progress, records: int) -> Spoils:
    progress("robust: the fabric becomes steady")
    time.sleep(STEADY_S)
    maker = HostileMaker(good_messages(fabric.bootstrap), SEED)
    fabric_state = fabric.control.ask("show")
    link = next(name for name in fabric_state["links"] if name.startswith("leaf1:") and ">spine2:" in name)
    progress(f"robust: {link} is dead")
    fabric.control.ask("fault", line=f"blackhole {link}")
    _wait_down(fabric.bootstrap, cable_id(link))
    before = restarts(status.read(fabric.data))
    sent = _publish(fabric.bootstrap, maker, records, progress)
    progress(f"robust: {sent:,} hostile records; the pipeline settles")
    flooded_s = time.monotonic()
    caught_up = _wait_caught_up(fabric.bootstrap)
    progress(f"robust: caught up after {time.monotonic() - flooded_s:.0f} s")
    time.sleep(SETTLE_S)
    state = status.read(fabric.data)
    ended = [
        f"{name} ({_last_exit(state, name)}{critical_line(fabric.data, name)})"
        for name in ended_processes(before, restarts(state))
    ]
    changed = _wait_right(fabric.bootstrap, cable_id(link), progress)
    spoilt = caught_up.spoilt + spoilt_figures(view, {nic["nic"] for nic in fabric_state["nics"]})
    return Spoils(log, sent, ended, sorted(changed), spoilt)


def good_messages(bootstrap: str) -> dict[str, list[tuple[bytes | None, bytes]]]:
    """Return the keys and values of the newest messages of each topic, by topic."""
    messages: dict[str, list[tuple[bytes | None, bytes]]] = {}
    with contextlib.closing(TopicReader(bootstrap, dict.fromkeys(TOPICS.values(), tail(SAMPLES)))) as reader:
        reader.connect()
        for message in reader.read_to_end():
            if message.value is not None:
                messages.setdefault(message.topic, []).append((message.key_bytes, message.value))
    return messages


def ended_processes(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Return the names of processes that were restarted or have gone, from their restart counts before and
    after."""
    return sorted(name for name, restarts in before.items() if after.get(name, -1) != restarts)


def spoilt_figures(view: View, nics: set[str]) -> list[str]:
    """Return impossible figures in the live table: unknown NICs, impossible losses and delays."""
    with view.lock:
        spoilt = [f"NIC {name}" for name in sorted(view.nics.keys() - nics)]
        spoilt += [
            f"{name}: {nic.lost} lost of {nic.samples}"
            for name, nic in sorted(view.nics.items())
            if nic.lost > nic.samples + 1_000
        ]
        spoilt += [
            f"{name}: p99 {path.p99_ns:.0f} ns"
            for name, path in sorted(view.worst.items())
            if abs(path.p99_ns) > MAX_P99_NS
        ]
        if view.late_ms is not None and abs(view.late_ms) > MAX_LATE_MS:
            spoilt.append(f"window to offsets {view.late_ms:.0f} ms")
    return spoilt


def restarts(state: Mapping[str, Any]) -> dict[str, int]:
    """Return how often each process of a running `up` was restarted, by name."""
    return {row["name"]: row["restarts"] for row in state["children"]}


def _last_exit(state: Mapping[str, Any], name: str) -> str:
    return next((str(row["last_exit"]) for row in state["children"] if row["name"] == name), "is gone")


def critical_line(data: Path, name: str) -> str:
    """Return the last line of a process's log that gives the reason of its end, or '' without such a line."""
    try:
        lines = (data / "run" / f"{name.replace('/', '-')}.log").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((f": {line}" for line in reversed(lines) if " CRITICAL " in line), "")


def _publish(bootstrap: str, maker: HostileMaker, records: int, progress: Progress) -> int:
    producer = load_producer(bootstrap, {"linger.ms": 20, "compression.type": "none"})
    begin_s = time.monotonic()
    sent = 0
    with at_niceness(PUBLISH_NICENESS):
        while sent < records and time.monotonic() < begin_s + PUBLISH_S:
            if sent % 100 == 0:
                time.sleep(max(0.0, begin_s + sent / PUBLISH_PER_S - time.monotonic()))
            message = maker.make()
            produce(producer, message.topic, message.value, message.key)
            if sent % 1000 == 0:
                producer.poll(0)
            if sent % 50_000 == 0:
                progress(f"robust: {sent:,} hostile records")
            sent += 1
    return sent - int(producer.flush(60))


class CatchUp:
    """The topics that have no record yet based on evidence after `began_ns`, ns since the Unix epoch.

    A worker that is behind, or was restarted, publishes old windows first, and correctly shows them as late.
    So figures are evaluated only after it has caught up.
    """

    def __init__(self, began_ns: int, link_events: Mapping[str, int]) -> None:
        """Set up the state; `link_events` has the end of each partition of fabric.links at `began_ns`, by its
        name."""
        self.behind = {LINK_HEALTH.name, CLOCK_OFFSETS.name}
        self.log_offset_ns = 0
        """Fabric time minus log time in the newest window of clocks."""
        self._began_ns, self._link_events = began_ns, link_events

    def take(self, topic: str, record: Any) -> None:
        """Process a record of one of the topics.

        For link health, `evaluated_ns` is not used, since it only changes with the subject's state. The
        record of the dead link is published again every ten seconds, with the evidence that it covers.
        """
        if topic == LINK_HEALTH.name:
            end = self._link_events.get(record["evidence_source"])
            is_new = end is not None and record["evidence_offset"] >= end
        else:
            is_new = record["window_start_ns"] >= self._began_ns
        if is_new:
            self.behind.discard(topic)
            if topic == CLOCK_OFFSETS.name:
                self.log_offset_ns = record["log_offset_ns"]

    @property
    def spoilt(self) -> list[str]:
        """Topics without new evidence, and fabric time if it differs too much from log time."""
        spoilt = [f"{name}: nothing new within {CATCH_UP_S:g} s" for name in sorted(self.behind)]
        if abs(self.log_offset_ns) > MAX_LOG_OFFSET_NS:
            spoilt.append(f"fabric time {self.log_offset_ns * 1e-9:+.3f} s from log time")
        return spoilt


def _wait_caught_up(bootstrap: str) -> CatchUp:
    """Wait until both topics have caught up, at most `CATCH_UP_S`; return their state."""
    with TopicReader.open(bootstrap, {LINKS: tail(1)}) as links:
        ends = {f"{newest.topic}/{newest.partition}": newest.offset + 1 for newest in links.read_to_end()}
    state, end_s = CatchUp(time.time_ns(), ends), time.monotonic() + CATCH_UP_S
    with contextlib.closing(TopicReader(bootstrap, {LINK_HEALTH: END, CLOCK_OFFSETS: END})) as reader:
        reader.connect()
        while state.behind and time.monotonic() < end_s:
            for message, record in reader.decoded(reader.poll(0.5)):
                if record is not None:
                    state.take(message.topic, record)
    return state


def _wait_down(bootstrap: str, cable: str) -> None:
    if wait_for(lambda: cable in _verdicts(bootstrap), DETECT_S, poll_s=0.5) is None:
        raise CannotRun(f"{cable} is not DOWN after {DETECT_S:g} s, before any hostile record")


def _wait_right(bootstrap: str, cable: str, progress: Progress) -> set[str]:
    """Wait until only the dead cable is not UP; return the subjects whose verdicts stay wrong."""
    begin_s, seen = time.monotonic(), set[str]()
    while True:
        verdicts = _verdicts(bootstrap)
        wrong = set(verdicts) ^ {cable}
        for subject in sorted(wrong - seen):
            progress(f"robust: {subject}: {verdicts.get(subject, 'not DOWN any more')}")
        seen |= wrong
        waited_s = time.monotonic() - begin_s
        if not wrong and seen:
            progress(f"robust: all verdicts are right again after {waited_s:.0f} s")
        if not wrong or waited_s > RECOVERY_S:
            return wrong
        time.sleep(1)


def _verdicts(bootstrap: str) -> dict[str, str]:
    """Return the state and the text of each subject that is not UP, by subject."""
    records: dict[str, LinkHealth] = {}
    with contextlib.closing(TopicReader(bootstrap, {LINK_HEALTH: BEGINNING})) as reader:
        reader.connect()
        for message, record in reader.decoded(reader.read_to_end()):
            if record is None:
                records.pop(message.key, None)
            else:
                records[message.key] = record
    return {
        subject: f"{record['state']}: {record['text']}"
        for subject, record in records.items()
        if record["state"] != LinkState.UP
    }
