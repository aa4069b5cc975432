"""The thresholds that can be changed while everything runs: one table of names, defaults and limits.

In: nothing. Out: `THRESHOLDS`, and `Thresholds`, the values in force: defaults, and over them what the newest
`ActuatorConfig` of `fabric.config` says. A name carries its unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["THRESHOLDS", "Threshold", "Thresholds", "check_value"]


@dataclass(frozen=True, slots=True)
class Threshold:
    """One threshold; `least` and `most` may be taken too."""

    name: str
    default: float
    least: float
    most: float
    doc: str


_TABLE: Final = (
    Threshold("dead_losses", 6, 3, 1000,
        "losses in a row on a link, over all paths across it, that make it DOWN; more where it is lossy"),
    Threshold("link_dead_ms", 10, 0, 10_000, "ms without an answer across a link that make it DOWN"),
    Threshold("link_late_dead_ms", 80, 0, 10_000,
        "the same where the link held answers up within 3 s, or many did; link_dead_ms at least"),
    Threshold("tell_apart_ms", 60, 0, 10_000,
        "ms that evidence is waited for to tell links apart that some path could; then all are told"),
    Threshold("nic_dead_ms", 150, 10, 60_000,
        "ms without an answer from a NIC whose own agent is well, until its cable is DOWN"),
    Threshold("nic_silent_ms", 3000, 50, 600_000,
        "ms without an answer from a NIC whose agent is silent too, until the NIC, or its host, is DOWN"),
    Threshold("up_hold_ms", 200, 0, 60_000, "ms that paths must live across a DOWN link until it is UP"),
    Threshold("grey_loss_percent", 1, 0.01, 100,
        "percent of loss on a link, at the lower end of its 95% interval, that makes it GREY"),
    Threshold("grey_window_s", 2, 0.5, 60, "s over which partial loss is counted"),
    Threshold("grey_clear_s", 5, 0.5, 3600, "s below half of grey_loss_percent until a GREY link is UP"),
    Threshold("flaps_max", 8, 1, 4096, "times that a link may go down within an hour before it is FLAPPING"),
    Threshold("contention_delay_us", 50, 1, 1_000_000,
        "us of waiting at a link from which on its queue counts as standing, in bytes within the next two"),
    Threshold("contention_min_kb", 15, 1, 100_000, "kB below which no queue counts, however slow the link"),
    Threshold("contention_max_kb", 50, 1, 100_000, "kB from which on every queue counts"),
    Threshold("contention_open_ms", 15, 1, 60_000,
        "ms that a queue stands until its window opens; two slots at least"),
    Threshold("contention_close_ms", 250, 10, 600_000,
        "ms below half of that depth until the window closes"),
    Threshold("alert_gather_ms", 250, 0, 60_000,
        "ms after a death that others of the same cause are waited for, so that all are one alert"),
    Threshold("alert_clear_s", 5, 0, 3600,
        "s that a cause must stay away until its alert is cleared; twice as long with each flap of the hour,"
        " 600 at most"),
    Threshold("alert_grey_critical_percent", 5, 0.01, 100, "percent of loss that makes an alert CRITICAL"),
    Threshold("alert_contention_s", 5, 0, 3600, "s that a queue stands until it is an alert"),
    Threshold("alert_clocks_percent", 10, 0, 100, "percent of clocks UNSYNCED that are an alert"),
    Threshold("alert_clocks_s", 10, 0, 3600, "s that so many clocks are UNSYNCED until it is one"),
    Threshold("alert_agent_s", 30, 1, 3600,
        "s, of which a prober is in trouble for half or more, that make an alert on its host; over below a"
        " quarter"),
    Threshold("alert_agent_late_ms", 50, 1, 10_000,
        "ms that a prober's thread comes late for it to be in trouble"),
    Threshold("alert_storm_times", 5, 1.5, 1000,
        "times the pace that a prober announces, or the median of its shard, that are a probe storm"),
    Threshold("alert_storm_min_pps", 2000, 1, 1_000_000, "probes/s of a NIC below which none is one"),
    Threshold("alert_storm_s", 5, 1, 3600,
        "s that a storm lasts until it is an alert, and is gone until that is over"),
    Threshold("alert_miswired_s", 30, 0, 86_400,
        "s that traces contradict the topology file, or a NIC's rail, until it is an alert"),
    Threshold("forget_s", 3600, 10, 31_536_000, "s after which a NIC or host that stays away is forgotten"),
)  # fmt: skip

THRESHOLDS: Final[Mapping[str, Threshold]] = {each.name: each for each in _TABLE}
"""Every threshold by its name."""


def check_value(name: str, value: float) -> float:
    """Return `value`. Raises ValueError where there is no such threshold or it does not take the value."""
    known = THRESHOLDS.get(name)
    if known is None:
        raise ValueError(f"threshold {name!r}: no such threshold, expected one of {', '.join(THRESHOLDS)}")
    if not math.isfinite(value) or not known.least <= value <= known.most:
        raise ValueError(f"threshold {name}: {value:g}, expected {known.least:g} to {known.most:g}")
    return value


class Thresholds(Mapping[str, float]):
    """The values in force, by name; whole at every time: a change makes a new one."""

    def __init__(self, changed: Mapping[str, float] | None = None) -> None:
        """Take the defaults and over them `changed`. Raises ValueError as `check_value` does."""
        self._values = {name: each.default for name, each in THRESHOLDS.items()}
        for name, value in (changed or {}).items():
            self._values[name] = check_value(name, value)

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> tuple[Thresholds, list[str]]:
        """Return the values that `ActuatorConfig` records set, a later one before an earlier one, and a line
        for each that is not to be had: it keeps what stood before."""
        changed: dict[str, float] = {}
        refused = []
        for record in records:
            for each in record["thresholds"]:
                try:
                    changed[each["name"]] = check_value(each["name"], each["value"])
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
        """Return a threshold that is a time, in ns, by the unit that its name ends in."""
        factor = {"us": 1e3, "ms": 1e6, "s": 1e9}[name.rpartition("_")[2]]
        return round(self._values[name] * factor)
