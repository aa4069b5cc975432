"""Chart frames of the Clocks tab: bounds, offsets, residuals, the strip of all clocks' bounds, state
timelines, and the probe mesh.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fabrictime.web.tabs.clocks.queries import (
    DRAW_ALL_CLOCKS,
    MAX_MESH_NICS,
    ClockFleet,
    ClockPoint,
    ClockRow,
    ClockSeries,
    EventRow,
    Mesh,
    MeshPair,
    SuspectRow,
)
from fabrictime.web.tabs.delays.frames import COLOURS, Level, Place, bound_band, place_order
from fabrictime.web.tabs.delays.queries import NicRow
from fabrictime.web.time_series import GAP_STEPS, Values, detrend, rounded, time_axis
from schemas.ids import host_of, natural
from schemas.units import delay_text, signed_delay_text

OffsetView = Literal["wander", "offset"]

STATES = ("SYNCED", "HOLDOVER", "UNSYNCED")
MAX_MARKS = 40
"""Largest number of events that a chart marks."""
MAX_BOUND_BANDS = 3
"""Largest number of clocks drawn with a band for their bound: more bands would hide each other."""
STRIP_POINTS = 600
STRIP_WORST = 200
"""With more than `STRIP_POINTS` clocks, the strip shows those with the widest bounds, this many, and every
n-th of the others.
"""
GROUP_GAP = 1.2
"""Gap between two groups on the mesh's circle, in units of the distance between two NICs."""
MAX_NIC_LABELS = 40
"""Largest number of NICs that are labelled; a larger mesh labels only its groups."""
MAX_HOST_GROUPS = 24
"""Largest number of hosts that form groups; with more hosts and several racks, racks form the groups."""


def event_text(event: str, event_ns: float) -> str:
    """Return an event with its value as text, such as 'STEP +1.00 ms' or 'FALSETICKER 250 ns rms'."""
    if event in ("STEP", "MERGED"):
        return f"{event} {signed_delay_text(event_ns)}"
    if event == "RATE_CHANGE":
        return f"RATE_CHANGE {event_ns:+,.0f} ppb"
    return f"{event} {delay_text(event_ns)} rms" if event == "FALSETICKER" else event


def _marks(events: Sequence[EventRow], drawn: set[str], t: Sequence[int]) -> list[dict[str, Any]]:
    """Return at most `MAX_MARKS` of the drawn clocks' events as marks on the time axis `t`, the
    newest first.
    """
    begin_ms = t[0] if t else 0
    return [
        {
            "t": row.at_ns // 1_000_000,
            "clock": row.clock,
            "kind": row.event,
            "text": event_text(row.event, row.event_ns),
        }
        for row in events
        if row.clock in drawn and row.at_ns // 1_000_000 >= begin_ms
    ][:MAX_MARKS]


def _columns(
    points: Sequence[ClockPoint], index: dict[int, int], step_ns: int, size: int, field: str
) -> dict[str, Values]:
    """Return, by clock, the values of one field per step; None for a step in which the clock was UNSYNCED."""
    values: dict[str, Values] = {}
    for point in points:
        i = index.get(point.at_ns // step_ns)
        column = values.setdefault(point.clock, [None] * size)
        if i is not None and point.state != "UNSYNCED":
            column[i] = getattr(point, field)
    return {name: values[name] for name in sorted(values, key=natural)}


def _clock_lines(values: dict[str, Values]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "color": k % COLOURS,
            "style": "dashed" if k >= COLOURS else "solid",
            "v": [None if v is None else round(v, 2) for v in column],
        }
        for k, (name, column) in enumerate(values.items())
    ]


