"""The Actions tab: decisions with cause and outcome, suppressed actions, limits, and one flow in detail."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from nicegui import ui
from nicegui.events import ValueChangeEventArguments

from fabrictime.state import action_entries, action_limits, action_text
from fabrictime.state.action_entries import DONE, NS_PER_S, ActionEntry
from fabrictime.state.action_groups import ActionGroup, action_groups, total_text
from fabrictime.state.action_limits import LimitUse, Pacing
from fabrictime.state.action_state import WATCH_NS, ActionState, SuppressedAction
from fabrictime.state.fabric_state import Part, is_cleared
from fabrictime.state.flow_history import Sample
from fabrictime.state.labels import kind_label
from fabrictime.web.elements import card, empty, table, text, toggle
from fabrictime.web.orders import PAUSES, Orders
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.actions.flow_panel import FlowPanel, entry_table
from fabrictime.web.tabs.base import AppContext, Choice
from fabrictime.web.tabs.live_tab import LiveTab
from fabrictime.web.users import Role
from fabrictime.web.widgets import Cell, Row
from schemas.records import Alert
from schemas.units import bps_text, count_text

Listed = Literal["all", "done", "not"]

LISTS: Final = {"all": "all", "done": "done", "not": "not done"}
SPANS: Final = {60: "1 min", 300: "5 min", 900: "15 min"}
ENTRIES_SHOWN: Final = 250
FAULTS_SHOWN: Final = 8
SUPPRESSED_SHOWN: Final = 200
PACED_SHOWN: Final = 50
MIN_REDRAW_S: Final = 0.3
"""Shortest interval between two redraws, s."""
SILENT_POLICY_NS: Final = 10 * NS_PER_S
"""Age of the newest policy cycle above which the page reports it."""
KPIS: Final = (
    ("mode", "mode"),
    ("decided", "decisions, last hour"),
    ("done", "done"),
    ("suppressed", "suppressed now"),
    ("moved", "flows moved, last minute"),
    ("age", "newest record"),
)


@dataclass(frozen=True, slots=True)
class ActionsChoice(Choice):
    """The user's choices on the tab, from its address. Invalid values become the defaults."""

    flow: str | None = None
    decision: str | None = None
    listed: Listed = "all"
    span: int = 300
    fault: str | None = None
    """Subject of the fault whose decisions alone are listed."""

    @staticmethod
    def parse(query: dict[str, str]) -> ActionsChoice:
        """Return the user's choices from the query parameters of an address."""
        names: dict[str, Any] = {key: query.get(key) or None for key in ("flow", "decision", "fault")}
        choice = ActionsChoice(**names)
        if query.get("listed") in get_args(Listed):
            choice = replace(choice, listed=query["listed"])  # type: ignore[arg-type]
        span = query.get("span", "")
        return replace(choice, span=int(span)) if span.isdecimal() and int(span) in SPANS else choice


@dataclass(frozen=True, slots=True)
class _View:
    """The action state that the tab shows, read under one lock and therefore consistent."""

    entries: list[ActionEntry]
    groups: list[ActionGroup]
    listed: list[ActionEntry]
    newest: list[ActionEntry]
    opened: ActionEntry | None
    flow_id: str | None
    samples: list[Sample]
    suppressed_total: int
    suppressed: list[SuppressedAction]
    policies: dict[str, tuple[int, bool]]
    """Shard to (time of its newest policy cycle in ns, whether its suppressed actions are unknown)."""
    limits: list[LimitUse]
    act: bool
    mode_text: str
    has_exceptions: bool
    alerts: list[Alert]

    @property
    def are_suppressed_known(self) -> bool:
        """Whether a policy has published its suppressed actions."""
        return not all(unknown for _, unknown in self.policies.values())


