"""Merges the metrics of all processes of one `fabrictime up`, so that a host is one Prometheus target.

Each child answers on a socket of its own in the data directory. Counters of a restarted child continue: the
values of its former processes stay in the sum. A child that does not answer in time keeps its counters, and
its other series are left out.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas.control_socket import ControlServer, exchange
from schemas.ipc import connect
from schemas.metrics.base import Merge, Sample, Series, add_to, samples_of
from schemas.metrics.sources import SOURCES, Sources
from schemas.metrics.table import METRIC_OF_SAMPLE

SOCKET_VARIABLE: Final = "FABRICTIME_METRICS_SOCKET"
"""Environment variable with the path of the socket on which a child answers."""
COMMAND: Final = "metrics"
ANSWER_S: Final = 1.0
"""Longest wait for a child's answer, s."""
THREADS: Final = 8


def serve_socket(path: Path, sources: Sources = SOURCES) -> ControlServer:
    """Answer the supervisor's requests for metrics on a socket. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ControlServer(path, "metrics", {COMMAND: lambda request: [sources.collect()]})


def read_socket(path: Path) -> list[Sample]:
    """Return the metric samples of a child from its socket. Raises OSError or ValueError."""
    connection = connect(path, ANSWER_S)
    for answer in exchange(connection, COMMAND, {}):
        if answer["ok"]:
            return [Sample(name, value, tuple(labels)) for name, value, labels in answer["result"]]
        raise ValueError(f"{path}: {answer['error']}")
    raise ValueError(f"{path}: no answer")


@dataclass(slots=True)
class ChildTotals:
    """The counters of one child, summed over all its processes."""

    pid: int | None = None
    newest: dict[Series, float] = field(default_factory=dict)
    former: dict[Series, float] = field(default_factory=dict)

    def update(self, pid: int | None, samples: Sequence[Sample]) -> None:
        """Store the newest counters of the process `pid`."""
        if pid != self.pid:
            for sample in samples_of(self.newest):
                add_to(self.former, Merge.SUM, sample)
            self.pid, self.newest = pid, {}
        for sample in samples:
            if METRIC_OF_SAMPLE[sample.name].is_cumulative:
                self.newest[(sample.name, sample.labels)] = sample.value

    def samples(self) -> Iterator[Sample]:
        """Yield the counters, each summed over the present and all former processes."""
        yield from samples_of(self.newest)
        yield from samples_of(self.former)


class HostMetrics:
    """The metrics of an `up` and its children. `snapshot` returns the supervisor's row for each child."""

    def __init__(
        self,
        snapshot: Callable[[], Sequence[Mapping[str, Any]]],
        sockets: Mapping[str, Path],
        services: Mapping[str, str],
        sources: Sources = SOURCES,
    ) -> None:
        """Read the children. `sockets` and `services` are each child's socket and kind of service, by
        name.
        """
        self._snapshot, self._sockets, self._services = snapshot, dict(sockets), dict(services)
        self._sources = sources
        self._children = {name: ChildTotals() for name in sockets}
        self._errors = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, "metrics")

    def collect(self) -> list[Sample]:
        """Return the merged samples of all processes."""
        with self._lock:
            return list(self._merged())

    def _merged(self) -> Iterator[Sample]:
        rows = [row for row in self._snapshot() if row["name"] in self._sockets]
        totals: dict[Series, float] = {}
        answers = self._pool.map(self._read, rows)
        for row, samples in zip(rows, answers, strict=True):
            child = self._children[row["name"]]
            if samples is None:
                self._errors += row["state"] == "ready"
                samples = []
            else:
                child.update(row["pid"], samples)
            gauges = [s for s in samples if not METRIC_OF_SAMPLE[s.name].is_cumulative]
            for sample in (*gauges, *child.samples()):
                add_to(totals, METRIC_OF_SAMPLE[sample.name].merge, sample)
        own = [*self._sources.collect(), Sample("fabrictime_metrics_errors_total", self._errors)]
        for sample in (*own, *self._supervised(rows)):
            add_to(totals, METRIC_OF_SAMPLE[sample.name].merge, sample)
        yield from samples_of(totals)

    def _read(self, row: Mapping[str, Any]) -> list[Sample] | None:
        """Return the samples of the child in a supervisor's row; None if the child does not answer."""
        if row["pid"] is None:
            return None
        try:
            return read_socket(self._sockets[row["name"]])
        except (OSError, ValueError):
            return None

    def _supervised(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
        ready = sum(row["state"] == "ready" and row["fault"] is None for row in rows)
        yield Sample("fabrictime_processes", ready, ("ready",))
        yield Sample("fabrictime_processes", len(rows) - ready, ("not_ready",))
        restarts: Counter[str] = Counter()
        for row in rows:
            restarts[self._services[row["name"]]] += row["restarts"]
        for service, count in restarts.items():
            yield Sample("fabrictime_restarts_total", count, (service,))

    def close(self) -> None:
        """End the threads that read the children."""
        self._pool.shutdown(wait=False, cancel_futures=True)
