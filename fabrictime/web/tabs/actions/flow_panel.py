"""The panel of the Actions tab about one flow: its last minutes, one decision, and all its decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from nicegui import ui

from fabrictime.state import action_text
from fabrictime.state.action_entries import NS_PER_S, ActionEntry
from fabrictime.state.flow_history import Sample
from fabrictime.state.labels import arrow, kind_label, readable
from fabrictime.web.addresses import fabric_address
from fabrictime.web.chart import LiveChart
from fabrictime.web.elements import empty, name_value_table, part, put_values, table, text, toggle
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.actions import frames
from fabrictime.web.tabs.fabric.queries import MoveDelays
from fabrictime.web.widgets import Cell, Chips, LiveTable, Row
from schemas.records import Alert
from schemas.units import delay_text

if TYPE_CHECKING:
    from fabrictime.web.tabs.actions.view import ActionsTab

HINT: Final = "A click on a decision opens its flow, its cause and its effect."
ENTRIES_SHOWN: Final = 250
LINKS_SHOWN: Final = 4
MOVE_PERIOD_S: Final = 3.0


class FlowPanel:
    """Shows the flow of the chosen decision, or else the flow that the filter names."""

    def __init__(self, tab: ActionsTab) -> None:
        self._tab = tab
        self._move_of = ""
        """Id of the decision whose probe delays are subscribed to; empty if there is none."""
        self._move: MoveDelays | None = None

    def build(self, spans: dict[int, str], span: int) -> None:
        """Create the panel's elements. `spans` are the selectable spans in s and their labels."""
        self.nothing = empty(HINT, "action-nothing")
        self.part = part("action")
        with self.part:
            with ui.element("div").classes("ft-head"):
                self.title = text("", "ft-title", test="action-title")
                toggle(spans, span, lambda span_s: self._tab.choose(span=span_s), "span")
            self.detail = text("", "ft-detail", test="action-text")
            self.chart_empty = empty("", "flow-history-empty")
            self.chart = LiveChart(
                "flow-history", on_pick=lambda decision: self._tab.choose(decision=decision)
            )
            self.chart.classes("ft-flow-history").props("data-testid=flow-history")
            self.figures = name_value_table("action-figures")
            self.links = Chips().props("data-testid=action-links")
            self.of_flow_title = text("", "ft-sub-title", test="of-flow-title")
            columns = [
                ("at", "at (UTC)", "left"),
                ("cause", "cause", "left"),
                ("action", "action", "left"),
                ("outcome", "outcome", "left"),
            ]
            self.of_flow = entry_table(columns, "of-flow", self._tab.on_entry_row)

    def show(
        self,
        flow_id: str | None,
        entry: ActionEntry | None,
        of_flow: list[ActionEntry],
        samples: Sequence[Sample],
        alerts: Sequence[Alert],
        now_ns: int,
    ) -> None:
        """Show a flow, one of its action entries, and the list `of_flow` of all its entries."""
        self.part.set_visibility(flow_id is not None)
        self.nothing.set_visibility(flow_id is None)
        if flow_id is None:
            self.nothing.set_text(self._nothing_text())
            return
        self.title.set_text(action_text.flow_text(flow_id))
        decision = "" if entry is None else readable(entry.text.partition(f", {entry.kind} ")[0])
        self.detail.set_text(decision or flow_id)
        self._show_chart(samples, of_flow, flow_id, now_ns)
        self._show_entry(entry, alerts)
        self.of_flow_title.set_text(f"All decisions about this flow: {len(of_flow)}" if of_flow else "")
        self.of_flow.put([action_text.table_row(entry) for entry in of_flow[:ENTRIES_SHOWN]])

    def _nothing_text(self) -> str:
        choice = self._tab.choice
        if choice.decision:
            return "This decision is no longer in memory; the history has it."
        if choice.flow:
            return f"{choice.flow}: no reports or decisions of exactly one such flow."
        return HINT

    def _show_chart(
        self, samples: Sequence[Sample], of_flow: list[ActionEntry], flow_id: str, now_ns: int
    ) -> None:
        span_ns = self._tab.choice.span * NS_PER_S
        frame = frames.flow_history_frame(samples, of_flow, flow_id, now_ns, span_ns)
        has_points = bool(frame["t"])
        self.chart_empty.set_text(
            ""
            if has_points
            else "No reports of this flow in this span. The page records flows from their first decision on, "
            "while its process runs; the history has the rest."
        )
        self.chart_empty.set_visibility(not has_points)
        self.chart.set_visibility(has_points)
        if has_points:
            self.chart.show(lambda _is_full: frame)

    def _show_entry(self, entry: ActionEntry | None, alerts: Sequence[Alert]) -> None:
        move = self._follow_move(entry)
        if entry is None:
            put_values(self.figures, [])
            self.links.put([])
            return
        rows = action_text.figures(entry)
        if move is not None and (move.before_ns, move.after_ns) != (None, None):
            before, after = delay_text(move.before_ns), delay_text(move.after_ns)
            rows.append(("probe delay", f"links left {before} before, links taken {after} after"))
        put_values(self.figures, rows)
        links = frames.cause_links(entry.kind, entry.reason, alerts)
        for name, changed in (("left", entry.effect.left), ("taken", entry.effect.taken)):
            links += [(f"{name} {arrow(link)}", fabric_address(link=link)) for link in changed[:LINKS_SHOWN]]
        self.links.put([(label, label, address) for label, address in links])

    def _follow_move(self, entry: ActionEntry | None) -> MoveDelays | None:
        """Subscribe to the probe delays over the links that a move left and entered. Return the newest
        result.
        """
        queries, tab = self._tab.context.links, self._tab
        moved = entry is not None and entry.done_ns is not None and (entry.effect.left or entry.effect.taken)
        if entry is None or not moved or queries is None:
            if self._move_of:
                tab.unfollow("move")
            self._move_of, self._move = "", None
            return None
        if self._move_of != entry.decision_id:
            self._move_of, self._move = entry.decision_id, None
            arguments = (entry.effect.left, entry.effect.taken, entry.at_ns, entry.done_ns or 0)

            def keep(snapshot: Snapshot[MoveDelays]) -> None:
                self._move = snapshot.value

            tab.follow("move", queries.move_delays, arguments, keep, MOVE_PERIOD_S)
        return self._move


def entry_table(
    columns: Sequence[tuple[str, str, str]],
    test: str,
    on_pick: Callable[[Row], None],
    cells: Mapping[str, Callable[[Row], Cell]] | None = None,
) -> LiveTable:
    """Return a table of action entries with coloured outcomes."""
    return table(columns, test, on_pick, {"outcome": _outcome_cell, **(cells or {})})


def _outcome_cell(row: Row) -> Cell:
    return [(f"ft-outcome ft-{row['status']}", kind_label(row["outcome"]), row["outcome_text"])]
