"""The live table of `up`: NICs with rate, clock and worst path; workers, lag and processes below.

The functions take a View and the supervisor's rows, and return a rich renderable or one plain line. A host's
agent has no View: in a large fleet, reading all hosts' records would cost more than the agent itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from fabrictime.state.live_figures import RECENT_S, ClockView, NicView, PathView, View
from schemas.records import ClockSync

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_ROWS_BESIDE_NICS: Final = 10


def time_text(ns: float | None) -> str:
    """Return a time as text for the table: '812 ns', '4.31 us', '3.000 ms'."""
    if ns is None:
        return "-"
    for limit, divisor, unit, digits in ((1e3, 1, "ns", 0), (1e6, 1e3, "us", 2), (1e9, 1e6, "ms", 3)):
        if abs(ns) < limit:
            return f"{ns / divisor:.{digits}f} {unit}"
    return f"{ns / 1e9:.3f} s"


Heard = TypeVar("Heard", NicView, ClockView, PathView)


class Totals(NamedTuple):
    """The figures of the whole fleet in the live table."""

    nics: int
    probes_per_s: float
    lost: int
    clocks: int
    synced: int
    bound_ns: float | None
    lag: int
    late_ms: float | None
    rejected: int
    worst: str | None
    pace: str
    """Text about the pace of a simulated fleet; empty for a real one."""
    slow: str
    """Text about a simulation that is too slow, with advice; empty otherwise."""


def totals(view: View) -> Totals:
    """Return the figures of the whole fleet: rates, clocks, the worst path, lag."""
    now_s = time.monotonic()
    with view.lock:
        ours = {view.clock_of.get(name, name) for name in view.nics}  # none of a fleet that was here before
        alive = _recent(view.nics, now_s)
        clocks = [clock for name, clock in _recent(view.clocks, now_s).items() if name in ours]
        worst = _recent(view.worst, now_s)
        worst_text = None
        if worst:
            name, path = max(worst.items(), key=lambda row: row[1].p99_ns)
            direction = f"{path.peer} > {name}" if path.back else f"{name} > {path.peer}"
            worst_text = f"{direction} path {path.path}: p99 {time_text(path.p99_ns)}"
        synced = [clock for clock in clocks if clock.state == ClockSync.SYNCED]
        return Totals(
            nics=len(alive),
            probes_per_s=sum(nic.probes_per_s for nic in alive.values()),
            lost=sum(nic.lost for nic in view.nics.values()),
            clocks=len(clocks),
            synced=len(synced),
            bound_ns=max((clock.bound_ns for clock in synced), default=None),
            lag=sum(view.lag.values()),
            late_ms=view.late_ms,
            rejected=view.rejected,
            worst=worst_text,
            pace=view.simulated.text,
            slow=view.simulated.slow_text,
        )


def _recent(views: Mapping[str, Heard], now_s: float) -> dict[str, Heard]:
    return {name: view for name, view in views.items() if now_s - view.heard_s < RECENT_S}


def plain(view: View | None, rows: Sequence[Mapping[str, Any]], missing: Sequence[str] = ()) -> str:
    """Return the fleet's figures as one line; without a view, each service's figures.

    `missing`: a phrase for each kind of evidence that is missing.
    """
    figures = _service_texts(rows) if view is None else _fleet_texts(view)
    ill = [
        f"{row['name']}: {row['fault']}" if row["fault"] else f"{row['name']} {row['state']}"
        for row in rows
        if row["state"] != "ready" or row["fault"]
    ]
    return "; ".join([*figures, *missing, *([", ".join(ill)] if ill else [])])


def _service_texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"{row['name']}: {row['status'] or row['state']}" for row in rows]


def _fleet_texts(view: View) -> list[str]:
    sums = totals(view)
    late = "-" if sums.late_ms is None else f"{sums.late_ms:.0f} ms"
    text = (
        f"{sums.nics} NICs, {sums.probes_per_s:,.0f} probes/s, {sums.lost:,} lost, "
        f"{sums.synced} of {sums.clocks} clocks SYNCED, bound {time_text(sums.bound_ns)}, "
        f"worst {sums.worst or '-'}, lag {sums.lag} messages, window to offsets {late}"
    )
    pace = sums.slow or sums.pace
    return [text, pace] if pace else [text]


def table(
    view: View | None,
    rows: Sequence[Mapping[str, Any]],
    web_url: str | None,
    height: int,
    missing: Sequence[str] = (),
) -> RenderableType:
    """Return the live table for a terminal of `height` lines. `missing` is as in `plain`."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType]
    if view is None:
        parts = [Text(line) for line in _service_texts(rows)]
    else:
        parts = _fleet_parts(view, height - len(_notable(rows)) - len(missing))
    ready = sum(row["state"] == "ready" for row in rows)
    parts.append(Text(f"{ready} of {len(rows)} processes ready"))
    parts += [Text(line, "red") for line in missing]
    parts += [Text(line, "yellow") for line in _notable(rows)]
    where = "" if web_url is None else f"web page {web_url}   "
    parts.append(Text(f"{where}Ctrl-C stops everything", "bold"))
    return Group(*parts)


