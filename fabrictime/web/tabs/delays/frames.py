"""Turns rows of history into what the charts draw: small, ordered, only what changed.

In: typed rows. Out: plain dicts of numbers and names for `chart.js`. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fabrictime.web.history_queries import ClockLines, Series
from fabrictime.web.tabs.delays.queries import Direction, NicRow, PairRow
from schemas.ids import natural

Metric = Literal["p50", "p99", "loss"]
Level = Literal["nic", "host", "rack"]
Cell = list[float | int | None]

MAX_ROWS = 64
"""A heat map with more rows than this shows hosts, then racks, where that makes it smaller."""

GAP_STEPS = 3

UNKNOWN_RACK = "no rack"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a NIC stands."""

    nic: str
    host: str
    rack: str | None

    def at(self, level: Level) -> str:
        """Return its name at a level of the heat map."""
        return self.nic if level == "nic" else self.host if level == "host" else self.rack or UNKNOWN_RACK


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the heat map looked into: a row and a column of a coarser level. None: everything."""

    level: Level
    row: str
    col: str


def places(nics: Iterable[NicRow], pairs: Iterable[PairRow]) -> list[Place]:
    """Return all NICs, announced or seen in a pair, by rack, host and device in natural order."""
    known = {row.nic: Place(row.nic, row.host, row.rack) for row in nics}
    for pair in pairs:
        for nic in (pair.nic, pair.peer):
            if nic not in known:
                known[nic] = Place(nic, nic.partition("/")[0], None)
    return sorted(known.values(), key=lambda p: (natural(p.rack or ""), natural(p.host), natural(p.nic)))


def level_for(fleet: Sequence[Place], scope: Scope | None = None) -> Level:
    """Return the finest level with at most `MAX_ROWS` rows, or the coarsest that there is."""
    if scope is not None:
        inside = [p for p in fleet if p.at(scope.level) in (scope.row, scope.col)]
        return "host" if scope.level == "rack" and len(inside) > MAX_ROWS else "nic"
    levels: tuple[Level, ...] = ("nic", "host", "rack")
    sizes = {level: len({p.at(level) for p in fleet}) for level in levels}
    for level in levels:
        if sizes[level] <= MAX_ROWS and (level == "nic" or sizes[level] > 1):
            return level
    return min((level for level in levels if sizes[level] > 1), key=lambda level: sizes[level])


@dataclass(slots=True)
class HeatMatrix:
    """A heat map: rows are probers, columns peers; a cell's number is row * columns + column.

    A cell is [number, value, p50_ns, p99_ns, min_ns, count, lost, bound_ns, rtt_min_ns, pairs, nic, peer];
    value is the metric (ns, or a share of 1 for loss), None where no one-way delay is known; nic and peer
    are indices into `names`. Where a cell joins pairs it shows the worst of them, and all their losses.
    """

    level: Level
    metric: Metric
    way: Direction
    rows: list[dict[str, Any]]
    cols: list[dict[str, Any]]
    names: list[str]
    cells: dict[int, Cell]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Everything but the cells: where it differs, the whole frame must be sent."""
        labels = tuple((label["text"], label["silent"]) for label in (*self.rows, *self.cols))
        return (self.level, self.metric, self.way, len(self.rows), labels)


