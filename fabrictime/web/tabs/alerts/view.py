"""The Alerts tab: active and cleared alerts, and one alert with its evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from nicegui import ui

from fabrictime.state.alert_now import text_now
from fabrictime.state.fabric_state import Part, is_cleared
from fabrictime.state.health import jobs_of
from fabrictime.state.labels import arrow, readable
from fabrictime.web.elements import card, empty, name_value_table, part, put_values, table, text, toggle
from fabrictime.web.orders import Orders, alert_orders
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.alerts import frames
from fabrictime.web.tabs.alerts.frames import LogRecord
from fabrictime.web.tabs.base import AppContext, Choice
from fabrictime.web.tabs.live_tab import KPIS, LiveTab
from fabrictime.web.users import Role
from fabrictime.web.widgets import Cell, Chips, Row
from schemas.records import Alert, Evidence
from schemas.units import count_text

Listed = Literal["active", "all"]

LISTS: Final = {"active": "active", "all": "with cleared"}
ALERTS_SHOWN: Final = 200
GROUPED_SHOWN: Final = 4
EVIDENCE_PERIOD_S: Final = 60.0
HINT: Final = "A click on an alert opens its evidence."
NO_EVIDENCE: Final = "The newest active alert opens here, with its evidence."


@dataclass(frozen=True, slots=True)
class AlertsChoice(Choice):
    """The user's choices on the tab, from its address. Invalid values become the defaults."""

    listed: Listed = "all"
    alert: str | None = None

    @staticmethod
    def parse(query: dict[str, str]) -> AlertsChoice:
        """Return the user's choices from the query parameters of an address."""
        choice = AlertsChoice(alert=query.get("alert") or None)
        if query.get("listed") in get_args(Listed):
            choice = replace(choice, listed=query["listed"])  # type: ignore[arg-type]
        return choice