class ActionsTab(LiveTab[ActionsChoice]):
    """Shows all decisions, and one flow with its decisions."""

    address = "/actions"

    def __init__(self, context: AppContext, choice: ActionsChoice) -> None:
        super().__init__(context, choice)
        self._shown_s = 0.0
        self.flow = FlowPanel(self)

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen ft-fabric-screen"):
            self._build_header(KPIS)
            self.mode = text("", "ft-mode", test="mode")
            self.orders = Orders(Role.ACT)
            with ui.element("div").classes("ft-fabric-grid ft-actions-grid"):
                with ui.element("div").classes("ft-column"):
                    self._build_list()
                    with ui.element("div").classes("ft-actions-below"):
                        self._build_suppressed()
                        self._build_limits()
                with card("ft-panel"):
                    self.flow.build(SPANS, self.choice.span)
        ui.timer(0.5, self._show_banner)
        ui.timer(1.0, self.show)

    def _build_list(self) -> None:
        with card("ft-actions-list"):
            with ui.element("div").classes("ft-head"):
                text("Decisions", "ft-title")
                self.filter = ui.input(
                    placeholder="flow", value=self.choice.flow or "", on_change=self._on_filter
                ).classes("ft-input")
                self.filter.props("dense borderless clearable debounce=300 data-testid=filter")
                toggle(LISTS, self.choice.listed, lambda listed: self.choose(listed=listed), "listed")
            self.faults_note = text("", "ft-note", test="faults-note")
            fault_columns = [
                ("at", "newest (UTC)", "left"),
                ("cause", "fault", "left"),
                ("counts", "actions", "left"),
            ]
            self.faults = table(fault_columns, "faults", self._on_fault_row)
            self.note = text("", "ft-note", test="actions-note")
            self.empty = empty("", "actions-empty")
            columns = [
                ("at", "at (UTC)", "left"),
                ("flow", "flow", "left"),
                ("cause", "cause", "left"),
                ("action", "action", "left"),
                ("outcome", "outcome", "left"),
                ("took", "took", "right"),
                ("rate", "rate before → after", "right"),
                ("delay", "round trip before → after", "right"),
            ]
            self.table = entry_table(columns, "actions", self.on_entry_row, {"flow": _flow_cell})

    def _build_suppressed(self) -> None:
        with card("ft-actions-list ft-suppressed"):
            text("Suppressed now", "ft-title")
            self.suppressed_note = text("", "ft-note", test="suppressed-note")
            self.suppressed_empty = empty("", "suppressed-empty")
            columns = [
                ("flow", "flow", "left"),
                ("action", "action", "left"),
                ("cause", "cause", "left"),
                ("limit", "suppressed by, since", "left"),
            ]
            self.suppressed = table(columns, "suppressed", self._on_flow_row)

    def _build_limits(self) -> None:
        with card("ft-actions-list"):
            text("Limits, pacing, slices", "ft-title")
            limit_columns = [("name", "where", "left"), ("limit", "limit", "left"), ("used", "used", "right")]
            self.limits = table(limit_columns, "limits", cells={"limit": _limit_cell})
            self.paced_note = text("", "ft-note", test="paced-note")
            paced_columns = [
                ("flow", "paced flow", "left"),
                ("rate", "rate", "right"),
                ("limit", "limit", "right"),
            ]
            self.paced = table(paced_columns, "paced", self._on_flow_row)
            slice_columns = [
                ("tenant", "tenant", "left"),
                ("flows", "flows", "right"),
                ("rate", "rate", "right"),
                ("guarantee", "guarantee", "right"),
                ("ceiling", "ceiling", "right"),
            ]
            self.slices = table(slice_columns, "slices")

    # ----------------------------------------------------------------------------------------------- choices

    def choose(self, **changes: Any) -> None:
        """Change some of the user's choices, and show the tab with them."""
        self._choose(**changes)
        self.show()

    def on_entry_row(self, row: Row) -> None:
        """Open the decision of a clicked row."""
        self.choose(decision=row["id"])

    def _on_fault_row(self, row: Row) -> None:
        """List only the decisions of the clicked fault. A second click lists those of all faults again."""
        self.choose(fault=None if self.choice.fault == row["subject"] else row["subject"], decision=None)

    def _on_filter(self, event: ValueChangeEventArguments[Any]) -> None:
        self.choose(flow=str(event.value or "").strip() or None, decision=None)

    def _on_flow_row(self, row: Row) -> None:
        self.filter.set_value(row["flow_id"])

    # ----------------------------------------------------------------------------------------------- filling

    def start_live(self) -> None:
        """Subscribe to the live state. Called again when the browser reconnects."""
        super().start_live()
        self.flow.chart.resume()
        if self.context.live is None:
            self.flow.part.set_visibility(False)
            self.mode.set_visibility(False)
        elif self.context.links is not None:
            self.follow("pacing", self.context.links.pacing, (), self._show_pacing, 2.0)

    def on_live(self, parts: frozenset[Part]) -> None:
        """Redraw if actions changed. A timer redraws the suppressed actions."""
        if "actions" in parts and time.monotonic() - self._shown_s > MIN_REDRAW_S:
            self.show()

    def _show_kpis(self) -> None:
        """Do nothing: on this tab, `show` sets the figures in the header."""

    def show(self) -> None:
        """Show the present state of decisions, suppressed actions, limits and the chosen flow."""
        if self.context.live is None:
            return
        self._shown_s = time.monotonic()
        now_ns = self.live.now_ns()
        with self.state.lock:
            view = self._read(self.state.actions, now_ns)
        self._show_mode(view)
        self._show_figures(view)
        self._show_list(view)
        self._show_suppressed(view, now_ns)
        self.limits.put([_limit_row(limit_use) for limit_use in view.limits])
        of_flow = [entry for entry in view.entries if entry.flow_id == view.flow_id]
        self.flow.show(view.flow_id, view.opened, of_flow, view.samples, view.alerts, now_ns)

    def _read(self, actions: ActionState, now_ns: int) -> _View:
        entries = action_entries.entries(actions, now_ns)
        known_flows = [*(entry.flow_id for entry in entries), *actions.flow_history.flows()]
        flow_id = action_text.only_match(self.choice.flow, known_flows)
        groups = action_groups([entry for entry in entries if self._matches(entry.flow_id)])
        fault = self.choice.fault
        of_fault = [entry for group in groups if group.subject == fault for entry in group.entries]
        listed = [entry for entry in (entries if fault is None else of_fault) if self._is_listed(entry)]
        newest = action_entries.with_effects(listed, actions, now_ns, ENTRIES_SHOWN)
        opened = self._find(entries, newest, flow_id)
        if opened is not None:
            flow_id = opened.flow_id
            opened = action_entries.with_effects([opened], actions, now_ns)[0]
        elif self.choice.flow is not None:
            host = (flow_id or self.choice.flow).partition("/")[0]
            actions.flow_history.watch(host, now_ns + WATCH_NS)
        suppressed = actions.suppressed()
        return _View(
            entries,
            groups,
            listed,
            newest,
            opened,
            flow_id,
            [] if flow_id is None else actions.flow_history.of(flow_id),
            len(suppressed),
            [action for action in suppressed if self._matches(action.flow_id)],
            {name: (shard.at_ns, shard.suppressed is None) for name, shard in actions.shards.items()},
            action_limits.limits_used(actions, now_ns),
            actions.mode().act,
            action_text.mode_text(actions),
            bool(actions.exceptions()),
            [alert for alert in self.state.alerts.values() if not is_cleared(alert)],
        )

    def _matches(self, flow_id: str) -> bool:
        return self.choice.flow is None or action_text.matches(self.choice.flow, flow_id)

    def _is_listed(self, entry: ActionEntry) -> bool:
        listed = self.choice.listed == "all" or entry.done == (self.choice.listed == "done")
        return listed and self._matches(entry.flow_id)

    def _find(
        self, entries: Sequence[ActionEntry], listed: Sequence[ActionEntry], flow_id: str | None
    ) -> ActionEntry | None:
        decision = self.choice.decision
        if decision is not None:
            return next((entry for entry in entries if entry.decision_id == decision), None)
        if flow_id is not None:
            return next((entry for entry in entries if entry.flow_id == flow_id), None)
        return listed[0] if listed else None

    def _show_mode(self, view: _View) -> None:
        self.orders.show(PAUSES, self.user, self.time.at_ns is not None)
        self.mode.set_text(view.mode_text)
        self.mode.classes(remove="ft-ok ft-wait", add="ft-ok" if view.act else "ft-wait")
        note = "not everywhere" if view.has_exceptions else "everywhere"
        self._kpi("mode", "ACT" if view.act else "OBSERVE", note)

    def _show_figures(self, view: _View) -> None:
        causes = sorted({entry.kind.lower() for entry in view.entries})
        self._kpi("decided", count_text(len(view.entries)), ", ".join(causes) or "none needed")
        done = sum(entry.done for entry in view.entries)
        counts = action_entries.counts(view.entries)
        rest = {name: count for name, count in counts.items() if name not in DONE}
        note = action_text.counts_text(rest, kind_label) or ("all of them" if done else "")
        self._kpi("done", count_text(done), note)
        suppressed = view.suppressed_total
        if view.are_suppressed_known:
            self._kpi("suppressed", count_text(suppressed), "see below" if suppressed else "nothing")
        else:
            self._kpi("suppressed", "—", "not known")
        shares = [limit_use for limit_use in view.limits if limit_use.limit.startswith("flows")]
        if shares:
            highest = max(shares, key=lambda limit_use: limit_use.share)
            self._kpi("moved", f"{highest.used:,}", allowed_text(highest))
        else:
            self._kpi("moved", "—", "no policy cycle yet")

    def _show_list(self, view: _View) -> None:
        if self.choice.flow is not None:
            empty_text = "No decision about this flow within the last hour."
        elif not view.entries:
            empty_text = (
                "No decision yet: the policy decides when a link of a flow's path dies or flows collide."
            )
        else:
            empty_text = "No decision in this list."
        self.empty.set_text(empty_text)
        self.empty.set_visibility(not view.newest)
        self._show_faults(view.groups)
        note = action_text.counts_text(action_entries.counts(view.listed), kind_label)
        if len(view.listed) > len(view.newest):
            note += f"; the newest {len(view.newest)} of {len(view.listed):,} are listed"
        self.note.set_text(note)
        self.table.put([action_text.table_row(entry) for entry in view.newest])

    def _show_faults(self, groups: Sequence[ActionGroup]) -> None:
        advice = (
            "a second click lists all"
            if self.choice.fault is not None
            else "a click lists those of one fault"
        )
        self.faults_note.set_text(f"{total_text(groups)}; {advice}" if groups else "")
        rows = [
            {
                "id": f"{group.subject} {group.entries[-1].decision_id}",
                "subject": group.subject,
                "at": action_text.time_text(group.at_ns),
                "cause": group.cause,
                "counts": group.counts,
            }
            for group in groups[:FAULTS_SHOWN]
        ]
        self.faults.put(rows)

    def _show_suppressed(self, view: _View, now_ns: int) -> None:
        suppressed, policies = view.suppressed, view.policies
        silent = [name for name, (at_ns, _) in policies.items() if now_ns - at_ns > SILENT_POLICY_NS]
        note = ""
        if silent:
            oldest = action_text.time_text(min(policies[name][0] for name in silent))
            note = f"last policy cycle of {', '.join(sorted(silent))}: {oldest}"
        elif len(suppressed) > SUPPRESSED_SHOWN:
            note = f"the oldest {SUPPRESSED_SHOWN} of {len(suppressed):,}"
        self.suppressed_note.set_text(note)
        if not policies:
            empty_text = "No policy cycle yet, so suppressed actions are unknown."
        elif not view.are_suppressed_known:
            empty_text = "Not known yet: no policy cycle has listed them."
        else:
            empty_text = "Nothing is suppressed."
        self.suppressed_empty.set_text(empty_text)
        self.suppressed_empty.set_visibility(not suppressed)
        self.suppressed.put([_suppressed_row(action) for action in suppressed[:SUPPRESSED_SHOWN]])

    def _show_pacing(self, snapshot: Snapshot[Pacing]) -> None:
        flow_pacing = snapshot.value
        if flow_pacing is None:
            return
        self.paced_note.set_text(
            f"Paced: {count_text(len(flow_pacing.paced))}" if flow_pacing.paced else "No flow is paced."
        )
        self.paced.put(
            [
                {
                    "id": name,
                    "flow_id": name,
                    "flow": action_text.flow_text(name),
                    "rate": bps_text(rate),
                    "limit": bps_text(limit),
                }
                for name, rate, limit in flow_pacing.paced[:PACED_SHOWN]
            ]
        )
        self.slices.put(
            [
                {
                    "id": slice_use.tenant,
                    "tenant": slice_use.tenant,
                    "flows": count_text(slice_use.flows),
                    "rate": bps_text(slice_use.rate_bps),
                    "guarantee": bps_text(slice_use.guarantee_bps),
                    "ceiling": "—" if slice_use.ceiling_bps is None else bps_text(slice_use.ceiling_bps),
                }
                for slice_use in flow_pacing.slices
            ]
        )