def heat_matrix(
    pairs: Sequence[PairRow],
    fleet: Sequence[Place],
    metric: Metric,
    way: Direction,
    level: Level,
    scope: Scope | None = None,
) -> HeatMatrix:
    """Lay pairs out as a heat map at a level, inside a scope."""
    row_places = [p for p in fleet if scope is None or p.at(scope.level) == scope.row]
    col_places = [p for p in fleet if scope is None or p.at(scope.level) == scope.col]
    seen = {pair.nic for pair in pairs}
    rows, row_of = _labels(row_places, level, seen)
    cols, col_of = _labels(col_places, level, None)
    index = {place.nic: i for i, place in enumerate(fleet)}
    cells: dict[int, Cell] = {}
    for pair in pairs:
        row, col = row_of.get(pair.nic), col_of.get(pair.peer)
        if row is None or col is None:
            continue
        number = row * len(cols) + col
        value = _value(pair, metric)
        cell = cells.get(number)
        joined, count, lost = 1, pair.count, pair.lost
        if cell is not None:
            joined, count, lost = int(cell[9] or 0) + 1, count + int(cell[5] or 0), lost + int(cell[6] or 0)
            if value is None or (cell[1] is not None and cell[1] >= value):
                cell[5], cell[6], cell[9] = count, lost, joined
                continue
        cells[number] = [
            number,
            value,
            _ns(pair.p50_ns),
            _ns(pair.p99_ns),
            _ns(pair.min_ns),
            count,
            lost,
            _ns(pair.bound_ns),
            _ns(pair.rtt_min_ns),
            joined,
            index[pair.nic],
            index[pair.peer],
        ]
    return HeatMatrix(level, metric, way, rows, cols, [place.nic for place in fleet], cells)