def _fleet_parts(view: View, height: int) -> list[RenderableType]:
    """Return the table of NICs and the fleet's figures. `height`: number of lines for both."""
    from rich.table import Table
    from rich.text import Text

    sums = totals(view)
    nics = Table("NIC", box=None, pad_edge=False)
    for title in ("probes/s", "lost", "clock offset", "bound", "state"):
        nics.add_column(title, justify="right")
    nics.add_column("worst path now, p99", no_wrap=True)
    with view.lock:
        nic_names = sorted(view.nics)[: max(3, height - _ROWS_BESIDE_NICS - bool(sums.pace))]
        for name in nic_names:
            nic, worst = view.nics[name], view.worst.get(name)
            clock = view.clocks.get(view.clock_of.get(name, name))
            nics.add_row(
                name,
                f"{nic.probes_per_s:,.0f}",
                f"{nic.lost:,}",
                "-" if clock is None else time_text(clock.offset_ns),
                "-" if clock is None else time_text(clock.bound_ns),
                Text("-") if clock is None else _state_text(clock.state),
                "-" if worst is None else _worst_text(worst),
            )
        more = len(view.nics) - len(nic_names)
    late = "-" if sums.late_ms is None else f"{sums.late_ms:.0f} ms"
    summary = Text(
        f"{sums.nics} NICs  {sums.probes_per_s:,.0f} probes/s  {sums.lost:,} lost  "
        f"{sums.synced}/{sums.clocks} clocks SYNCED, worst bound {time_text(sums.bound_ns)}\n"
        f"worst path {sums.worst or '-'}\n"
        f"stream lag {sums.lag} messages, offsets {late} after their window, {sums.rejected} rejected"
    )
    parts: list[RenderableType] = [nics]
    if more > 0:
        parts.append(Text(f"and {more} more NICs", "dim"))
    parts += [Text(""), summary]
    if sums.pace:
        parts.append(Text(sums.slow, "yellow") if sums.slow else Text(sums.pace))
    return parts


def _worst_text(path: PathView) -> str:
    """Return a NIC's worst path, as '>h5/eth1 9321 40.35 us'; '>' means to the peer, '<' from the peer."""
    return f"{'<' if path.back else '>'}{path.peer} {path.path} {time_text(path.p99_ns)}"


def _state_text(state: str) -> Text:
    from rich.text import Text

    return Text(state, "green" if state == "SYNCED" else "red")


def _notable(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each process, at most five, that is not ready, was restarted or has a fault."""
    notable = [row for row in rows if row["state"] != "ready" or row["restarts"] or row["fault"]]
    notable.sort(key=lambda row: row["fault"] is None)
    return [
        f"{row['name']} {row['state']}, {row['fault']}"
        if row["fault"]
        else f"{row['name']} {row['state']}, pid {row['pid']}, restarts {row['restarts']}, "
        f"last {row['last_exit']}"
        for row in notable
    ][:5]
