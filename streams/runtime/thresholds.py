"""The thresholds that can be changed at run time: names, defaults and limits.

`Thresholds` holds the active values: the defaults, overridden by the newest `ActuatorConfig` records. A
threshold's name includes its unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.input_error import InputError
from schemas.records import ActuatorConfig


@dataclass(frozen=True, slots=True)
class Threshold:
    """One threshold. Valid values are `min_value` to `max_value` inclusive."""

    name: str
    default: float
    min_value: float
    max_value: float
    doc: str


_TABLE: Final = (
    Threshold(
        "dead_losses",
        6,
        3,
        1000,
        "consecutive losses on a link, over all its paths, that make it DOWN; more if it is lossy",
    ),
    Threshold("link_dead_ms", 10, 0, 10_000, "ms without an answer across a link that make it DOWN"),
    Threshold(
        "link_late_dead_ms",
        80,
        0,
        10_000,
        "link_dead_ms of a link that delayed answers within the last 3 s; link_dead_ms at least",
    ),
    Threshold(
        "disambiguate_ms",
        60,
        0,
        10_000,
        "ms to wait for evidence that separates candidate links; then all are published",
    ),
    Threshold(
        "nic_dead_ms",
        150,
        10,
        60_000,
        "ms without an answer from a NIC, while its agent works, that make its cable DOWN",
    ),
    Threshold(
        "nic_silent_ms",
        3000,
        50,
        600_000,
        "ms without an answer from a NIC and its agent that make the NIC or its host DOWN",
    ),
    Threshold("up_delay_ms", 200, 0, 60_000, "ms that paths must work across a DOWN link until it is UP"),
    Threshold(
        "grey_loss_percent",
        1,
        0.01,
        100,
        "percent of loss on a link, at the lower end of its 95% interval, that makes it GREY",
    ),
    Threshold("grey_window_s", 2, 0.5, 60, "s over which partial loss is counted"),
    Threshold("grey_clear_s", 5, 0.5, 3600, "s below half of grey_loss_percent until a GREY link is UP"),
    Threshold(
        "flaps_max",
        8,
        1,
        4096,
        "times that a link may go down within an hour before it is FLAPPING; 5 times within 10 s are enough",
    ),
    Threshold(
        "contention_delay_us",
        50,
        1,
        1_000_000,
        "us of queueing delay at a link from which its queue counts; in bytes, within the next two limits",
    ),
    Threshold("contention_min_kb", 15, 1, 100_000, "kB below which no queue counts, however slow the link"),
    Threshold("contention_max_kb", 50, 1, 100_000, "kB from which every queue counts"),
    Threshold(
        "contention_ce_percent",
        10,
        0.1,
        100,
        "percent of a link's probes marked with CE from which its queue counts, however shallow",
    ),
    Threshold(
        "contention_open_ms",
        15,
        1,
        60_000,
        "ms that a queue persists until its window opens; two slots at least",
    ),
    Threshold("contention_close_ms", 250, 10, 600_000, "ms below half of that depth until the window closes"),
    Threshold(
        "alert_gather_ms",
        250,
        0,
        60_000,
        "ms after a death to wait for others of the same cause, which share its alert",
    ),
    Threshold(
        "alert_clear_s",
        5,
        0,
        3600,
        "s without the cause until an alert is cleared; doubled with each flap of the hour, 600 at most",
    ),
    Threshold("alert_grey_critical_percent", 5, 0.01, 100, "percent of loss that makes an alert CRITICAL"),
    Threshold(
        "alert_contention_s",
        3,
        0,
        3600,
        "s that a queue persists until an alert is raised: longer than policy needs to end it",
    ),
    Threshold("alert_clocks_percent", 10, 0, 100, "percent of UNSYNCED clocks that raise an alert"),
    Threshold("alert_clocks_s", 10, 0, 3600, "s that so many clocks are UNSYNCED until an alert is raised"),
    Threshold(
        "alert_agent_s",
        30,
        1,
        3600,
        "s that raise an alert on a host if its prober is in trouble half of them; cleared below a quarter",
    ),
    Threshold("alert_agent_late_ms", 50, 1, 10_000, "ms of delay of a prober's thread that count as trouble"),
    Threshold(
        "alert_storm_times",
        5,
        1.5,
        1000,
        "multiple of a prober's announced rate, or its shard's median rate, that is a probe storm",
    ),
    Threshold(
        "alert_storm_min_pps", 2000, 1, 1_000_000, "probes/s of a NIC below which there is no probe storm"
    ),
    Threshold(
        "alert_storm_s",
        5,
        1,
        3600,
        "s that a storm lasts until its alert is raised, and is over until it is cleared",
    ),
    Threshold(
        "alert_miswired_s",
        30,
        0,
        86_400,
        "s that traces contradict the topology file, or a NIC's rail, until an alert is raised",
    ),
    Threshold(
        "alert_job_s",
        10,
        0,
        3600,
        "s that a job is slow because of the network, or of a straggler, until an alert is raised",
    ),
    Threshold("forget_s", 3600, 10, 31_536_000, "s of absence after which a NIC or host is forgotten"),
)

THRESHOLDS: Final[Mapping[str, Threshold]] = {threshold.name: threshold for threshold in _TABLE}
"""Maps name to threshold."""


def check_value(name: str, value: float) -> float:
    """Return `value` unchanged. Raises ValueError for an unknown threshold or a value out of range."""
    threshold = THRESHOLDS.get(name)
    if threshold is None:
        raise InputError(f"threshold {name!r}: no such threshold, expected one of {', '.join(THRESHOLDS)}")
    if not math.isfinite(value) or not threshold.min_value <= value <= threshold.max_value:
        raise InputError(
            f"threshold {name}: {value:g}, expected {threshold.min_value:g} to {threshold.max_value:g}"
        )
    return value


class Thresholds(Mapping[str, float]):
    """The active threshold values by name; immutable."""

    def __init__(self, changed: Mapping[str, float] | None = None) -> None:
        """Use the defaults, overridden by `changed`. Raises ValueError for an unknown name or bad value."""
        self._values = {name: threshold.default for name, threshold in THRESHOLDS.items()}
        for name, value in (changed or {}).items():
            self._values[name] = check_value(name, value)

    @classmethod
    def of(cls, records: Iterable[ActuatorConfig]) -> tuple[Thresholds, list[str]]:
        """Return the thresholds that `ActuatorConfig` records set, and a message about each invalid value.

        A later record overrides an earlier one; an invalid value is ignored.
        """
        changed: dict[str, float] = {}
        refused = []
        for record in records:
            for threshold in record["thresholds"]:
                try:
                    changed[threshold["name"]] = check_value(threshold["name"], threshold["value"])
                except ValueError as error:
                    refused.append(str(error))
        return cls(changed), refused

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def ns(self, name: str) -> int:
        """Return a time threshold in ns, converted from the unit at the end of its name."""
        factor = {"us": 1e3, "ms": 1e6, "s": 1e9}[name.rpartition("_")[2]]
        return round(self._values[name] * factor)
