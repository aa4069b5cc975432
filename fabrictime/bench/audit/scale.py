"""Measures time and memory of a process that makes the report of 1,000 hosts from their results.

The process does the work of `fabrictime audit --fleet --json --html FILE --junit FILE` on messages of the
log. Another process encodes these messages into a file, which stands for the log.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from fabrictime.audit.collect import Collector
from fabrictime.audit.evaluate import evaluated
from fabrictime.audit.report import counted
from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._machine import peak_mb
from fabrictime.bench._parts import side_by_side
from fabrictime.bench.audit._results import fleet_results
from fabrictime.commands.audit.fleet import Output, show
from schemas import codec
from schemas.records import AuditResult

HOSTS, QUICK_HOSTS = 1_000, 100
SEED: Final = 26
LENGTH: Final = struct.Struct("<I")
"""Format of a message's length, which precedes the message in the file."""
MESSAGES: Final = "messages"


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure in a separate process, for about a minute; return the figures by key."""
    hosts = QUICK_HOSTS if quick else HOSTS
    with TemporaryDirectory() as folder:
        progress(f"scale: messages of {hosts:,} hosts")
        list(side_by_side(_encode, [(hosts, Path(folder))]))
        progress(f"scale: {hosts:,} hosts")
        [(took_s, memory_mb, before_mb, text)] = side_by_side(_report, [(hosts, Path(folder))])
    return {
        "audit_1000_hosts_s": Figure(took_s, note=text),
        "audit_1000_hosts_mb": Figure(memory_mb, note=f"{before_mb:.0f} MB before the first result"),
    }


def _encode(task: tuple[int, Path]) -> None:
    """Write the messages of some hosts into a folder."""
    hosts, folder = task
    with (folder / MESSAGES).open("wb") as file:
        for result in fleet_results(hosts, np.random.default_rng(SEED)):
            message = codec.encode(AuditResult, result)
            file.write(LENGTH.pack(len(message)) + message)


def _messages(folder: Path) -> Iterator[bytes]:
    with (folder / MESSAGES).open("rb") as file:
        while length := file.read(LENGTH.size):
            yield file.read(LENGTH.unpack(length)[0])


def _report(task: tuple[int, Path]) -> tuple[float, float, float, str]:
    """Make the finished report from all messages; return the time, s, peak and initial MB, and a remark."""
    hosts, folder = task
    files = {name: folder / name for name in ("HTML", "JUnit", "JSON")}
    before_mb = peak_mb()
    begin_s = time.perf_counter()
    collector = Collector("bench", [f"h{number + 1}" for number in range(hosts)], 0, {})
    for message in _messages(folder):
        collector.add(codec.decode(message, AuditResult))
    report = evaluated(collector.report(1, 1))
    with files["JSON"].open("w", encoding="utf-8") as file, redirect_stdout(file):
        show(report, Output(as_json_line=True, html=files["HTML"], junit=files["JUnit"]))
    took_s = time.perf_counter() - begin_s
    written = ", ".join(f"{name} {path.stat().st_size / 1e6:.1f} MB" for name, path in files.items())
    counts = counted(report.all_results())
    text = f"{collector.progress.results:,} results of {hosts:,} hosts, {counts}; {written}"
    return took_s, peak_mb(), before_mb, text
