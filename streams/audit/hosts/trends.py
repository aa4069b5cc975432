"""Finds links and modules that approach their limit, or fail repeatedly, before they fail for good. Pure.

A drift is the Theil-Sen slope: the median of the slopes between all pairs of daily medians. Its confidence
interval is that of Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", JASA 63 (1968),
1379-1389. One bad reading moves neither, and daily medians remove the change between day and night. A
recurrence is a counter that grows on several days; the share of such days has the interval of Wilson, JASA 22
(1927), 209-212.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median
from typing import Final, NamedTuple

from schemas.records import AuditStatus
from streams.audit.hosts.part_history import (
    COUNTERS,
    RAW_ERRORS,
    RAW_RATIO,
    RECEIVED_BITS,
    Part,
    PartHistory,
    Reading,
)
from streams.audit.results import FLEET, Found
from streams.audit.robust import SIGMAS_OF_MAD, Spread

DAY_NS: Final = 86_400 * 10**9
HISTORY_DAYS: Final = 21
"""Days before the newest reading that count."""
MIN_DAYS: Final = 7
"""Smallest number of days with a reading from which a slope is derived."""
CONFIDENCE: Final = 0.99
_Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
MIN_SIGNAL: Final = 5.0
"""Change over all days, in standard deviations of the residuals, from which on it is no slow noise: Sen's
interval holds for independent values, and readings of one week resemble those of the next."""
HORIZON_DAYS: Final = 90.0
"""A drift that reaches the limit later than this is no finding."""
MIN_EVENT_DAYS: Final = 3
"""Days on which a counter grew from which on its growth recurs: a repair or a reboot is one day."""
MAX_RAW: Final = 1e-5
"""Limit of the bit error ratio before FEC, that of `backend.error-ratios`."""
MIN_BITS: Final = 1e12
"""Received bits from which on an interval states an error ratio."""
MIN_RATIO: Final = 1e-15


class Drift(NamedTuple):
    """Rule for a reading that may move towards its limit; its values are the distance to the limit."""

    name: str
    unit: str
    min_change: float
    """Change over all days up to which a slope is no finding: resolution, and the load's own changes."""
    verb: str = "falls"


DRIFTS: Final[Mapping[str, Drift]] = {
    "module_rx_power_margin_db": Drift("received optical power", "dB", 1.0),
    "module_tx_power_margin_db": Drift("sent optical power", "dB", 1.0),
    "module_bias_margin_ma": Drift("laser current", "mA", 0.5, "rises"),
    "module_temperature_margin_celsius": Drift("module temperature", "C", 6.0, "rises"),
    RAW_RATIO: Drift("bit error ratio before FEC", "decades", 0.7, "rises"),
}
EVENTS: Final[Mapping[str, str]] = {
    "link_down_total": "the link went down",
    "nvlink_errors_total": "NVLink errors",
}
"""Counter to the text about its growth."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Daily loss of distance to a limit, with its confidence interval, and the days until the limit."""

    loss_per_day: float
    min_loss_per_day: float
    max_loss_per_day: float
    margin: float
    """Distance to the limit now, on the fitted line."""
    days: int
    """Days from the first reading to the last."""

    @property
    def days_left(self) -> tuple[float, float, float]:
        """Days until the limit: estimate, earliest and latest; infinite if the distance does not shrink."""
        losses = (self.loss_per_day, self.max_loss_per_day, self.min_loss_per_day)
        left = [max(self.margin, 0.0) / loss if loss > 0 else math.inf for loss in losses]
        return left[0], left[1], left[2]


class Recurrence(NamedTuple):
    """Growth of a counter: events, days with an event, days observed, interval of the share of days."""

    events: int
    event_days: int
    days: int
    min_share: float
    max_share: float


def daily(readings: Iterable[Reading]) -> list[Reading]:
    """Return the median reading of each day, oldest first; days are counted back from the newest reading."""
    ordered = sorted(readings)
    days: dict[int, list[Reading]] = {}
    for reading in ordered:
        days.setdefault((ordered[-1].at_ns - reading.at_ns) // DAY_NS, []).append(reading)
    return [
        Reading(
            round(median(reading.at_ns for reading in of_day)), median(reading.value for reading in of_day)
        )
        for age, of_day in sorted(days.items(), reverse=True)
        if age < HISTORY_DAYS
    ]


def drift(readings: Sequence[Reading], rule: Drift) -> Trend | None:
    """Return the trend of the distance to a limit; None without a trend or with too few readings."""
    medians = daily(readings) if readings else []
    if len(medians) < MIN_DAYS:
        return None
    times = [(reading.at_ns - medians[-1].at_ns) / DAY_NS for reading in medians]
    values = [reading.value for reading in medians]
    slopes = sorted(
        (values[late] - values[early]) / (times[late] - times[early])
        for late in range(len(times))
        for early in range(late)
    )
    count, slope = len(times), median(slopes)
    levels = [value - slope * time for value, time in zip(values, times, strict=True)]
    residuals = Spread.of(levels)
    noise = residuals.mad / SIGMAS_OF_MAD
    spread = _Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18 * inflation(levels))
    low = max(0, math.floor((len(slopes) - spread) / 2))
    trend = Trend(-slope, -slopes[-1 - low], -slopes[low], residuals.median, round(-times[0]))
    is_large = trend.loss_per_day * -times[0] >= max(rule.min_change, MIN_SIGNAL * noise)
    is_near = trend.days_left[0] <= HORIZON_DAYS
    return trend if trend.min_loss_per_day > 0 and is_large and is_near else None


