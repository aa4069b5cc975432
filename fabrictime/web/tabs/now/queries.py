"""History query of the tab Now: the age of the history, and the worst clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fabrictime.web.history_reader import HistoryReader
from fabrictime.web.tabs.clocks.queries import ClockRow, clocks
from schemas import tables

_STATES: Final = {"UNSYNCED": 2, "HOLDOVER": 1}


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """Age of the history's newest windows, s, and the clock in the worst state or with the widest bound."""

    age_s: float | None
    worst_clock: ClockRow | None
    clocks: int
    synced: int


def history_figures(history: HistoryReader) -> HistoryFigures:
    """Return the age of the history and the worst clock, for the tab Now."""
    ends = history.ends()
    ages = [history.age_s(ends[name]) for name in (tables.DELAYS_1S, tables.CLOCKS)]
    clock_rows = clocks(history)
    worst = max(clock_rows, key=lambda row: (_STATES.get(row.state, 0), row.bound_ns), default=None)
    synced = sum(row.state == "SYNCED" for row in clock_rows)
    return HistoryFigures(
        max((age for age in ages if age is not None), default=None), worst, len(clock_rows), synced
    )
