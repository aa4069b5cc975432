"""The panel of the tab Jobs about ranks: the parts of their time as bars or as a heat map, and one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nicegui import ui

from fabrictime.web.chart import LiveChart
from fabrictime.web.elements import card, empty, name_value_table, part, put_values, text, toggle
from fabrictime.web.tabs.jobs import frames
from fabrictime.web.widgets import Chips
from schemas.records import Diagnosis, RankTime
from schemas.units import counted

VIEWS: Final = {"bars": "bars", "map": "heat map"}


class RankPanel:
    """Shows the ranks of one interval. The panel calls `choose` with the choices of the tab that change."""

    def __init__(self, choose: Callable[..., None]) -> None:
        self._choose = choose
        self._shown: tuple[Any, ...] = ()

    def build(self, view: str, sort: str) -> None:
        """Create the panel's elements."""
        with card("ft-job-ranks"):
            with ui.element("div").classes("ft-head"):
                text("Ranks by time split", "ft-title")
                toggle(VIEWS, view, lambda value: self._choose(ranks=value), "ranks-view")
            with ui.element("div").classes("ft-sort"):
                text("most first:", "ft-note")
                toggle(frames.SORTS, sort or None, lambda value: self._choose(sort=value), "ranks-sort")
            self.note = text("", "ft-note", test="ranks-note")
            self.empty = empty("", "ranks-empty")
            self.bars_part, self.map_part = part("ranks-bars-part"), part("ranks-map-part")
            with self.bars_part.classes("ft-chart-part"):
                self.bars = LiveChart("rank-bars", on_pick=self._on_pick)
                self.bars.classes("ft-fill").props("data-testid=rank-bars")
            with self.map_part.classes("ft-chart-part"):
                self.map = LiveChart("rank-map", on_pick=self._on_pick)
                self.map.classes("ft-fill").props("data-testid=rank-map")
            self.rank_part = part("rank")
            with self.rank_part:
                self.title = text("", "ft-sub-title", test="rank-title")
                self.figures = name_value_table("rank-figures")
                self.nic = Chips(lambda nic: self._choose(nic=nic)).props("data-testid=rank-nic")

    def _on_pick(self, rank: str) -> None:
        self._choose(rank=int(rank))

    def resume(self) -> None:
        """Draw the charts again after the browser has reconnected."""
        self.bars.resume()
        self.map.resume()

    def show(self, record: Diagnosis | None, view: str, sort: str, rank: int | None) -> None:
        """Show the ranks of an interval."""
        splits = record["time_splits"] if record is not None else []
        has_map = view == "map"
        self.bars_part.set_visibility(bool(splits) and not has_map)
        self.map_part.set_visibility(bool(splits) and has_map)
        self.empty.set_visibility(not splits)
        self.empty.set_text(
            "This interval is no longer in memory."
            if record is None
            else "No rank reported the split of its time in this interval."
        )
        chosen_split = next((split for split in splits if split["rank"] == rank), None)
        self._show_rank(chosen_split)
        if record is None or not splits:
            self.note.set_text("")
            return
        used = sort or frames.sort_for(record["verdict"])
        self.note.set_text(_note(len(splits), used, has_map))
        shown_key = (id(record), view, used, rank)
        if shown_key == self._shown:
            return
        self._shown = shown_key
        length_ns = record["end_ns"] - record["begin_ns"]
        frame = frames.ranks_frame(splits, record["ranks"], length_ns, used, rank)
        (self.map if has_map else self.bars).show(lambda _is_full: frame)

    def _show_rank(self, split: RankTime | None) -> None:
        self.rank_part.set_visibility(split is not None)
        if split is not None:
            self.title.set_text(f"Rank {split['rank']} on {split['host']}")
            put_values(self.figures, frames.rank_figures(split))
            nic = split["nic"]
            self.nic.put([(nic, f"queue pairs of {nic}", "")] if nic else [])


def _note(ranks: int, sort: str, has_map: bool) -> str:
    by = "by number" if sort == "rank" else f"most {frames.SORTS[sort]} first"
    if has_map:
        return f"{counted(ranks, 'rank')}, {by}; a column is a rank, a colour its difference from the median"
    ranks_text = (
        f"{frames.BARS_SHOWN} of {ranks:,} ranks" if ranks > frames.BARS_SHOWN else counted(ranks, "rank")
    )
    return f"{ranks_text}, {by}; a click on a rank shows its flows"