def heat_frame(matrix: HeatMatrix, sent: HeatMatrix | None) -> dict[str, Any]:
    """Return what a browser that shows `sent` needs in order to show `matrix`."""
    if sent is None or sent.shape != matrix.shape:
        return {
            "full": True,
            "rows": matrix.rows,
            "cols": matrix.cols,
            "metric": matrix.metric,
            "way": matrix.way,
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
    """Return a pair's series on one time axis (ms since the Unix epoch), gaps as None."""
    step_ns = series.step_ns
    steps = _steps(series.start_ns, series.end_ns, step_ns, (point.at_ns for point in series.points))
    at = {step: i for i, step in enumerate(steps)}
    paths = sorted({point.path for point in series.points})
    stats = ("min", "p50", "p99")
    lines: dict[int, Any] = {
        path: {
            "forward": {stat: [None] * len(at) for stat in stats},
            "reverse": {stat: [None] * len(at) for stat in stats},
            "lost": [None] * len(at),
        }
        for path in paths
    }
    bound: list[float | None] = [None] * len(at)
    medians: dict[str, list[list[float]]] = {way: [[] for _ in at] for way in ("forward", "reverse")}
    for point in series.points:
        i = at.get(point.at_ns // step_ns)
        if i is None:
            continue
        line = lines[point.path]
        line["lost"][i] = point.lost
        for way in ("forward", "reverse"):
            for stat in stats:
                line[way][stat][i] = _ns(getattr(point, f"{way}_{stat}_ns"))
            p50 = getattr(point, f"{way}_p50_ns")
            if p50 is not None:
                medians[way][i].append(p50)
        if point.bound_ns is not None:
            bound[i] = max(bound[i] or 0.0, point.bound_ns)
    return {
        "id": f"{nic} {peer}",
        "names": [f"{nic} → {peer}, one way", f"{peer} → {nic}, one way"],
        "t": [step * step_ns // 1_000_000 for step in steps],
        "paths": paths,
        "series": lines,
        "bound": [_ns(value) for value in bound],
        "median": {
            way: [_ns(float(np.median(values))) if values else None for values in columns]
            for way, columns in medians.items()
        },
    }


def clock_frame(
    lines: ClockLines, view: Literal["wander", "offset", "bound"], chosen: str | None
) -> dict[str, Any]:
    """Return the clocks over time.

    `offset` is offset_ns as solved; `wander` is offset_ns less its own straight line, which
    leaves what a steady drift does not explain; `bound` is bound_ns. UNSYNCED is a gap: its offset says
    nothing, and its bound would hide all others. The chosen clock is drawn bold, its
    bound as a band around it. Many clocks are shown as quantiles of their bounds, whatever `view` says.
    """
    step_ns = lines.step_ns
    said = (point for point in lines.points if point.state != "UNSYNCED")
    known = [*(point.at_ns for point in said), *(row.at_ns for row in lines.spread)]
    steps = _steps(lines.start_ns, lines.end_ns, step_ns, known)
    at = {step: i for i, step in enumerate(steps)}
    t = [step * step_ns // 1_000_000 for step in steps]
    if lines.spread:
        names = {"max": "widest bound", "p99": "p99", "p90": "p90", "p50": "median"}
        columns: dict[str, list[float | None]] = {name: [None] * len(t) for name in names}
        for row in lines.spread:
            i = at.get(row.at_ns // step_ns)
            if i is not None:
                for name in names:
                    columns[name][i] = _ns(getattr(row, f"bound_{name}_ns"))
        drawn = [
            {"name": names[name], "v": columns[name], "bold": name == "max", "dashed": False}
            for name in names
        ]
        return {"kind": "spread", "view": "bound", "t": t, "lines": drawn, "bands": []}
    values: dict[str, list[float | None]] = {}
    bounds: dict[str, list[float | None]] = {}
    for point in lines.points:
        i = at.get(point.at_ns // step_ns)
        if i is None or point.state == "UNSYNCED":
            continue
        values.setdefault(point.clock, [None] * len(t))[i] = (
            point.bound_ns if view == "bound" else point.offset_ns
        )
        bounds.setdefault(point.clock, [None] * len(t))[i] = point.bound_ns
    names_ = sorted(values, key=natural)
    if view == "wander":
        values = {name: less_line(values[name]) for name in names_}
    bands = []
    for color, name in enumerate(names_):
        if view != "bound" and name == chosen:
            both = list(zip(values[name], bounds[name], strict=True))
            bands.append(
                {
                    "name": name,
                    "color": color,
                    "low": [None if v is None or b is None else v - b for v, b in both],
                    "high": [None if v is None or b is None else v + b for v, b in both],
                }
            )
    drawn = [
        {"name": name, "v": values[name], "bold": name == chosen, "dashed": k >= 8}
        for k, name in enumerate(names_)
    ]
    return {"kind": "lines", "view": view, "t": t, "lines": drawn, "bands": bands}


def _steps(start_ns: int, end_ns: int, step_ns: int, known: Iterable[int]) -> range:
    """Return the steps of a span, from the first that holds anything: a young history fills the chart."""
    first, last = -(-start_ns // step_ns), end_ns // step_ns
    first = max(first, min((at // step_ns for at in known), default=first))
    return range(first, max(last, first + 2))


def less_line(values: Sequence[float | None]) -> list[float | None]:
    """Return values less the least-squares straight line of each unbroken stretch; None stays None.

    `GAP_STEPS` or more without a value end a stretch: the clock may have been started anew.
    """
    ends = [i for i, value in enumerate(values) if value is not None]
    cuts = [b for a, b in itertools.pairwise(ends) if b - a > GAP_STEPS]
    parts = itertools.pairwise([0, *cuts, len(values)])
    return [value for first, last in parts for value in _less_one_line(values[first:last])]


def _less_one_line(values: Sequence[float | None]) -> list[float | None]:
    y = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    x = np.arange(len(y), dtype=np.float64)
    known = np.isfinite(y)
    if known.sum() >= 3:
        slope, start = np.polyfit(x[known], y[known] - y[known][0], 1)
        y = y - y[known][0] - (slope * x + start)
    elif known.any():
        y = y - y[known].mean()
    return [float(value) if np.isfinite(value) else None for value in y]


def _labels(
    fleet: Sequence[Place], level: Level, seen: set[str] | None
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the labels of an axis, and each NIC's row; a row is silent where none of its NICs was seen."""
    labels: dict[str, dict[str, Any]] = {}
    of: dict[str, int] = {}
    order: dict[str, int] = {}
    for place in fleet:
        name = place.at(level)
        if name not in labels:
            group = place.host if level == "nic" else place.rack if level == "host" else None
            labels[name] = {"text": name, "group": group, "silent": seen is not None}
            order[name] = len(order)
        if seen is not None and place.nic in seen:
            labels[name]["silent"] = False
        of[place.nic] = order[name]
    return list(labels.values()), of


def _value(pair: PairRow, metric: Metric) -> float | int | None:
    if metric == "loss":
        return round(pair.loss_max, 6)
    return _ns(pair.p50_ns if metric == "p50" else pair.p99_ns)


def _ns(value: float | None) -> float | int | None:
    """Keep four digits: what nobody can see is not sent."""
    if value is None:
        return None
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded
