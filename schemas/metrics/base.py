"""Declares metrics and samples. Names follow Prometheus: prefix, base unit, `_total` for counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

PREFIX: Final = "fabrictime_"
SUM, COUNT = "_sum", "_count"
"""Suffixes of the two samples of a summary."""


class Kind(StrEnum):
    """The type of a metric, by Prometheus' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"


class Merge(StrEnum):
    """The operation that merges a metric's samples from several sources or processes."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Detail(StrEnum):
    """Whether a metric is always exported, or per NIC or link if a setting asks for that."""

    ALWAYS = "always"
    PER_NIC = "per_nic"
    PER_LINK = "per_link"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `writers` names the services that export it; empty means all services.

    `labels` maps each label to its possible values; a label of a NIC or link lists none.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    writers: tuple[str, ...] = ()
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    merge: Merge = Merge.SUM
    detail: Detail = Detail.ALWAYS

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the metric's labels."""
        return tuple(name for name, _ in self.labels)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names of the metric's samples: two for a summary, one otherwise."""
        return (self.name + SUM, self.name + COUNT) if self.kind is Kind.SUMMARY else (self.name,)

    @property
    def series(self) -> int:
        """The largest number of series that one endpoint exports; for a `detail`, per NIC or link."""
        count = len(self.sample_names)
        for _, values in self.labels:
            count *= len(values) or 1
        return count

    @property
    def is_cumulative(self) -> bool:
        """Whether the metric only grows while a process lives."""
        return self.kind is not Kind.GAUGE


class Sample(NamedTuple):
    """One value of a metric, with the values of its labels in the order of the declaration."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


Series = tuple[str, tuple[str, ...]]
"""Name and label values of a sample."""


def add_to(totals: dict[Series, float], merge: Merge, sample: Sample) -> None:
    """Merge a sample into the totals."""
    key = (sample.name, sample.labels)
    before = totals.get(key)
    if before is None:
        totals[key] = sample.value
    elif merge is Merge.SUM:
        totals[key] = before + sample.value
    else:
        totals[key] = max(before, sample.value) if merge is Merge.MAX else min(before, sample.value)


def samples_of(totals: dict[Series, float]) -> Iterator[Sample]:
    """Yield merged totals as samples."""
    for (name, labels), value in totals.items():
        yield Sample(name, value, labels)


def by_sample_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Return the metrics by the names of their samples."""
    return {name: metric for metric in metrics for name in metric.sample_names}