def _quantiles(
    points: Sequence[Any], names: Sequence[str], prefix: str, step_ns: int, index: dict[int, int]
) -> dict[str, Values]:
    """Return, by name, the points' field `{prefix}{name}_ns` per step; None for a step without a point."""
    columns: dict[str, Values] = {name: [None] * len(index) for name in names}
    for point in points:
        i = index.get(point.at_ns // step_ns)
        if i is not None:
            for name, column in columns.items():
                column[i] = _short(getattr(point, f"{prefix}{name}_ns"))
    return columns


def _worst_clocks(fleet: ClockFleet, field: str, index: dict[int, int]) -> list[str | None]:
    """Return, per step, the clock in the field `field`; None for a step without such a clock."""
    worst_by_step: list[str | None] = [None] * len(index)
    for point in fleet.points:
        i = index.get(point.at_ns // fleet.span.step_ns)
        if i is not None:
            worst_by_step[i] = getattr(point, field) or None
    return worst_by_step


def bounds_frame(fleet: ClockFleet, drawn: ClockSeries) -> dict[str, Any]:
    """Return the chart frame of error bounds over time: quantiles over all clocks, and each drawn clock."""
    t, index = time_axis(fleet.span, (p.at_ns for p in fleet.points))
    columns = _columns(drawn.points, index, fleet.span.step_ns, len(t), "bound_ns")
    quantiles: dict[str, Values] = {}
    if _is_large(fleet):
        quantiles = _quantiles(
            fleet.points, ("p50", "p90", "p99", "max"), "bound_", fleet.span.step_ns, index
        )
    return {
        "id": "bounds",
        "log": True,
        "t": t,
        "lines": [*_fleet_lines(quantiles, "widest"), *_clock_lines(columns)],
        "bands": _fleet_bands(quantiles, (("p50", "p90", 0.3), ("p90", "p99", 0.16))),
        "worst": {"line": "widest", "names": _worst_clocks(fleet, "bound_clock", index)},
        "marks": _marks(fleet.events, set(columns), t),
    }


def residuals_frame(fleet: ClockFleet, drawn: ClockSeries) -> dict[str, Any]:
    """Return the chart frame of residuals over time: quantiles over all clocks, and each drawn clock.

    A clock without a pair has the residual 0 in its record. The chart shows a gap instead, because its axis
    is logarithmic.
    """
    t, index = time_axis(fleet.span, (p.at_ns for p in fleet.points))
    columns = {
        name: [value or None for value in column]
        for name, column in _columns(drawn.points, index, fleet.span.step_ns, len(t), "residual_ns").items()
    }
    quantiles: dict[str, Values] = {}
    if _is_large(fleet):
        quantiles = _quantiles(fleet.points, ("p50", "p99", "max"), "residual_", fleet.span.step_ns, index)
    return {
        "id": "residuals",
        "log": True,
        "t": t,
        "lines": [*_fleet_lines(quantiles, "worst"), *_clock_lines(columns)],
        "bands": _fleet_bands(quantiles, (("p50", "p99", 0.22),)),
        "worst": {"line": "worst", "names": _worst_clocks(fleet, "residual_clock", index)},
        "marks": _marks(fleet.events, set(columns), t),
    }


def offsets_frame(fleet: ClockFleet, drawn: ClockSeries, view: OffsetView) -> dict[str, Any]:
    """Return the chart frame of the drawn clocks' offsets over time, with their error bounds as bands.

    The view `wander` shows offset_ns minus its linear fit, above the wander of all clocks. The view `offset`
    shows offset_ns.
    """
    step_ns = fleet.span.step_ns
    times_ns = [*(p.at_ns for p in fleet.points), *(p.at_ns for p in drawn.points)]
    t, index = time_axis(fleet.span, times_ns)
    field = "moved_ns" if view == "wander" else "offset_ns"
    columns = _columns(drawn.points, index, step_ns, len(t), field)
    bounds = _columns(drawn.points, index, step_ns, len(t), "bound_ns")
    bands: list[dict[str, Any]] = []
    if view == "wander":
        columns = {name: detrend(column) for name, column in columns.items()}
        if fleet.wander:
            quantiles = _quantiles(fleet.wander, ("p1", "p10", "p90", "p99"), "", step_ns, index)
            bands = _fleet_bands(quantiles, (("p1", "p99", 0.16), ("p10", "p90", 0.3)))
    if len(columns) <= MAX_BOUND_BANDS:
        bands += [_bound_band(name, k, columns[name], bounds[name]) for k, name in enumerate(columns)]
    return {
        "id": f"offsets {view}",
        "log": False,
        "t": t,
        "lines": _clock_lines(columns),
        "bands": bands,
        "worst": None,
        "marks": _marks(fleet.events, set(columns), t),
    }


def offsets_note(fleet: ClockFleet, drawn: ClockSeries, view: OffsetView, clocks: int) -> str:
    """Return the words above the offsets: what lines and bands are. `clocks`: size of the fleet."""
    parts = [
        "each clock minus its linear fit" if view == "wander" else "clock reading + offset = fabric time"
    ]
    if 0 < len({point.clock for point in drawn.points}) <= MAX_BOUND_BANDS:
        parts.append("coloured bands: ± the bound of each clock")
    if view == "wander" and fleet.wander:
        parts.append(f"grey bands: 80% and 98% of all {clocks:,} clocks")
    return " · ".join(parts)


def _bound_band(name: str, color: int, values: Values, bounds: Values) -> dict[str, Any]:
    low, high = bound_band(values, bounds)
    return {
        "name": f"± bound of {name}",
        "color": color,
        "opacity": 0.14,
        "low": [_short(value) for value in low],
        "high": [_short(value) for value in high],
    }


def _is_large(fleet: ClockFleet) -> bool:
    """Return whether there are too many clocks to draw each clock, so that quantiles are drawn instead."""
    return any(
        point.synced + point.holdover + point.unsynced > DRAW_ALL_CLOCKS for point in fleet.points[-3:]
    )


def _fleet_lines(quantiles: dict[str, Values], worst: str) -> list[dict[str, Any]]:
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
    """Return the frame of the strip of error bounds: [rank, bound, state, clock, offset, residual, drawn] for
    each clock, the widest bound first.

    UNSYNCED clocks come before all others, without a bound.
    """
    usable = [row for row in rows if row.state != "UNSYNCED"]
    usable.sort(key=lambda row: (-row.bound_ns, natural(row.clock)))
    unsynced = sorted((row for row in rows if row.state == "UNSYNCED"), key=lambda row: natural(row.clock))
    ordered = [*unsynced, *usable]
    every = max(1, math.ceil((len(ordered) - STRIP_WORST) / (STRIP_POINTS - STRIP_WORST)))
    drawn_names = set(drawn)
    points = [
        [
            rank + 1,
            _bound(row),
            STATES.index(row.state),
            row.clock,
            _short(row.offset_ns),
            _short(row.residual_ns),
            int(row.clock in drawn_names),
        ]
        for rank, row in enumerate(ordered)
        if rank < STRIP_WORST or rank % every == 0 or row.clock in drawn_names
    ]
    return {"points": points, "clocks": len(ordered), "unsynced": len(unsynced)}


def timeline_frame(fleet: ClockFleet) -> dict[str, Any]:
    """Return the frame of the timeline: events, and the states of the clocks with the most trouble as
    segments [row, from ms, to ms, state].

    Events of clocks without a row appear only in the list of events.
    """
    step_ms = fleet.span.step_ns // 1_000_000
    states: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for point in fleet.states:
        states[point.clock].append((point.at_ns // 1_000_000, STATES.index(point.state)))
    names = sorted(states, key=natural)
    segments: list[list[int]] = []
    for number, name in enumerate(names):
        segments += _segments(number, states[name], step_ms)
    index = {name: number for number, name in enumerate(names)}
    marks = [
        [index[row.clock], row.at_ns // 1_000_000, row.event, event_text(row.event, row.event_ns)]
        for row in fleet.events
        if row.clock in index
    ]
    first = min((segment[1] for segment in segments), default=fleet.span.start_ns // 1_000_000)
    return {
        "rows": names,
        "segments": segments,
        "marks": marks,
        "t": [first, max(fleet.span.end_ns // 1_000_000, first + step_ms)],
    }


def _segments(number: int, states: Sequence[tuple[int, int]], step_ms: int) -> list[list[int]]:
    """Return segments of consecutive steps with the same state. Gaps of less than `GAP_STEPS` do not end a
    segment.
    """
    segments: list[list[int]] = []
    for at, state in states:
        last = segments[-1] if segments else None
        if last is not None and at - last[2] <= (GAP_STEPS - 1) * step_ms and last[3] == state:
            last[2] = at + step_ms
        else:
            segments.append([number, at, at + step_ms, state])
    return segments


# ------------------------------------------------------------------------------------------------------ mesh


def mesh_frame(mesh: Mesh, nics: Sequence[NicRow], clocks: Sequence[ClockRow]) -> dict[str, Any]:
    """Return the frame of the probe mesh on a circle, NICs by rack and host: nodes, groups, edges and suspect
    edges.

    A node is [nic, x, y, clock, state, bound, pairs, suspects]. An edge combines both directions of a pair:
    [node, node, directions, sigma, smallest round trip, accepted]. A suspect is [node, node, asymmetry,
    sigma, weight]. A mesh with more than `MAX_MESH_NICS` NICs has only the NICs of suspect pairs.
    """
    is_full = mesh.size.nics <= MAX_MESH_NICS
    inventory = {row.nic: row for row in nics}
    homes = _homes(mesh, inventory, is_full)
    positions, groups = _circle([home.at(_group_level(homes)) for home in homes])
    index = {home.nic: i for i, home in enumerate(homes)}
    edges, degree = _edges(mesh.pairs if is_full else (), index)
    suspects = _suspects(mesh, index)
    suspected = Counter(nic for suspect in mesh.suspects for nic in (suspect.prober, suspect.peer))
    solved = {row.clock: row for row in clocks}
    nodes = []
    for i, home in enumerate(homes):
        clock = inventory[home.nic].clock if home.nic in inventory else home.nic
        row = solved.get(clock)
        state = (None, None) if row is None else (row.state, _bound(row))
        nodes.append([home.nic, *positions[i], clock, *state, degree[i], suspected[home.nic]])
    return {
        "nodes": nodes,
        "groups": groups,
        "edges": edges,
        "suspects": suspects,
        "labels": len(homes) <= MAX_NIC_LABELS,
    }


def _group_level(homes: Sequence[Place]) -> Level:
    """Return the level that groups the NICs on the circle: racks if there are several racks and too many
    hosts, else hosts.
    """
    racks = {home.rack for home in homes if home.rack is not None}
    many_hosts = len({home.host for home in homes}) > MAX_HOST_GROUPS
    return "rack" if len(racks) > 1 and many_hosts else "host"


def _suspects(mesh: Mesh, index: Mapping[str, int]) -> list[list[Any]]:
    return [
        [
            index[suspect.prober],
            index[suspect.peer],
            _short(suspect.asymmetry_ns),
            _short(suspect.sigma_ns),
            round(suspect.weight, 3),
        ]
        for suspect in mesh.suspects
    ]


def _homes(mesh: Mesh, inventory: dict[str, NicRow], is_full: bool) -> list[Place]:
    """Return the drawn NICs by rack, host and device."""
    drawn = {nic for pair in mesh.pairs for nic in (pair.prober, pair.peer)}
    drawn |= {nic for suspect in mesh.suspects for nic in (suspect.prober, suspect.peer)}
    if is_full and len(inventory) <= MAX_MESH_NICS:
        drawn |= inventory.keys()
    homes = []
    for nic in drawn:
        row = inventory.get(nic)
        host, rack = (host_of(nic), None) if row is None else (row.host, row.rack)
        homes.append(Place(nic, host, rack))
    return sorted(homes, key=place_order)


def _edges(
    pairs: Sequence[MeshPair], index: dict[str, int]
) -> tuple[list[list[float | int | None]], list[int]]:
    """Return an edge for each pair, combining both directions, and the number of directed pairs of each
    NIC.
    """
    edges: dict[tuple[int, int], list[float | int | None]] = {}
    degree = [0] * len(index)
    for pair in pairs:
        a, b = sorted((index[pair.prober], index[pair.peer]))
        degree[a] += 1
        degree[b] += 1
        edge = edges.get((a, b))
        if edge is None:
            edges[a, b] = [a, b, 1, _short(pair.sigma_ns), _short(pair.rtt_min_ns), pair.accepted]
        else:
            edge[2] = int(edge[2] or 0) + 1
            edge[3] = max(edge[3] or 0, _short(pair.sigma_ns) or 0)
            edge[4] = min(edge[4] or 0, _short(pair.rtt_min_ns) or 0)
            edge[5] = min(int(edge[5] or 0), pair.accepted)
    return list(edges.values()), degree


def _circle(groups: Sequence[str]) -> tuple[list[tuple[float, float]], list[list[Any]]]:
    """Return (x, y) on the unit circle for each NIC, and [group, x, y] for the middle of each group. `groups`
    holds the group of each NIC in order.
    """
    starts = [i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]]
    circumference = len(groups) + GROUP_GAP * len(starts)
    angles: list[float] = []
    gaps = -1
    for i in range(len(groups)):
        gaps += i in starts
        angles.append(2 * math.pi * (i + GROUP_GAP * gaps) / max(circumference, 1) - math.pi / 2)
    positions = [(round(math.cos(angle), 4), round(math.sin(angle), 4)) for angle in angles]
    middles = []
    for start, end in itertools.pairwise([*starts, len(groups)]):
        angle = (angles[start] + angles[end - 1]) / 2
        middles.append([groups[start], round(math.cos(angle), 4), round(math.sin(angle), 4)])
    return positions, middles


def mesh_note(mesh: Mesh, nics: int) -> str:
    """Return the note above the mesh: its size, its suspect pairs, and the part that is drawn."""
    size, suspects = mesh.size, len(mesh.suspects)
    if not size.pairs and not suspects:
        if nics == 1:
            return "A single NIC: there is no other clock to compare with."
        return "No pair was fitted in the last 10 s."
    involved = len({nic for row in mesh.suspects for nic in (row.prober, row.peer)})
    note = f"{size.nics:,} NICs, {size.pairs:,} directed pairs; {_suspect_text(mesh.suspects)}"
    if size.nics <= MAX_MESH_NICS:
        return note
    if not suspects:
        return f"{note}. Too many to draw: only suspect pairs would be."
    return f"{note}. Only these and their {involved:,} NICs are drawn."


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
    return rounded(value, 5)
