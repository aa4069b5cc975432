"""The table of all metrics, in the order of `docs/metrics.md`, which is generated from the table.

No label carries a job, a pod or a path. Series per NIC and per link exist only where a setting asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemas.metrics.agent import HOSTS, PROBES
from schemas.metrics.base import Metric, by_sample_name
from schemas.metrics.common import LOG_CLIENTS, PROCESSES
from schemas.metrics.control_plane import FLEET, STAGE_METRICS, STORES

PARTS: Final[Mapping[str, tuple[Metric, ...]]] = {
    "Processes": PROCESSES,
    "Records on the log": LOG_CLIENTS,
    "Probes": PROBES,
    "Hosts": HOSTS,
    "Stages": STAGE_METRICS,
    "Fleet": FLEET,
    "Log, history, notifier and page": STORES,
}
"""All metrics, by part of the page."""
METRICS: Final = tuple(metric for metrics in PARTS.values() for metric in metrics)
METRIC_OF_SAMPLE: Final = by_sample_name(METRICS)
"""Maps the name of a sample to its metric."""
