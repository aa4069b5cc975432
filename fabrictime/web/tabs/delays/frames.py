"""Chart frames of the Delays tab: heat map, a pair's series, clocks over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fabrictime.web.history_sql import Direction
from fabrictime.web.tabs.clocks.queries import ClockSeries
from fabrictime.web.tabs.delays.queries import NicRow, PairRow, PointRow, Series
from fabrictime.web.time_series import Values, detrend, rounded, time_axis
from schemas.ids import host_of, natural

Metric = Literal["p50", "p99", "loss"]
Level = Literal["nic", "host", "rack"]
ClockMetric = Literal["wander", "offset", "bound"]
Cell = list[float | int | None]

DIRECTIONS: tuple[Direction, ...] = ("forward", "reverse")
STATISTICS = ("min", "p50", "p99")
MAX_ROWS = 64
"""Largest number of rows in a heat map of NICs; with more, it shows hosts, then racks, if that makes it
smaller.
"""
COLOURS = 8
"""Number of line colours. Further lines repeat the colours and are dashed."""
UNKNOWN_RACK = "no rack"

# Columns of a cell that joins several pairs.
_VALUE, _COUNT, _LOST, _PAIRS = 1, 5, 6, 9


@dataclass(frozen=True, slots=True)
class Place:
    """A NIC with its host and rack."""

    nic: str
    host: str
    rack: str | None

    def at(self, level: Level) -> str:
        """Return the name of the NIC, of its host or of its rack, depending on `level`."""
        return self.nic if level == "nic" else self.host if level == "host" else self.rack or UNKNOWN_RACK


@dataclass(frozen=True, slots=True)
class Scope:
    """A cell of a coarser heat map. A heat map with a scope shows only the pairs inside this cell."""

    level: Level
    row: str
    col: str


def places(nics: Iterable[NicRow], pairs: Iterable[PairRow]) -> list[Place]:
    """Return all NICs of the inventory and of the pairs, in natural order by rack, host and device."""
    place_by_nic = {row.nic: Place(row.nic, row.host, row.rack) for row in nics}
    for pair in pairs:
        for nic in (pair.nic, pair.peer):
            if nic not in place_by_nic:
                place_by_nic[nic] = Place(nic, host_of(nic), None)
    return sorted(place_by_nic.values(), key=place_order)


def place_order(place: Place) -> tuple[Any, ...]:
    """Return a sort key by rack, host and NIC."""
    return natural(place.rack or ""), natural(place.host), natural(place.nic)


def level_for(fleet: Sequence[Place], scope: Scope | None = None) -> Level:
    """Return the finest level with at most `MAX_ROWS` rows, or else the coarsest one with several rows."""
    if scope is not None:
        return _level_inside(fleet, scope)
    levels: tuple[Level, ...] = ("nic", "host", "rack")
    sizes = {level: len({p.at(level) for p in fleet}) for level in levels}
    if sizes["nic"] <= MAX_ROWS:
        return "nic"
    several = [level for level in levels if sizes[level] > 1]
    fitting = [level for level in several if sizes[level] <= MAX_ROWS]
    return fitting[0] if fitting else min(several, key=lambda level: sizes[level])


def _level_inside(fleet: Sequence[Place], scope: Scope) -> Level:
    inside = [p for p in fleet if p.at(scope.level) in (scope.row, scope.col)]
    return "host" if scope.level == "rack" and len(inside) > MAX_ROWS else "nic"


@dataclass(slots=True)
class HeatMatrix:
    """A heat map. Rows are probers, columns are peers. A cell's number is row * columns + column.

    A cell is [number, value, p50_ns, p99_ns, min_ns, count, lost, bound_ns, rtt_min_ns, pairs, nic, peer].
    `value` is the metric in ns (for loss, a share of 1); None if no one-way delay is known. `nic` and `peer`
    are indices into `names`. A cell of several pairs has the figures of the worst pair, but the losses of
    all.
    """

    level: Level
    metric: Metric
    direction: Direction
    rows: list[dict[str, Any]]
    cols: list[dict[str, Any]]
    names: list[str]
    cells: dict[int, Cell]

    @property
    def shape(self) -> tuple[Any, ...]:
        """All fields except the cells. If one of them changes, the browser needs a whole frame."""
        labels = tuple((label["text"], label["silent"]) for label in (*self.rows, *self.cols))
        return (self.level, self.metric, self.direction, len(self.rows), labels)


def heat_matrix(
    pairs: Sequence[PairRow],
    fleet: Sequence[Place],
    metric: Metric,
    direction: Direction,
    level: Level,
    scope: Scope | None = None,
) -> HeatMatrix:
    """Return the heat map of pairs at a level. With a `scope`, it shows only the pairs inside this cell."""
    row_places = fleet if scope is None else [p for p in fleet if p.at(scope.level) == scope.row]
    col_places = fleet if scope is None else [p for p in fleet if p.at(scope.level) == scope.col]
    probers = {pair.nic for pair in pairs}
    rows, row_of = _labels(row_places, level, probers)
    cols, col_of = _labels(col_places, level, None)
    index = {place.nic: i for i, place in enumerate(fleet)}
    cells: dict[int, Cell] = {}
    for pair in pairs:
        row, col = row_of.get(pair.nic), col_of.get(pair.peer)
        if row is None or col is None:
            continue
        number = row * len(cols) + col
        cell = _cell(pair, metric, number, index)
        cells[number] = _joined(cells[number], cell) if number in cells else cell
    return HeatMatrix(level, metric, direction, rows, cols, [place.nic for place in fleet], cells)


def _cell(pair: PairRow, metric: Metric, number: int, index: Mapping[str, int]) -> Cell:
    return [
        number,
        _value(pair, metric),
        _ns(pair.p50_ns),
        _ns(pair.p99_ns),
        _ns(pair.min_ns),
        pair.count,
        pair.lost,
        _ns(pair.bound_ns),
        _ns(pair.rtt_min_ns),
        1,
        index[pair.nic],
        index[pair.peer],
    ]


def _joined(cell: Cell, other: Cell) -> Cell:
    """Return the one of two cells with the worse value, with the counts of both cells added."""
    value, challenge = cell[_VALUE], other[_VALUE]
    worse = cell if challenge is None or (value is not None and value >= challenge) else other
    joined = list(worse)
    for at in (_PAIRS, _COUNT, _LOST):
        joined[at] = int(cell[at] or 0) + int(other[at] or 0)
    return joined


def heat_frame(matrix: HeatMatrix, sent: HeatMatrix | None) -> dict[str, Any]:
    """Return a frame with the cells that differ from `sent`, the matrix in the browser, or else with the
    whole matrix.
    """
    if sent is None or sent.shape != matrix.shape:
        return {
            "full": True,
            "rows": matrix.rows,
            "cols": matrix.cols,
            "metric": matrix.metric,
            "direction": matrix.direction,
            "names": matrix.names,
            "aggregated": matrix.level != "nic",
            "gone": [],
            "cells": list(matrix.cells.values()),
        }
    return {
        "full": False,
        "cells": [cell for number, cell in matrix.cells.items() if sent.cells.get(number) != cell],
        "gone": [number for number in sent.cells if number not in matrix.cells],
    }


def pair_frame(series: Series, nic: str, peer: str) -> dict[str, Any]:
    """Return the frame of a pair's series by path on one time axis, in ms since the Unix epoch. None marks a
    gap.
    """
    step_ns = series.span.step_ns
    t, index = time_axis(series.span, (p.at_ns for p in series.points))
    paths = [
        label for _, _, label in sorted({(point.path, point.dscp, point.label) for point in series.points})
    ]
    lines = {path: _empty_lines(len(t)) for path in paths}
    bound: Values = [None] * len(t)
    medians: dict[str, list[list[float]]] = {direction: [[] for _ in t] for direction in DIRECTIONS}
    placed = [(point, index.get(point.at_ns // step_ns)) for point in series.points]
    for point, i in placed:
        if i is None:
            continue
        _fill_lines(lines[point.label], point, i)
        for direction in DIRECTIONS:
            medians[direction][i] += _known(getattr(point, f"{direction}_p50_ns"))
        bound[i] = max([*_known(bound[i]), *_known(point.bound_ns)], default=None)
    return {
        "id": f"{nic} {peer}",
        "names": [f"{nic} → {peer}, one way", f"{peer} → {nic}, one way"],
        "t": t,
        "paths": paths,
        "series": lines,
        "bound": [_ns(value) for value in bound],
        "median": {direction: _medians(columns) for direction, columns in medians.items()},
    }


def pair_note(series: Series, span: str) -> str:
    """Return the words above a pair's chart, which explain its lines or its emptiness. `span`: its label."""
    if not series.points:
        longer = "a longer span has the last ones" if span != "1 h" else "the history lags"
        return f"No window of this pair in the last {span}: these NICs do not probe each other, or {longer}."
    step_s = series.span.step_ns / 1e9
    point = "a point a window" if step_s <= 1 else f"a point {step_s:.0f} s: median p50, worst p99"
    return f"solid p50, dashed p99, dotted min; grey band: ± clock bound around the paths' median; {point}"