class AlertsTab(LiveTab[AlertsChoice]):
    """Shows all alerts, and one chosen alert with its evidence."""

    address = "/alerts"

    def __init__(self, context: AppContext, choice: AlertsChoice) -> None:
        super().__init__(context, choice)
        self._evidence_shown: tuple[str, list[Evidence]] = ("", [])
        self._opened: set[int] = set()

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen ft-fabric-screen"):
            self._build_header(KPIS)
            with ui.element("div").classes("ft-alert-grid"):
                with card("ft-alert-list"):
                    self._build_list()
                with card("ft-panel"):
                    self._build_alert()
        ui.timer(0.5, self._show_banner)
        ui.timer(1.0, self._show)

    def _build_list(self) -> None:
        with ui.element("div").classes("ft-head"):
            text("Alerts", "ft-title")
            toggle(LISTS, self.choice.listed, lambda listed: self._choose(listed=listed), "listed")
        self.note = text("", "ft-note", test="alerts-note")
        self.empty = empty("", "alerts-empty")
        columns = [
            ("severity", "severity", "left"),
            ("text", "alert", "left"),
            ("raised", "raised (UTC)", "left"),
            ("age", "active for", "right"),
        ]
        cells = {"severity": _severity_cell, "text": _text_cell}
        self.table = table(columns, "alerts", self._on_row, cells)

    def _build_alert(self) -> None:
        self.nothing = empty(HINT, "alert-nothing")
        self.part = part("alert")
        with self.part:
            self.title = text("", "ft-title", test="alert-title")
            self.figures = name_value_table("alert-figures")
            self.links = Chips().props("data-testid=alert-links")
            self.orders = Orders(Role.CONFIGURE)
            text("Evidence", "ft-sub-title")
            self.evidence = ui.element("div").classes("ft-evidence").props("data-testid=evidence")

    # ----------------------------------------------------------------------------------------------- choices

    def _choose(self, **changes: Any) -> None:
        super()._choose(**changes)
        self._show()

    def _on_row(self, row: Row) -> None:
        self._choose(alert=row["id"])

    # ----------------------------------------------------------------------------------------------- filling

    def start_live(self) -> None:
        """Subscribe to the live state. Called again when the browser reconnects."""
        super().start_live()
        if self.context.live is None:
            self.part.set_visibility(False)

    def on_live(self, parts: frozenset[Part]) -> None:
        """Redraw the elements that depend on the changed parts of the state."""
        if "alerts" in parts:
            self._show()

    def _show(self) -> None:
        if self.context.live is None:
            return
        now_ns = self.live.now_ns()
        with self.state.lock:
            alerts = frames.ordered(self.state.alerts.values())
            alerts = [{**one, "text": readable(text_now(self.state, one))} for one in alerts]
            notes = {one["alert_id"]: frames.note_rows(self.state.notes, one, now_ns) for one in alerts}
        alert = next((one for one in alerts if one["alert_id"] == self.choice.alert), None)
        if self.choice.alert is None and alerts and not is_cleared(alerts[0]):
            alert = alerts[0]
        active = [alert for alert in alerts if not is_cleared(alert)]
        listed = alerts if self.choice.listed == "all" else active
        cleared = len(alerts) - len(active)
        self.note.set_text(f"{count_text(len(active))} active, {count_text(cleared)} cleared")
        self.empty.set_text(
            self.live.verdict().claim(
                "No alert is active."
                if alerts
                else "No alert yet. Alerts are raised for links, hosts, queues, clocks and jobs in trouble."
            )
        )
        self.empty.set_visibility(not listed)
        self.table.put([_alert_row(one, now_ns, notes[one["alert_id"]]) for one in listed[:ALERTS_SHOWN]])
        if alert is not None and not alert["jobs"]:
            with self.state.lock:
                alert = {**alert, "jobs": list(jobs_of(self.state, alert["alert_id"], now_ns))}
        self._show_alert(alert, now_ns, [] if alert is None else notes.get(alert["alert_id"], []))

    def _show_alert(self, alert: Alert | None, now_ns: int, notes: list[tuple[str, str]]) -> None:
        self.part.set_visibility(alert is not None)
        self.nothing.set_visibility(alert is None)
        self.nothing.set_text(HINT if self.state.alerts else NO_EVIDENCE)
        if alert is None:
            return
        self.title.set_text(alert["text"])
        put_values(self.figures, [*frames.figures(alert, now_ns), *notes])
        self.links.put([(label, label, address) for label, address in frames.related_links(alert)])
        racks = {nic.host: nic.rack for nic in self.state.nics.values()}
        self.orders.show(alert_orders(alert, racks), self.user, self.time.at_ns is not None)
        evidence_key = (alert["alert_id"], alert["evidence"])
        if self._evidence_shown != evidence_key:  # new elements would lose a click that is under way
            if self._evidence_shown[0] != alert["alert_id"]:
                self._opened = set()
            self._evidence_shown = evidence_key
            self._build_evidence(alert)

    def _build_evidence(self, alert: Alert) -> None:
        self.evidence.clear()
        for slot in [slot for slot in self._unsubscribe if slot.startswith("evidence")]:
            self.unfollow(slot)
        with self.evidence:
            if not alert["evidence"]:
                empty("The alert refers to no record.", "evidence-empty")
            for k, evidence_ref in enumerate(alert["evidence"]):
                with ui.element("div").classes("ft-evidence-row"):
                    with ui.element("button").classes("ft-link ft-evidence-head") as head:
                        head.props(f"type=button data-testid=evidence-{k}")
                        text(readable(evidence_ref["text"]), "ft-subject")
                        text(
                            f"{evidence_ref['topic']} · {evidence_ref['key']} · "
                            f"{_short_time(evidence_ref['at_ns'])}",
                            "ft-detail",
                        )
                    body = ui.element("div").classes("ft-record").props(f"data-testid=record-{k}")
                    body.set_visibility(k in self._opened)
                    head.on("click", self._toggling(k, evidence_ref, body))
                    if k in self._opened:
                        self._follow_record(k, evidence_ref, body)

    def _toggling(self, k: int, evidence_ref: Evidence, body: Any) -> Callable[[], None]:
        def toggled() -> None:
            if k in self._opened:
                self._opened.discard(k)
                self.unfollow(f"evidence {k}")
                body.set_visibility(False)
                return
            self._opened.add(k)
            body.set_visibility(True)
            self._follow_record(k, evidence_ref, body)

        return toggled

    def _follow_record(self, k: int, evidence_ref: Evidence, body: Any) -> None:
        evidence = self.context.evidence
        if evidence is None:
            return
        body.clear()
        with body:
            text("Reading the log …", "ft-detail")

        def show(snapshot: Snapshot[LogRecord]) -> None:
            if snapshot.value is None and snapshot.error is None:
                return
            body.clear()
            with body:
                if snapshot.value is None:
                    text(str(snapshot.error), "ft-detail")
                    return
                text(snapshot.value.position, "ft-detail")
                for name, value in snapshot.value.fields:
                    with ui.element("div").classes("ft-field"):
                        text(name, "ft-field-name")
                        text(value, "ft-field-value")
            self.unfollow(f"evidence {k}")  # a record in the log does not change

        reference = (evidence_ref["topic"], evidence_ref["key"], evidence_ref["at_ns"], evidence_ref["text"])
        self.follow(f"evidence {k}", evidence, reference, show, EVIDENCE_PERIOD_S)


def _short_time(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / 1e9, tz=UTC):%m-%d %H:%M:%S.%f}"[:-3]


def _alert_row(alert: Alert, now_ns: int, notes: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "notes": dict(notes).get(frames.NOTED, ""),
        "id": alert["alert_id"],
        "severity": alert["severity"],
        "active": not is_cleared(alert),
        "text": alert["text"],
        "raised": _short_time(alert["raised_ns"])[:-4],
        "age": frames.age_text(alert, now_ns),
        "grouped": ", ".join(arrow(link) for link in alert["grouped"][:GROUPED_SHOWN]),
        "over": _short_time(alert["cleared_ns"])[:-4] if alert["cleared_ns"] is not None else "",
    }


def _severity_cell(row: Row) -> Cell:
    severity = row["severity"] if row["active"] else "cleared"
    return [(f"ft-severity ft-{severity}", severity, "")]


def _text_cell(row: Row) -> Cell:
    cell = [("ft-subject" if row["active"] else "ft-detail", row["text"], "")]
    if row["over"]:  # before the text, which is of the time until then
        cell.insert(0, ("", f"ended {row['over']}; until then:", ""))
    if row["grouped"]:
        cell.append(("ft-detail", f"same cause: {row['grouped']}", ""))
    if row["notes"]:
        cell.append(("ft-detail", row["notes"], ""))
    return cell
