"""Measures how soon the drain service drains a node after a verdict, acknowledged by a real slurmctld.

Failed checks arrive on a real embedded log at random moments, at times two at once. A job runs on each node,
so that its owner is notified first. The figure is the time from the publication of the result to the answer
of slurmctld, as the service reports it; afterwards Slurm must show the drain. The bench then returns the node
to service. All processes have the niceness that `up` gives to the service and the log.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._machine import at_niceness
from fabrictime.bench._pipeline import embedded_log, service
from fabrictime.bench.operate._slurm import SlurmCluster, missing
from fabrictime.commands.config.live_config import PLAIN
from fabrictime.testbed.processes.scheduling_priority import NICE
from schemas.kafka.publisher import Publisher
from schemas.kafka.reader import END, TopicReader
from schemas.records import (
    ActionOutcome,
    ActMode,
    AuditAction,
    AuditCategory,
    AuditResult,
    AuditSeverity,
    AuditStatus,
    FlowAction,
)
from schemas.topics import ACTIONS, AUDIT, CONFIG

VERDICTS, QUICK_VERDICTS = 200, 8
NODES: Final = tuple(f"n{number}" for number in range(1, 9))
GAP_S: Final = 0.2
"""Mean time between a return to service and the next verdict, s."""
PAIR_SHARE: Final = 0.25
"""Share of the moments at which two hosts fail at once."""
LIMIT_S: Final = 30.0
FLUSH_S: Final = 10.0
SEED: Final = 42
NEVER: Final = 1_000_000
"""A cap that no run reaches."""


def measure(progress: Progress, quick: bool) -> dict[str, Value]:
    """Return the time from verdict to drain, and the number of verdicts."""
    names = ("verdict_to_cordon_ms_p99", "verdict_to_cordon_ms_p50", "verdicts", "verdicts_without_drain")
    if missing():
        return dict.fromkeys(names, Missing(f"no {missing()}"))
    with tempfile.TemporaryDirectory(prefix="ft-drains-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # for munge
        (folder / "slurm").mkdir()
        with (
            at_niceness(NICE["drains"]),
            SlurmCluster(folder / "slurm", NODES) as slurm,
            embedded_log(folder, partitions=4) as bootstrap,
            _commands_of(slurm),
            service("actuators.nodes", _settings(bootstrap, folder), folder),
        ):
            fleet = _Fleet(bootstrap, slurm)
            delays_ms = list(fleet.delays_ms(progress, QUICK_VERDICTS if quick else VERDICTS))
    drained = [delay for delay in delays_ms if delay is not None]
    if not drained:
        return dict.fromkeys(names, Missing("no verdict caused a drain"))
    p50, p99 = np.percentile(drained, (50, 99))
    note = f"of {len(drained)} verdicts, the slowest {max(drained):.0f} ms; load {os.getloadavg()[0]:.1f}"
    return {
        "verdict_to_cordon_ms_p99": Figure(float(p99), "ms", note),
        "verdict_to_cordon_ms_p50": Figure(float(p50), "ms"),
        "verdicts": Figure(len(delays_ms)),
        "verdicts_without_drain": Figure(len(delays_ms) - len(drained)),
    }


def _settings(bootstrap: str, folder: Path) -> dict[str, object]:
    rules = {"scheduler": "slurm", "max_out_share": 0.5, "max_per_hour": NEVER, "breaker_drains": NEVER}
    return {
        "kafka": {"bootstrap": bootstrap},
        "journal_file": str(folder / "run" / "journal.jsonl"),
        "nodes": rules,
    }


@contextmanager
def _commands_of(slurm: SlurmCluster) -> Iterator[None]:
    """Put the commands of a Slurm cluster on the PATH of this process and its children."""
    before = {name: os.environ.get(name) for name in ("PATH", "SLURM_CONF")}
    os.environ |= {name: slurm.env[name] for name in before}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass(slots=True)
class _Verdict:
    node: str
    run: str
    published_ns: int


class _Fleet:
    """Publishes failed and passed audits of nodes, each of which runs a job."""

    def __init__(self, bootstrap: str, slurm: SlurmCluster) -> None:
        self._publisher, self._slurm = Publisher(bootstrap), slurm
        self._reader = TopicReader.open(bootstrap, {ACTIONS: END})
        self._draw = random.Random(SEED)  # noqa: S311 - moments of verdicts, no secret
        allowed: list[str] = [FlowAction.DRAIN, FlowAction.RESUME]
        config = {**PLAIN, "mode": ActMode.ACT, "allowed_actions": allowed, "version": 1}
        self._publisher.publish(CONFIG, "*", config)
        for node in NODES:
            options = ("--output=/dev/null", "--error=/dev/null", f"--nodelist={node}")
            slurm.run("sbatch", *options, "--wrap=sleep 3600")
            self._publish(node, "r0", AuditStatus.PASSED)
        self._publisher.flush(FLUSH_S)
        self._until_allocated()

    def _until_allocated(self) -> None:
        """Wait until all nodes answer and run their jobs, which Slurm delays after a drain."""
        self._slurm.until(lambda: set(self._slurm.states().values()) == {"ALLOCATED"}, "a job on each node")

    def delays_ms(self, progress: Progress, count: int) -> Iterator[float | None]:
        """Yield the time from verdict to drain, ms; None for a verdict without a drain."""
        number = 0
        recent_nodes: deque[str] = deque(
            maxlen=len(NODES) // 2
        )  # Slurm pings a node that was returned to service
        while number < count:
            time.sleep(self._draw.expovariate(1 / GAP_S))  # verdicts come at any moment
            size = min(count - number, 1 + (self._draw.random() < PAIR_SHARE))
            nodes = self._draw.sample([node for node in NODES if node not in recent_nodes], size)
            recent_nodes.extend(nodes)
            verdicts = [self._fail(node, f"r{number + index}") for index, node in enumerate(nodes, 1)]
            yield from self._wait(verdicts)
            for node in nodes:
                self._slurm.scontrol("update", f"NodeName={node}", "State=UNDRAIN")
                self._publish(node, f"r{number}-clean", AuditStatus.PASSED)
            self._publisher.flush(FLUSH_S)
            self._until_allocated()
            number += size
            if number % 20 < size:
                progress(f"{number} verdicts")

    def _fail(self, node: str, run: str) -> _Verdict:
        published_ns = time.time_ns()
        self._publish(node, run, AuditStatus.FAILED)
        return _Verdict(node, run, published_ns)

    def _wait(self, verdicts: Sequence[_Verdict]) -> Iterator[float | None]:
        self._publisher.flush(FLUSH_S)
        left = {f"drain {verdict.node} {verdict.run}": verdict for verdict in verdicts}
        end_s = time.monotonic() + LIMIT_S
        while left and time.monotonic() < end_s:
            for _, report in self._reader.decoded(self._reader.poll(0.05, at_once=True)):
                if report["outcome"] == ActionOutcome.APPLIED and report["decision_id"] in left:
                    verdict = left.pop(report["decision_id"])
                    is_drained = "DRAIN" in self._slurm.states()[verdict.node]
                    yield (report["at_ns"] - verdict.published_ns) / 1e6 if is_drained else None
        yield from (None for _ in left)

    def _publish(self, node: str, run: str, status: AuditStatus) -> None:
        result: AuditResult = {
            "run": run,
            "host": node,
            "shard": "",
            "sku": "",
            "check": "node.ecc",
            "category": AuditCategory.NODE,
            "title": "No uncorrectable memory errors",
            "status": status,
            "severity": AuditSeverity.ERROR,
            "action": AuditAction.REPLACE,
            "remedy": "Replace the DIMM",
            "text": "mc0: 3 uncorrectable errors, expected 0",
            "checked_ns": time.time_ns(),
            "took_ns": 1,
            "checks": 1,
            "findings": [],
            "facts": [],
        }
        self._publisher.publish(AUDIT, run, result)