def _medians(columns: Iterable[Sequence[float]]) -> list[Any]:
    return [_ns(float(np.median(values))) if values else None for values in columns]


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _empty_lines(size: int) -> dict[str, Any]:
    lines: dict[str, Any] = {
        direction: {statistic: [None] * size for statistic in STATISTICS} for direction in DIRECTIONS
    }
    return {**lines, "lost": [None] * size}


def _fill_lines(lines: dict[str, Any], point: PointRow, i: int) -> None:
    lines["lost"][i] = point.lost
    for direction in DIRECTIONS:
        for statistic in STATISTICS:
            lines[direction][statistic][i] = _ns(getattr(point, f"{direction}_{statistic}_ns"))


def clock_frame(series: ClockSeries, metric: ClockMetric, bold_clock: str | None) -> dict[str, Any]:
    """Return the chart frame of the clocks over time.

    The metric `offset` is offset_ns as solved. `wander` is offset_ns minus its linear fit: the part that a
    steady drift does not explain. `bound` is bound_ns. A step with UNSYNCED is a gap, because its offset has
    no meaning and its bound would hide all others. The chosen clock is bold, with its bound as a band. Many
    clocks are shown as quantiles of their bounds, whatever the metric.
    """
    times_ns = [point.at_ns for point in series.points if point.state != "UNSYNCED"]
    times_ns += [row.at_ns for row in series.spread]
    t, index = time_axis(series.span, times_ns)
    if series.spread:
        return _spread_frame(series, t, index)
    return _lines_frame(series, metric, bold_clock, t, index)


