"""Measures an upgrade of a worker and its stages behind a simulated fleet, and the rollback.

The later version has further fields and symbols in its schemas, and publishes the schemas first, as the guide
requires. The fleet, its actuator and the page keep the former version, so each version reads the other's
records.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench.operate._later_version import RECORDS, LaterSchemas, Versions
from fabrictime.bench.operate._up import Up, run_module_of
from fabrictime.bench.operate.restart import (
    QUICK_STEADY_S,
    READY_S,
    STEADY_S,
    TOPICS_READ,
    Watch,
    follow,
    listed,
    restart_all,
)
from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.reader import TopicReader
from schemas.kafka.start import END
from schemas.run_module import script_command
from schemas.topics import REJECTS, TOPICS
from schemas.units import counted

FLEET: Final = "sim:8"
WORKERS: Final = 1
CREATE_S: Final = 60.0
REJECTS_SHOWN: Final = 6


class MixedWatch(Watch):
    """Counts the log's records and rejects while two versions write to it, without I/O of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.later = 0
        """Number of records of the later version."""
        self.rejects: Counter[str] = Counter()

    def take(self, message: Message, record: Any) -> None:
        """Take a message of `TOPICS_READ` or of `fabric.rejects`."""
        if message.topic == REJECTS.name:
            self.rejects[f"{record['reader']}: {record['topic']} {record['reason']}"] += 1
        elif message.value is not None and message.value[2 : codec.HEADER_BYTES] != codec.fingerprint_of(
            TOPICS[message.topic].record
        ):
            self.later += 1
        super().take(message, record)


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Upgrade the worker and its stages, roll back, and return the figures; takes 4 to 8 minutes."""
    with tempfile.TemporaryDirectory(prefix="ft-versions-") as name:
        folder = Path(name)
        progress("versions: two copies of the code")
        versions = Versions(folder)
        arguments = ("--fleet", FLEET, "--workers", str(WORKERS))
        with Up(folder, *arguments, code=versions.current) as up, _reader(up) as reader:
            return _measure(up, reader, versions, progress, QUICK_STEADY_S if quick else STEADY_S)


@contextmanager
def _reader(up: Up) -> Iterator[TopicReader]:
    with TopicReader.open(up.addresses["log"], dict.fromkeys((*TOPICS_READ, REJECTS), END)) as reader:
        yield reader


def _measure(
    up: Up, reader: TopicReader, versions: Versions, progress: Progress, steady_s: float
) -> dict[str, Value]:
    registry = LaterSchemas()
    progress("versions: the fleet becomes steady")
    follow(reader, [], READY_S)
    watch, of_upgrade, of_rollback = MixedWatch(), MixedWatch(), MixedWatch()
    versions.upgrade()
    _publish_schemas(up, versions.current)
    restart_all(up, reader, [watch, of_upgrade], progress, steady_s, registry)
    versions.roll_back()
    restart_all(up, reader, [watch, of_rollback], progress, steady_s, registry)
    if not of_upgrade.later:
        raise RuntimeError("no record of the later version was read: the restarted processes did not run it")
    return figures_of(watch, of_upgrade, of_rollback)


def _publish_schemas(up: Up, code: Path) -> None:
    arguments = ("fabrictime", "topics", "create", "--dir", str(up.directory))
    command = script_command(run_module_of(code), *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=CREATE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"topics create of the later version: {done.stderr.strip()[-400:]}")


def figures_of(watch: MixedWatch, of_upgrade: Watch, of_rollback: Watch) -> dict[str, Value]:
    """Return the figures of the whole run, with the gaps during upgrade and rollback as a note."""
    lost = watch.lost_decisions()
    later = f"{counted(watch.later, 'record')} of {len(RECORDS)} later schemas"
    rejects = [f"{count} x {text}" for text, count in watch.rejects.most_common(REJECTS_SHOWN)]
    times = f"upgrade {of_upgrade.gap_s:.1f} s, rollback {of_rollback.gap_s:.1f} s"
    return {
        "mixed_versions_windows_late_s": Figure(watch.gap_s, note=times),
        "mixed_versions_false_alarms": listed(watch.false_alarms),
        "mixed_versions_lost_decisions": Figure(float(len(lost)), note=f"of {watch.decisions} decisions"),
        "mixed_versions_clock_steps": listed(watch.steps),
        "mixed_versions_rejects": Figure(float(watch.rejects.total()), note=", ".join((later, *rejects))),
    }
