"""Metrics of all processes: the process itself, and its records on the log.

`declare` builds every declaration in the table of metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from schemas.metrics.base import Detail, Kind, Merge, Metric

PARTS: Final = ("prober", "flows", "collectives", "auditor", "actuator", "act")
"""Services that are parts of one process, `agent`, on a host of a fleet file."""
AGENT: Final = ("agent", *PARTS, "rdma-probe")
"""Services of a host's agent."""
WORKERS: Final = ("worker", "streams", "links", "policy", "sink")
"""Services that run stages."""
CONTROL_PLANE: Final = (*WORKERS, "log", "history", "web", "notify", "drains", "sim")
"""Services that run once for a fleet."""
PRODUCERS: Final = ("prober", "rdma-probe", "flows", "collectives", "auditor", "sim")
"""Services with a bounded queue of records."""
PROBERS: Final = ("prober", "rdma-probe")
UP: Final = ("up",)


def symbols(values: Iterable[str]) -> tuple[str, ...]:
    """Return the values of an enumeration, without UNKNOWN."""
    return tuple(str(value) for value in values if value != "UNKNOWN")


def declare(
    kind: Kind,
    /,
    name: str,
    help_text: str,
    writers: tuple[str, ...] = (),
    unit: str = "",
    merge: Merge = Merge.SUM,
    detail: Detail = Detail.ALWAYS,
    **labels: Iterable[str],
) -> Metric:
    """Return a metric. `labels` maps each label to its possible values; labels of NICs or links list none."""
    values = tuple((label, tuple(of_label)) for label, of_label in labels.items())
    return Metric(f"fabrictime_{name}", kind, unit, help_text, writers, values, merge, detail)


counter: Final = partial(declare, Kind.COUNTER)
gauge: Final = partial(declare, Kind.GAUGE)
summary: Final = partial(declare, Kind.SUMMARY)

PROCESSES: Final = (
    gauge("build_info", "Always 1; the label holds the version.", unit="info", merge=Merge.MAX, version=[""]),
    counter("cpu_seconds_total", "Processor time of the processes behind this endpoint.", unit="seconds"),
    gauge(
        "resident_memory_bytes",
        "Resident memory of these processes, shared pages counted each time.",
        unit="bytes",
    ),
    counter(
        "metrics_errors_total", "Reads of metrics that failed; these series are missing or old.", unit="reads"
    ),
    gauge(
        "processes",
        "Processes that `fabrictime up` keeps, by state.",
        UP,
        "processes",
        state=("ready", "not_ready"),
    ),
    counter(
        "restarts_total",
        "Restarts of processes since the start of `fabrictime up`.",
        UP,
        "restarts",
        service=(*AGENT, *CONTROL_PLANE),
    ),
)
LOG_CLIENTS: Final = (
    counter(
        "records_published_total", "Records that the log acknowledged.", (*PRODUCERS, *WORKERS), "records"
    ),
    counter(
        "records_dropped_total",
        "Records given up: the log did not answer in time, or refused them.",
        (*PRODUCERS, "act"),
        "records",
    ),
    gauge(
        "records_waiting", "Records that wait for the log's acknowledgement.", (*PRODUCERS, "act"), "records"
    ),
    counter(
        "records_rejected_total",
        "Messages read from the log that could not be used.",
        (*AGENT, *WORKERS, "web", "notify", "drains"),
        "records",
    ),
    summary(
        "log_append_seconds",
        "Time from sending a record until the log's acknowledgement.",
        (*PRODUCERS, *WORKERS),
        "seconds",
    ),
)