def _spread_frame(series: ClockSeries, t: list[int], index: dict[int, int]) -> dict[str, Any]:
    names = {"max": "widest bound", "p99": "p99", "p90": "p90", "p50": "median"}
    columns: dict[str, Values] = {name: [None] * len(t) for name in names}
    for row in series.spread:
        i = index.get(row.at_ns // series.span.step_ns)
        if i is not None:
            for name in names:
                columns[name][i] = _ns(getattr(row, f"bound_{name}_ns"))
    lines = [
        {"name": names[name], "v": columns[name], "bold": name == "max", "dashed": False} for name in names
    ]
    return {"kind": "spread", "view": "bound", "t": t, "lines": lines, "bands": []}


def _lines_frame(
    series: ClockSeries, metric: ClockMetric, bold_clock: str | None, t: list[int], index: dict[int, int]
) -> dict[str, Any]:
    values: dict[str, Values] = {}
    bounds: dict[str, Values] = {}
    for point in series.points:
        i = index.get(point.at_ns // series.span.step_ns)
        if i is None or point.state == "UNSYNCED":
            continue
        value = getattr(point, {"bound": "bound_ns", "wander": "moved_ns"}.get(metric, "offset_ns"))
        values.setdefault(point.clock, [None] * len(t))[i] = value
        bounds.setdefault(point.clock, [None] * len(t))[i] = point.bound_ns
    names = sorted(values, key=natural)
    if metric == "wander":
        values = {name: detrend(values[name]) for name in names}
    bands = []
    if metric != "bound" and bold_clock in values:
        low, high = bound_band(values[bold_clock], bounds[bold_clock])
        bands.append({"name": bold_clock, "color": names.index(bold_clock), "low": low, "high": high})
    lines = [
        {"name": name, "v": values[name], "bold": name == bold_clock, "dashed": k >= COLOURS}
        for k, name in enumerate(names)
    ]
    return {"kind": "lines", "view": metric, "t": t, "lines": lines, "bands": bands}


def clock_note(series: ClockSeries, metric: ClockMetric, bold_clock: str | None) -> str:
    """Return which clock is bold in the chart of clocks, and what its band means; empty for quantiles."""
    is_drawn = any(point.clock == bold_clock and point.state != "UNSYNCED" for point in series.points)
    if series.spread or not is_drawn:
        return ""
    return f"bold: {bold_clock}" + ("; band: ± its bound" if metric != "bound" else "")


def bound_band(values: Values, bounds: Values) -> tuple[Values, Values]:
    """Return the lower and the upper edge of a band: each value minus and plus its bound."""
    both = list(zip(values, bounds, strict=True))
    low = [None if value is None or bound is None else value - bound for value, bound in both]
    high = [None if value is None or bound is None else value + bound for value, bound in both]
    return low, high


def _labels(
    fleet: Sequence[Place], level: Level, probers: set[str] | None
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the labels of an axis, and the index of each NIC's label. A label is silent if none of its NICs
    is in `probers`.
    """
    labels: dict[str, dict[str, Any]] = {}
    index_of: dict[str, int] = {}
    order: dict[str, int] = {}
    for place in fleet:
        name = place.at(level)
        if name not in labels:
            group = place.host if level == "nic" else place.rack if level == "host" else None
            labels[name] = {"text": name, "group": group, "silent": probers is not None}
            order[name] = len(order)
        if probers is not None and place.nic in probers:
            labels[name]["silent"] = False
        index_of[place.nic] = order[name]
    return list(labels.values()), index_of


def _value(pair: PairRow, metric: Metric) -> float | int | None:
    if metric == "loss":
        return round(pair.loss_max, 6)
    return _ns(pair.p50_ns if metric == "p50" else pair.p99_ns)


def _ns(value: float | None) -> float | int | None:
    return rounded(value, 4)
