"""Pushes the metrics by OTLP over HTTP, with OpenTelemetry's SDK.

Each push collects the samples once, and the instruments of all metrics read from this collection. Names are
those of Prometheus without `_total`, which receivers add again.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from schemas.metrics.base import Metric, Sample
from schemas.metrics.table import METRICS

UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1"}
"""Unit of a metric to its unit in UCUM; counts of things are annotations such as {probes}."""
TIMEOUT_S: Final = 10.0
"""Longest time of one push, s."""
CLOSE_S: Final = 2.0
"""Longest time of the last push, s."""
SAME_PUSH_S: Final = 0.5
"""Age up to which a collection belongs to the push that is under way, s."""


class OtlpPush:
    """Pushes the metrics every `interval_s` until `close`, which pushes once more."""

    def __init__(
        self, endpoint: str, interval_s: float, collect: Callable[[], Iterable[Sample]], release: str
    ) -> None:
        """Start to push to `endpoint`. `collect` returns the samples; `release` is fabrictime's version."""
        self._collect = collect
        self._samples: dict[str, list[Sample]] = {}
        self._collected_s = float("-inf")
        self._exporter = OTLPMetricExporter(endpoint, timeout=TIMEOUT_S)
        reader = PeriodicExportingMetricReader(
            self._exporter,
            export_interval_millis=interval_s * 1e3,
            export_timeout_millis=TIMEOUT_S * 1e3,
        )
        resource = Resource.create(
            {
                "service.name": "fabrictime",
                "service.instance.id": socket.gethostname(),
                "service.version": release,
            }
        )
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("fabrictime", release)
        for metric in METRICS:
            make: Any = (
                meter.create_observable_counter if metric.is_cumulative else meter.create_observable_gauge
            )
            for name in metric.sample_names:
                unit = UNITS.get(metric.unit, f"{{{metric.unit}}}")
                observe = partial(self._observe, metric, name)
                make(name.removesuffix("_total"), [observe], unit=unit, description=metric.help)

    def push(self) -> bool:
        """Push now. Return whether the receiver accepted the push in time."""
        return self._provider.force_flush(TIMEOUT_S * 1e3)

    def close(self) -> None:
        """Push once more and end. An attempt to reach the receiver ends after `CLOSE_S`."""
        shutdown = partial(self._provider.shutdown, CLOSE_S * 1e3)
        thread = threading.Thread(target=shutdown, name="last push", daemon=True)
        thread.start()
        thread.join(CLOSE_S)
        self._exporter.shutdown()  # ends a wait for the next attempt
        thread.join(CLOSE_S)

    def _observe(self, metric: Metric, name: str, options: CallbackOptions) -> Iterator[Observation]:
        now_s = time.monotonic()
        if now_s - self._collected_s > SAME_PUSH_S:
            by_name = defaultdict(list)
            for sample in self._collect():
                by_name[sample.name].append(sample)
            self._samples, self._collected_s = by_name, time.monotonic()
        for sample in self._samples.get(name, ()):
            labels = dict(zip(metric.label_names, sample.labels, strict=True))
            yield Observation(float(sample.value), labels)