def allowed_text(limit_use: LimitUse) -> str:
    """Return what a limit allows, with the reason for which more was used."""
    if limit_use.excess:
        return f"{limit_use.max:,} allowed now; {limit_use.excess}"
    return f"of {limit_use.max:,} allowed, {limit_use.name}"


def _limit_row(limit_use: LimitUse) -> Row:
    return {
        "id": f"{limit_use.name} {limit_use.limit}",
        "name": limit_use.name,
        "limit": limit_use.limit,
        "used": f"{limit_use.used:,} of {limit_use.max:,}",
        "excess": limit_use.excess,
    }


def _limit_cell(row: Row) -> Cell:
    """Return a limit with the reason for which more was used than it allows."""
    return [("", row["limit"], ""), ("ft-detail", row["excess"], "")]


def _flow_cell(row: Row) -> Cell:
    """Return the flow of a decision with its ends."""
    return [("ft-subject", row["flow"], ""), ("ft-detail", row["ends"], "")]


def _suppressed_row(action: SuppressedAction) -> dict[str, Any]:
    limit = action_text.LIMIT_TEXTS.get(action.cause, action.cause)
    return {
        "id": f"{action.flow_id} {action.action} {action.cause} {action.reason}",
        "flow": action_text.flow_text(action.flow_id),
        "flow_id": action.flow_id,
        "action": action_text.action_text(action),
        "cause": action_text.suppressed_cause(action),
        "limit": f"{limit}, since {action_text.time_text(action.since_ns)}",
    }
