"""Turns rows of clocks and pairs into what the clocks' page draws: bands, lines, a strip, lanes, the mesh.

In: typed rows of `queries`, joined by `questions`. Out: plain dicts of numbers and names for `chart.js`.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from fabrictime.state.units import delay_text, signed_delay_text
from fabrictime.web.history_queries import DRAWN_ALL, MESH_NICS, ClockFleet, ClockLines, Mesh
from fabrictime.web.tabs.delays import frames
from fabrictime.web.tabs.delays.frames import GAP_STEPS, less_line
from fabrictime.web.tabs.delays.queries import ClockPoint, ClockRow, EventRow, NicRow, SuspectRow
from schemas.ids import natural

OffsetView = Literal["wander", "offset"]
Values = list[float | None]

STATES = ("SYNCED", "HOLDOVER", "UNSYNCED")
STRIP_POINTS = 600
STRIP_WORST = 200
"""A strip of more clocks than `STRIP_POINTS` shows this many of the widest, and every n-th of the rest."""

GROUP_GAP = 1.2
"""Room between two groups of the mesh's circle, in places of a NIC."""
NIC_LABELS = 40
"""A mesh with more NICs names its groups alone."""


def event_text(event: str, event_ns: float) -> str:
    """Return an event with its figure: 'STEP +1.00 ms', 'FALSETICKER 250 ns rms'."""
    if event in ("STEP", "MERGED"):
        return f"{event} {signed_delay_text(event_ns)}"
    if event == "RATE_CHANGE":
        return f"RATE_CHANGE {event_ns:+,.0f} ppb"
    return f"FALSETICKER {delay_text(event_ns)} rms" if event == "FALSETICKER" else event


