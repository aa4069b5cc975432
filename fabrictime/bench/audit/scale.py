"""Measures the way from the results of 1,000 hosts to the finished report: time and memory of a process."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from fabrictime.audit.collect import Collector
from fabrictime.audit.evaluate import evaluated
from fabrictime.audit.html import page
from fabrictime.audit.junit import junit
from fabrictime.audit.report import counted
from fabrictime.audit.stored import as_json
from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._machine import peak_mb
from fabrictime.bench._parts import side_by_side
from fabrictime.bench.audit._results import fleet_results
from schemas import codec
from schemas.records import AuditResult

__all__ = ["measure"]

HOSTS, QUICK_HOSTS = 1_000, 100
SEED: Final = 26


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure in a process of its own, for about a minute."""
    hosts = QUICK_HOSTS if quick else HOSTS
    progress(f"scale: {hosts:,} hosts")
    [(took_s, memory_mb, before_mb, text)] = side_by_side(_report, [hosts])
    return {
        "audit_1000_hosts_s": Figure(took_s, note=text),
        "audit_1000_hosts_mb": Figure(memory_mb, note=f"{before_mb:.0f} MB before the first result"),
    }


def _report(hosts: int) -> tuple[float, float, float, str]:
    """Decode, collect, evaluate and write; return s, peak MB, MB before, and a remark."""
    messages = [
        codec.encode(AuditResult, result) for result in fleet_results(hosts, np.random.default_rng(SEED))
    ]
    before_mb = peak_mb()
    begin_s = time.perf_counter()
    collector = Collector("bench", [f"h{number + 1}" for number in range(hosts)], 0, {})
    for message in messages:
        collector.add(codec.decode(message, AuditResult))
    report = evaluated(collector.report(1, 1))
    sizes = {name: len(form(report)) for name, form in (("HTML", page), ("JUnit", junit), ("JSON", as_json))}
    took_s = time.perf_counter() - begin_s
    written = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items())
    text = f"{len(messages):,} results of {hosts:,} hosts, {counted(report.all_results())}; {written}"
    return took_s, peak_mb(), before_mb, text