def inflation(levels: Sequence[float]) -> float:
    """Return the factor, at least 1, by which correlation between neighbouring values raises variance.

    It is (1 + r) / (1 - r) with their correlation r (Yue and Wang, "The Mann-Kendall Test Modified by
    Effective Sample Size", Water Resources Management 18 (2004), 201-218).
    """
    mean = sum(levels) / len(levels)
    variance = sum((level - mean) ** 2 for level in levels)
    covariance = sum((before - mean) * (after - mean) for before, after in pairwise(levels))
    correlation = min(0.9, max(0.0, covariance / variance)) if variance > 0 else 0.0
    return (1 + correlation) / (1 - correlation)


def recurrence(readings: Sequence[Reading]) -> Recurrence | None:
    """Return the recurrent growth of a counter; None if it grew on too few days. A fall is a reset."""
    newest_ns = max((reading.at_ns for reading in readings), default=0)
    recent = sorted(r for r in readings if newest_ns - r.at_ns < HISTORY_DAYS * DAY_NS)
    events: dict[int, float] = {}
    for before, after in pairwise(recent):
        if after.value > before.value:
            age = (newest_ns - after.at_ns) // DAY_NS
            events[age] = events.get(age, 0.0) + after.value - before.value
    if len(events) < MIN_EVENT_DAYS:
        return None
    days = max(len(events), math.ceil((newest_ns - recent[0].at_ns) / DAY_NS))
    low, high = wilson(len(events), days)
    return Recurrence(round(sum(events.values())), len(events), days, low, high)


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's confidence interval, lower and upper end, of the share `count` / `total`."""
    share, weight = count / total, _Z * _Z / total
    centre = (share + weight / 2) / (1 + weight)
    half = _Z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def error_margins(errors: Sequence[Reading], bits: Sequence[Reading]) -> list[Reading]:
    """Return the decades (factors of 10) from the error ratio of each interval of the counters to `MAX_RAW`.

    Intervals with few bits are joined. A counter that fell was reset, and a new interval begins.
    """
    bits_at = {reading.at_ns: reading.value for reading in bits}
    pairs = [(reading, bits_at[reading.at_ns]) for reading in sorted(errors) if reading.at_ns in bits_at]
    margins, begin = [], (Reading(0, math.inf), math.inf)
    for reading, received in pairs:
        grown, over = reading.value - begin[0].value, received - begin[1]
        if grown < 0 or over < 0:
            begin = reading, received
        elif over >= MIN_BITS:
            margins.append(ratio_margin(Reading(reading.at_ns, (grown + 0.5) / over)))
            begin = reading, received
    return margins


def ratio_margin(reading: Reading) -> Reading:
    """Return the reading of an error ratio as its distance to `MAX_RAW`, decades (factors of 10)."""
    return reading._replace(value=math.log10(MAX_RAW / max(reading.value, MIN_RATIO)))


def margins_of(history: PartHistory) -> Iterator[tuple[Part, str, list[Reading]]]:
    """Yield each part, the name of a drift, and the distances of the part's readings to its limit."""
    totals: dict[Part, dict[str, list[Reading]]] = {}
    for part, name, readings in history.series():
        if name in COUNTERS:
            totals.setdefault(part, {})[name] = readings
        elif name == RAW_RATIO:
            yield part, name, [ratio_margin(reading) for reading in readings]
        else:
            yield part, name, readings
    for part, counters in totals.items():
        margins = error_margins(counters.get(RAW_ERRORS, ()), counters.get(RECEIVED_BITS, ()))
        if margins:
            yield part, RAW_RATIO, margins


def part_trends(history: PartHistory) -> Iterator[Found]:
    """Yield a finding for each trend and recurrence; without any, one that states the number of parts."""
    parts: set[Part] = set()
    count = 0
    for part, name, margins in margins_of(history):
        parts.add(part)
        trend = drift(margins, DRIFTS[name])
        if trend is not None:
            count += 1
            yield Found(part.host, part.subject, AuditStatus.FAILED, drift_text(part, DRIFTS[name], trend))
    for part, name, readings in history.series():
        parts.add(part)
        growth = recurrence(readings) if name in EVENTS else None
        if growth is not None:
            count += 1
            yield Found(part.host, part.subject, AuditStatus.FAILED, recurrence_text(part, name, growth))
    if not parts:
        yield Found(FLEET, "", AuditStatus.SKIPPED, "no host states readings of links or modules")
    elif not count:
        yield Found(FLEET, "", AuditStatus.PASSED, f"none of {len(parts)} links and modules has a trend")


def drift_text(part: Part, rule: Drift, trend: Trend) -> str:
    """Return the sentence about a drift: slope with its interval, days, distance and days until the limit."""
    left, earliest, latest = trend.days_left
    until = f"{earliest:.0f} to {latest:.0f}"
    return (
        f"{part.subject}: {rule.name} {rule.verb} by {trend.loss_per_day:.2g} {rule.unit} a day "
        f"({trend.min_loss_per_day:.2g} to {trend.max_loss_per_day:.2g}) for {trend.days} days; "
        f"its limit is {trend.margin:.2g} {rule.unit} away, about {left:.0f} days ({until})"
    )


def recurrence_text(part: Part, name: str, growth: Recurrence) -> str:
    """Return the sentence about a counter that grows repeatedly."""
    return (
        f"{part.subject}: {EVENTS[name]} on {growth.event_days} of {growth.days} days, "
        f"{growth.events:,} in all; "
        f"{growth.min_share:.0%} to {growth.max_share:.0%} of days to expect"
    )
