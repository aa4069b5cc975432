"""Computes the number of series of a fleet, from the table of metrics and the services of each endpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.metrics.base import Detail, Metric
from schemas.metrics.common import AGENT, PARTS, UP
from schemas.metrics.table import METRICS

AGENT_SERVICES: Final = (*AGENT, *UP)
SINGLE_SERVICES: Final = ("links", "policy", "sink", "web", "notify", "drains")
"""Services of a control plane with one process each; workers come in any number."""
EMBEDDED: Final = ("log", "history")
"""Services of a control plane without Kafka and ClickHouse."""
WORKERS: Final = 2


def series_of(services: Collection[str]) -> int:
    """Return the largest number of series of one endpoint with these services, without optional details."""
    return sum(_series(metric, services) for metric in METRICS if metric.detail is Detail.ALWAYS)


def _series(metric: Metric, services: Collection[str]) -> int:
    if metric.writers and not set(metric.writers) & set(services):
        return 0
    labels = dict(metric.labels)
    count = metric.series
    if "service" in labels:  # an endpoint has only its own services
        processes = set(services).difference(PARTS if "agent" in services else ())
        count = count // len(labels["service"]) * len(set(labels["service"]) & processes)
    return count


def per_name(detail: Detail) -> int:
    """Return the number of series that a detail adds for each NIC or link."""
    return sum(metric.series for metric in METRICS if metric.detail is detail)


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The size of a fleet. `links` counts directed links."""

    hosts: int
    nics_per_host: int
    links: int
    workers: int = WORKERS
    embedded: bool = False

    def series(self) -> Mapping[str, int]:
        """Return the number of series by part of the fleet. The last two parts are off by default."""
        single = (*SINGLE_SERVICES, *(EMBEDDED if self.embedded else ()))
        control_plane = self.workers * series_of(("worker",)) + sum(series_of((name,)) for name in single)
        return {
            "of a host's agent": series_of(AGENT_SERVICES),
            "of all agents": self.hosts * series_of(AGENT_SERVICES),
            "of the control plane": control_plane,
            "with metrics.per_nic": self.hosts * self.nics_per_host * per_name(Detail.PER_NIC),
            "with metrics.per_link": self.links * per_name(Detail.PER_LINK),
        }

    def default_total(self) -> int:
        """Return the number of series of the whole fleet, without optional details."""
        series = self.series()
        return series["of all agents"] + series["of the control plane"]
