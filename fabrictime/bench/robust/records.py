"""Publishes hostile records to all topics of a running fabric that has one dead link.

Afterwards every process must still run, the dead link must be the only finding, and the figures that people
see must be possible ones.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun, RunningFabric, needs_fabric, running_fabric
from fabrictime.bench.robust.hostile import HostileMaker
from fabrictime.runtime import status
from fabrictime.state.live_figures import View, Watcher
from schemas.ids import cable_id
from schemas.kafka.reader import BEGINNING, TopicReader, tail
from schemas.records import LinkState
from schemas.topics import LINK_HEALTH, TOPICS

if TYPE_CHECKING:
    from confluent_kafka import Producer

__all__ = ["ended_processes", "measure", "spoilt_figures"]

SETTINGS: Final = """
[fabric]
hosts = 8
leaves = 4
spines = 4
"""
RECORDS, QUICK_RECORDS = 1_000_000, 50_000
SAMPLES: Final = 20
"""Good messages of each partition from which hostile ones are made."""
STEADY_S: Final = 20.0
DETECT_S: Final = 30.0
SETTLE_S: Final = 15.0
MAX_P99_NS: Final = 10e9
SEED: Final = 25


@needs_fabric(("hostile_records", "processes_ended", "verdicts_changed", "figures_spoilt"))
def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure on a fabric of eight hosts; some minutes."""
    with running_fabric(progress, SETTINGS) as fabric:
        watcher = Watcher(fabric.bootstrap)
        watcher.start()
        try:
            return _measure(fabric, watcher.view, progress, QUICK_RECORDS if quick else RECORDS)
        finally:
            watcher.stop()


def _measure(fabric: RunningFabric, view: View, progress: Progress, records: int) -> dict[str, Value]:
    progress("robust: the fabric becomes steady")
    time.sleep(STEADY_S)
    maker = HostileMaker(good_messages(fabric.bootstrap), SEED)
    shown = fabric.control.ask("show")
    link = next(each for each in shown["links"] if each.startswith("leaf1:") and ">spine2:" in each)
    progress(f"robust: {link} is dead")
    fabric.control.ask("fault", line=f"blackhole {link}")
    _wait_down(fabric.bootstrap, cable_id(link))
    before = _children(fabric.data)
    sent = _publish(fabric.bootstrap, maker, records, progress)
    progress("robust: the pipeline settles")
    time.sleep(SETTLE_S)
    ended = ended_processes(before, _children(fabric.data))
    changed = set(_verdicts(fabric.bootstrap)) ^ {cable_id(link)}
    spoilt = spoilt_figures(view, {nic["nic"] for nic in shown["nics"]})
    return {
        "hostile_records": float(sent),
        "processes_ended": Figure(float(len(ended)), note=", ".join(ended) or None),
        "verdicts_changed": Figure(float(len(changed)), note=", ".join(sorted(changed)) or None),
        "figures_spoilt": Figure(float(len(spoilt)), note=", ".join(spoilt) or None),
    }


def good_messages(bootstrap: str) -> dict[str, list[tuple[bytes | None, bytes]]]:
    """Return key and value of the newest messages of each topic."""
    found: dict[str, list[tuple[bytes | None, bytes]]] = {}
    with contextlib.closing(TopicReader(bootstrap, dict.fromkeys(TOPICS.values(), tail(SAMPLES)))) as reader:
        reader.connect()
        for message in reader.read_to_end():
            if message.value is not None:
                found.setdefault(message.topic, []).append((message.key_bytes, message.value))
    return found


def ended_processes(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Return the names of processes that were restarted or are gone, by their numbers of starts."""
    return sorted(name for name, restarts in before.items() if after.get(name, -1) != restarts)


def spoilt_figures(view: View, nics: set[str]) -> list[str]:
    """Return the figures of the live table that cannot be: strange NICs, impossible losses and delays."""
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
    return spoilt


def _children(data: Path) -> dict[str, int]:
    return {row["name"]: row["restarts"] for row in status.read(data)["children"]}


def _publish(bootstrap: str, maker: HostileMaker, records: int, progress: Progress) -> int:
    from confluent_kafka import Producer

    producer: Producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "none"}
    )
    for number in range(records):
        message = maker.make()
        while True:
            try:
                producer.produce(message.topic, message.value, message.key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
        if number % 100_000 == 0:
            progress(f"robust: {number:,} hostile records")
    left = producer.flush(60)
    return records - left


def _wait_down(bootstrap: str, cable: str) -> None:
    deadline_s = time.monotonic() + DETECT_S
    while cable not in _verdicts(bootstrap):
        if time.monotonic() > deadline_s:
            raise CannotRun(f"{cable} is not DOWN after {DETECT_S:g} s, before any hostile record")
        time.sleep(0.5)


def _verdicts(bootstrap: str) -> dict[str, LinkState]:
    """Return the subjects that are not UP, with their state."""
    states: dict[str, LinkState] = {}
    with contextlib.closing(TopicReader(bootstrap, {LINK_HEALTH: BEGINNING})) as reader:
        reader.connect()
        for message, record in reader.decoded(reader.read_to_end()):
            if record is None:
                states.pop(message.key, None)
            else:
                states[message.key] = record["state"]
    return {subject: state for subject, state in states.items() if state != LinkState.UP}
