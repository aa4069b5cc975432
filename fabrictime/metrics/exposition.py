"""Converts samples to the metric families of prometheus_client, and serves them over HTTP."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from schemas.metrics import base
from schemas.metrics.base import COUNT, Kind, Sample
from schemas.metrics.table import METRICS

Collect = Callable[[], Iterable[Sample]]
IDLE_S: Final = 10.0
"""Longest time in which a client must send its request, s."""
SUFFIX_UNITS: Final = ("seconds", "bytes", "ratio")
"""Units that are suffixes of the names, as OpenMetrics requires of a unit that it transmits."""


class Exposition(Collector):
    """The metrics of one endpoint, in the order of their table. Each scrape calls `collect_samples`."""

    def __init__(self, collect_samples: Collect) -> None:
        self._collect_samples = collect_samples

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have samples."""
        by_name: dict[str, list[Sample]] = defaultdict(list)
        for sample in self._collect_samples():
            by_name[sample.name].append(sample)
        for metric in METRICS:
            samples = [sample for name in metric.sample_names for sample in by_name[name]]
            if samples:
                yield _family(metric, samples)

    def describe(self) -> Iterator[Metric]:
        """Yield no metric, so that the registration of this collector does not collect samples."""
        return iter(())


def _family(metric: base.Metric, samples: list[Sample]) -> Metric:
    unit = metric.unit if metric.unit in SUFFIX_UNITS else ""
    if metric.kind is Kind.SUMMARY:
        values = {sample.name: float(sample.value) for sample in samples}
        summary = SummaryMetricFamily(metric.name, metric.help, labels=(), unit=unit)
        summary.add_metric((), int(values[metric.name + COUNT]), values[metric.name + base.SUM])
        return summary
    make: Any = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family: Metric = make(metric.name, metric.help, labels=metric.label_names, unit=unit)
    for sample in sorted(samples, key=lambda sample: sample.labels):
        family.add_metric(sample.labels, float(sample.value))  # type: ignore[attr-defined]  # of its subclasses
    return family


class _Timed:
    """Closes a connection that sends no request for `IDLE_S`, because each connection has a thread."""

    timeout = IDLE_S

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()  # type: ignore[misc]  # of prometheus_client's handler


class Endpoint:
    """An HTTP endpoint that Prometheus scrapes, from construction to `close`."""

    def __init__(self, host: str, port: int, collect_samples: Collect) -> None:
        """Listen on `port`, or on any free port if it is 0. Raises OSError."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Exposition(collect_samples))
        self._server, self._thread = start_http_server(port, host, registry)
        handler: Any = self._server.RequestHandlerClass
        self._server.RequestHandlerClass = type("Handler", (_Timed, handler), {})
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop listening and close the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