def _axis(start_ns: int, end_ns: int, step_ns: int, known: Iterable[int]) -> tuple[list[int], dict[int, int]]:
    """Return the time axis in ms and each step's place on it: from the first step that holds anything."""
    first, last = -(-start_ns // step_ns), end_ns // step_ns
    first = max(first, min((at // step_ns for at in known), default=first))
    steps = range(first, max(last, first + 2))
    return [step * step_ns // 1_000_000 for step in steps], {step: i for i, step in enumerate(steps)}


def _marks(events: Sequence[EventRow], drawn: set[str] | None, t: Sequence[int]) -> list[dict[str, Any]]:
    """Return the events of the drawn clocks (None: of all) as marks on a time axis, the newest 40."""
    low = t[0] if t else 0
    return [
        {
            "t": row.at_ns // 1_000_000,
            "clock": row.clock,
            "kind": row.event,
            "text": event_text(row.event, row.event_ns),
        }
        for row in events
        if (drawn is None or row.clock in drawn) and row.at_ns // 1_000_000 >= low
    ][:40]


def _columns(
    points: Sequence[ClockPoint], at: dict[int, int], step_ns: int, size: int, field: str
) -> dict[str, Values]:
    """Return one field of each clock on the axis; a step in which it was UNSYNCED is a gap."""
    values: dict[str, Values] = {}
    for point in points:
        i = at.get(point.at_ns // step_ns)
        column = values.setdefault(point.clock, [None] * size)
        if i is not None and point.state != "UNSYNCED":
            column[i] = getattr(point, field)
    return {name: values[name] for name in sorted(values, key=natural)}


def _drawn(values: dict[str, Values]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "color": k % 8,
            "style": "dashed" if k >= 8 else "solid",
            "v": [None if v is None else round(v, 2) for v in column],
        }
        for k, (name, column) in enumerate(values.items())
    ]


def bounds_frame(fleet: ClockFleet, drawn: ClockLines) -> dict[str, Any]:
    """Return error bounds over time: quantiles over all clocks, and the drawn clocks' own."""
    step_ns = fleet.step_ns
    t, at = _axis(fleet.start_ns, fleet.end_ns, step_ns, (p.at_ns for p in fleet.points))
    columns = _columns(drawn.points, at, step_ns, len(t), "bound_ns")
    quantiles: dict[str, Values] = {name: [None] * len(t) for name in ("p50", "p90", "p99", "max")}
    widest: list[str | None] = [None] * len(t)
    for point in fleet.points:
        i = at.get(point.at_ns // step_ns)
        if i is not None:
            widest[i] = point.bound_clock or None
            for name, column in quantiles.items():
                column[i] = _short(getattr(point, f"bound_{name}_ns"))
    if not _many(fleet):
        quantiles = {}
    return {
        "id": "bounds",
        "log": True,
        "t": t,
        "lines": [*_fleet_lines(quantiles), *_drawn(columns)],
        "bands": _fleet_bands(quantiles, (("p50", "p90", 0.3), ("p90", "p99", 0.16))),
        "worst": {"line": "widest", "names": widest},
        "marks": _marks(fleet.events, set(columns), t),
    }


def residuals_frame(fleet: ClockFleet, drawn: ClockLines) -> dict[str, Any]:
    """Return residuals over time: median, p99 and worst over all clocks, and the drawn clocks' own.

    A clock that no pair reached has none, though its record says 0: a gap, as the axis is logarithmic.
    """
    step_ns = fleet.step_ns
    t, at = _axis(fleet.start_ns, fleet.end_ns, step_ns, (p.at_ns for p in fleet.points))
    columns = {
        name: [value or None for value in column]
        for name, column in _columns(drawn.points, at, step_ns, len(t), "residual_ns").items()
    }
    quantiles: dict[str, Values] = {name: [None] * len(t) for name in ("p50", "p99", "max")}
    worst: list[str | None] = [None] * len(t)
    for point in fleet.points:
        i = at.get(point.at_ns // step_ns)
        if i is not None:
            worst[i] = point.residual_clock or None
            for name, column in quantiles.items():
                column[i] = _short(getattr(point, f"residual_{name}_ns"))
    if not _many(fleet):
        quantiles = {}
    return {
        "id": "residuals",
        "log": True,
        "t": t,
        "lines": [*_fleet_lines(quantiles, "worst"), *_drawn(columns)],
        "bands": _fleet_bands(quantiles, (("p50", "p99", 0.22),)),
        "worst": {"line": "worst", "names": worst},
        "marks": _marks(fleet.events, set(columns), t),
    }


def offsets_frame(fleet: ClockFleet, drawn: ClockLines, view: OffsetView) -> dict[str, Any]:
    """Return the drawn clocks' offsets over time with their bounds around them.

    `wander` is offset_ns less its own straight line, over the wander of all clocks; `offset` is offset_ns.
    """
    step_ns = fleet.step_ns
    known = [*(p.at_ns for p in fleet.points), *(p.at_ns for p in drawn.points)]
    t, at = _axis(fleet.start_ns, fleet.end_ns, step_ns, known)
    columns = _columns(drawn.points, at, step_ns, len(t), "offset_ns")
    bounds = _columns(drawn.points, at, step_ns, len(t), "bound_ns")
    bands: list[dict[str, Any]] = []
    if view == "wander":
        columns = {name: less_line(column) for name, column in columns.items()}
        quantiles: dict[str, Values] = {name: [None] * len(t) for name in ("p1", "p10", "p90", "p99")}
        for point in fleet.wander:
            i = at.get(point.at_ns // step_ns)
            if i is not None:
                for name, column in quantiles.items():
                    column[i] = _short(getattr(point, f"{name}_ns"))
        if fleet.wander:
            bands = _fleet_bands(quantiles, (("p1", "p99", 0.16), ("p10", "p90", 0.3)))
    if len(columns) <= 3:
        for k, (name, column) in enumerate(columns.items()):
            both = list(zip(column, bounds[name], strict=True))
            bands.append(
                {
                    "name": f"± bound of {name}",
                    "color": k,
                    "opacity": 0.14,
                    "low": [None if v is None or b is None else _short(v - b) for v, b in both],
                    "high": [None if v is None or b is None else _short(v + b) for v, b in both],
                }
            )
    return {
        "id": f"offsets {view}",
        "log": False,
        "t": t,
        "lines": _drawn(columns),
        "bands": bands,
        "worst": None,
        "marks": _marks(fleet.events, set(columns), t),
    }


def _many(fleet: ClockFleet) -> bool:
    """Whether there are more clocks than are drawn each: quantiles of fewer say nothing."""
    return any(point.synced + point.holdover + point.unsynced > DRAWN_ALL for point in fleet.points[-3:])


def _fleet_lines(quantiles: dict[str, Values], worst: str = "widest") -> list[dict[str, Any]]:
    names = {"max": worst, "p99": "p99", "p90": "p90", "p50": "median"}
    styles = {"max": "dotted", "p99": "dashed", "p90": "dashed", "p50": "solid"}
    return [
        {"name": names[key], "v": quantiles[key], "color": -1, "style": styles[key]}
        for key in names
        if key in quantiles
    ]


def _fleet_bands(
    quantiles: dict[str, Values], pairs: Sequence[tuple[str, str, float]]
) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{low} to {high} of all clocks",
            "color": -1,
            "opacity": opacity,
            "low": quantiles[low],
            "high": quantiles[high],
        }
        for low, high, opacity in pairs
        if low in quantiles
    ]


def strip_frame(rows: Sequence[ClockRow], drawn: Sequence[str]) -> dict[str, Any]:
    """Return the bounds now, the widest first; a point is [rank, bound, state, clock, offset, residual].

    An UNSYNCED clock stands first, without a bound.
    """
    usable = [row for row in rows if row.state != "UNSYNCED"]
    usable.sort(key=lambda row: (-row.bound_ns, natural(row.clock)))
    lost = sorted((row for row in rows if row.state == "UNSYNCED"), key=lambda row: natural(row.clock))
    ordered = [*lost, *usable]
    every = max(1, math.ceil((len(ordered) - STRIP_WORST) / (STRIP_POINTS - STRIP_WORST)))
    chosen = set(drawn)
    points = [
        [
            rank + 1,
            _bound(row),
            STATES.index(row.state),
            row.clock,
            _short(row.offset_ns),
            _short(row.residual_ns),
            int(row.clock in chosen),
        ]
        for rank, row in enumerate(ordered)
        if rank < STRIP_WORST or rank % every == 0 or row.clock in chosen
    ]
    return {"points": points, "clocks": len(ordered), "lost": len(lost)}


def lanes_frame(fleet: ClockFleet) -> dict[str, Any]:
    """Return the states of the clocks with most trouble, as segments [lane, from ms, to ms, state]; events.

    Events of clocks without a lane are left to the list.
    """
    step_ms = fleet.step_ns // 1_000_000
    lanes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for point in fleet.lanes:
        lanes[point.clock].append((point.at_ns // 1_000_000, STATES.index(point.state)))
    names = sorted(lanes, key=natural)
    segments: list[list[int]] = []
    for number, name in enumerate(names):
        for at, state in lanes[name]:
            last = segments[-1] if segments and segments[-1][0] == number else None
            if last is not None and at - last[2] <= (GAP_STEPS - 1) * step_ms and last[3] == state:
                last[2] = at + step_ms
            else:
                segments.append([number, at, at + step_ms, state])
    place = {name: number for number, name in enumerate(names)}
    marks = [
        [place[row.clock], row.at_ns // 1_000_000, row.event, event_text(row.event, row.event_ns)]
        for row in fleet.events
        if row.clock in place
    ]
    first = min((segment[1] for segment in segments), default=fleet.start_ns // 1_000_000)
    return {
        "lanes": names,
        "segments": segments,
        "marks": marks,
        "t": [first, max(fleet.end_ns // 1_000_000, first + step_ms)],
    }


def mesh_frame(mesh: Mesh, nics: Sequence[NicRow], clocks: Sequence[ClockRow]) -> dict[str, Any]:
    """Return the mesh on a circle, NICs by rack and host: nodes, groups, edges and suspect edges.

    A node is [nic, x, y, clock, state, bound, pairs, suspects]; an edge joins both directions of a pair:
    [node, node, directions, sigma, least round trip, accepted]; a suspect is [node, node, asymmetry, sigma,
    weight]. A mesh of more than `MESH_NICS` NICs has only those of suspect pairs.
    """
    whole = mesh.size.nics <= MESH_NICS
    seen = {nic for pair in mesh.pairs for nic in (pair.prober, pair.peer)}
    seen |= {nic for suspect in mesh.suspects for nic in (suspect.prober, suspect.peer)}
    inventory = {row.nic: row for row in nics}
    if whole and len(inventory) <= MESH_NICS:
        seen |= inventory.keys()
    homes = [
        frames.Place(nic, row.host, row.rack)
        if (row := inventory.get(nic)) is not None
        else frames.Place(nic, nic.partition("/")[0], None)
        for nic in seen
    ]
    homes.sort(key=lambda p: (natural(p.rack or ""), natural(p.host), natural(p.nic)))
    racks = {home.rack for home in homes if home.rack is not None}
    level: frames.Level = "rack" if len(racks) > 1 and len({h.host for h in homes}) > 24 else "host"
    place, groups = _circle([home.at(level) for home in homes])
    index = {home.nic: i for i, home in enumerate(homes)}
    state = {row.clock: row for row in clocks}
    edges: dict[tuple[int, int], list[float | int | None]] = {}
    degree = [0] * len(homes)
    for pair in mesh.pairs if whole else ():
        a, b = sorted((index[pair.prober], index[pair.peer]))
        edge = edges.get((a, b))
        degree[index[pair.prober]] += 1
        degree[index[pair.peer]] += 1
        if edge is None:
            edges[a, b] = [a, b, 1, _short(pair.sigma_ns), _short(pair.rtt_min_ns), pair.accepted]
        else:
            edge[2] = int(edge[2] or 0) + 1
            edge[3] = max(edge[3] or 0, _short(pair.sigma_ns) or 0)
            edge[4] = min(edge[4] or 0, _short(pair.rtt_min_ns) or 0)
            edge[5] = min(int(edge[5] or 0), pair.accepted)
    suspected = [0] * len(homes)
    suspects = []
    for suspect in mesh.suspects:
        a, b = index[suspect.prober], index[suspect.peer]
        suspected[a] += 1
        suspected[b] += 1
        figures = (_short(suspect.asymmetry_ns), _short(suspect.sigma_ns), round(suspect.weight, 3))
        suspects.append([a, b, *figures])
    nodes = []
    for i, home in enumerate(homes):
        known = inventory.get(home.nic)
        clock = known.clock if known is not None else home.nic
        solved = state.get(clock)
        said = (None, None) if solved is None else (solved.state, _bound(solved))
        nodes.append([home.nic, *place[i], clock, *said, degree[i], suspected[i]])
    return {
        "nodes": nodes,
        "groups": groups,
        "edges": list(edges.values()),
        "suspects": suspects,
        "labels": len(homes) <= NIC_LABELS,
    }


def _circle(groups: Sequence[str]) -> tuple[list[tuple[float, float]], list[list[Any]]]:
    """Return (x, y) on the unit circle for places in groups, and [group, x, y] at each group's middle."""
    starts = [i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]]
    room = len(groups) + GROUP_GAP * len(starts)
    angles: list[float] = []
    before = -1
    for i in range(len(groups)):
        before += i in starts
        angles.append(2 * math.pi * (i + GROUP_GAP * before) / max(room, 1) - math.pi / 2)
    at = [(round(math.cos(angle), 4), round(math.sin(angle), 4)) for angle in angles]
    middles = []
    for start, end in itertools.pairwise([*starts, len(groups)]):
        angle = (angles[start] + angles[end - 1]) / 2
        middles.append([groups[start], round(math.cos(angle), 4), round(math.sin(angle), 4)])
    return at, middles


def mesh_note(mesh: Mesh, nics: int) -> str:
    """Return what the picture of the mesh shows and leaves out."""
    size, suspects = mesh.size, len(mesh.suspects)
    if not size.pairs and not suspects:
        one = "One NIC alone: a clock needs another one to be compared with." if nics == 1 else ""
        return one or "No pair has been fitted in the last 10 s."
    involved = len({nic for row in mesh.suspects for nic in (row.prober, row.peer)})
    counts = f"{size.nics:,} NICs, {size.pairs:,} directed pairs"
    suspect = _suspect_text(mesh.suspects)
    if size.nics <= MESH_NICS:
        return f"{counts}; {suspect}"
    if not suspects:
        return f"{counts}; {suspect}. Too many to draw: only suspect pairs would be."
    return f"{counts}; {suspect}. Drawn are only these and their {involved:,} NICs."


def _suspect_text(suspects: Sequence[SuspectRow]) -> str:
    if not suspects:
        return "no suspect pair"
    worst = suspects[0]
    return (
        f"{len(suspects):,} suspect pair{'s' * (len(suspects) != 1)}, worst {worst.prober} → {worst.peer} "
        f"{signed_delay_text(worst.asymmetry_ns)} ± {delay_text(worst.sigma_ns)}"
    )


def _bound(row: ClockRow) -> float | int | None:
    return None if row.state == "UNSYNCED" else _short(row.bound_ns)


def _short(value: float | None) -> float | int | None:
    """Keep five digits: what nobody can see is not sent."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded
