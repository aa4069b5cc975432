"""The tab Now: the state of the fleet in one sentence, incidents, slow jobs, worst objects, last actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nicegui import ui

from fabrictime.state.action_groups import total_text
from fabrictime.state.fabric_state import Part
from fabrictime.state.freshness import HistoryAge
from fabrictime.state.health import Health, Overview
from fabrictime.web.elements import card, empty, go_to, part, table, text
from fabrictime.web.history_client import HistoryEmpty
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.service_faults import banner_text
from fabrictime.web.tabs.base import AppContext, Choice, with_pace
from fabrictime.web.tabs.live_tab import LiveTab
from fabrictime.web.tabs.now import frames
from fabrictime.web.tabs.now.queries import HistoryFigures, history_figures
from fabrictime.web.widgets import Row
from schemas.units import counted

HISTORY_PERIOD_S: Final = 2.0
SHOWN_PARTS: Final[frozenset[Part]] = frozenset({"health", "contention", "alerts", "plan"})
"""Parts whose change is shown at once; a timer shows the others."""


@dataclass(frozen=True, slots=True)
class NowChoice(Choice):
    """The user's choices on the tab Now, which offers none."""


class NowTab(LiveTab[NowChoice]):
    """Shows the state of the fleet, and leads to the tab of each object."""

    address = "/now"

    def __init__(self, context: AppContext, choice: NowChoice) -> None:
        super().__init__(context, choice)
        self._figures: Snapshot[HistoryFigures] = Snapshot()

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen ft-now-screen"):
            self._build_header(())
            with ui.element("section").classes("ft-health-line").props("role=status") as self.line:
                self.sentence = text("", "ft-health-text", test="health-sentence")
                self.consequence = text("", "ft-health-note", test="health-consequence")
                self.cause = text("", "ft-detail", test="health-cause")
            with ui.element("div").classes("ft-now-grid"):
                self._build_incidents()
                with ui.element("div").classes("ft-now-side"):
                    self._build_worst()
                    self._build_jobs()
                    self._build_actions()
        ui.timer(0.5, self._show_banner)
        ui.timer(1.0, self._show)

    def _build_incidents(self) -> None:
        columns = [
            ("severity", "", "left"),
            ("problem", "what is wrong", "left"),
            ("since", "since (UTC)", "left"),
            ("jobs", "jobs", "left"),
            ("done", "what was done", "left"),
            ("step", "next step", "left"),
        ]
        cells = {
            "severity": frames.severity_cell,
            "problem": frames.problem_cell,
            "since": frames.since_cell,
            "jobs": frames.jobs_cell,
            "step": frames.step_cell,
        }
        with card("ft-incidents"):
            with ui.element("div").classes("ft-head"):
                text("What is wrong", "ft-title")
                self.incident_note = text("", "ft-note", test="incidents-note")
            self.incidents_empty = empty("", "incidents-empty")
            self.incidents = table(columns, "incidents", _open, cells).classes("ft-incident-rows")
            with part("cleared-part") as self.cleared_part:
                text("Cleared last", "ft-sub-title")
                columns = [("alert", "", "left"), ("span", "", "left"), ("ago", "", "right")]
                self.cleared = table(columns, "cleared", _open, {"alert": frames.cleared_cell})

    def _build_worst(self) -> None:
        with card("ft-worst"):
            text("Worst now", "ft-title")
            columns = [("name", "", "left"), ("value", "", "left")]
            self.worst = table(columns, "worst-now", _open, {"value": frames.worst_cell})

    def _build_jobs(self) -> None:
        with card("ft-slow-jobs"):
            text("Slow jobs", "ft-title")
            self.jobs_empty = empty("", "slow-jobs-empty")
            columns = [("job", "job", "left"), ("pace", "slow", "left")]
            cells = {"job": frames.job_cell, "pace": frames.pace_cell}
            self.jobs = table(columns, "slow-jobs", None, cells)

    def _build_actions(self) -> None:
        with card("ft-last-actions"):
            with ui.element("div").classes("ft-head"):
                text("Last actions", "ft-title")
                self.actions_note = text("", "ft-note", test="last-actions-note")
            self.actions_empty = empty("", "last-actions-empty")
            columns = [("cause", "fault", "left"), ("ago", "newest", "right")]
            self.actions = table(columns, "last-actions", _open, {"cause": frames.action_cell})

    # ----------------------------------------------------------------------------------------------- filling

    def start(self) -> None:
        """Subscribe to the history's age and worst clock."""
        arguments = (self.context.history,)
        self.follow("history", history_figures, arguments, self._on_history, HISTORY_PERIOD_S)

    def on_live(self, parts: frozenset[Part]) -> None:
        """Redraw the elements that depend on the changed parts of the state."""
        if parts & SHOWN_PARTS:
            self._show()

    def _on_history(self, snapshot: Snapshot[HistoryFigures]) -> None:
        self._figures = snapshot
        self._show()

    def _show_kpis(self) -> None:
        """Do nothing: this tab has no figures in the header."""

    def _show_banner(self) -> None:
        """Show faults of this machine's services and of the log; the tab's sentence covers all others."""
        faults, live = self.context.services.faults(), self.context.live
        message, kind = "", "wait"
        if live is None or live.status.error is not None or live.status.missing:
            message, kind, _ = self._live_banner()
        elif not live.status.caught_up:
            message = "Reading the log …"
        message, kind = with_pace(message, kind, "" if live is None else live.slow_text())
        message, kind = banner_text(message, faults), "bad" if faults else kind
        self.banner.set_text(message)
        self.banner.set_visibility(bool(message))
        self.banner.classes(remove="ft-wait ft-bad", add=f"ft-{kind}")

    def _history_age(self) -> HistoryAge:
        """Return the history's age, rounded to whole seconds so that all tabs share one overview."""
        stale_after_s = self.context.settings.stale_after_s
        error, figures = self._figures.error, self._figures.value
        if error is not None and not isinstance(error, HistoryEmpty):
            return HistoryAge(None, str(error), stale_after_s)
        age_s = None if figures is None else figures.age_s
        is_read = error is not None or figures is not None
        return HistoryAge(None if age_s is None else float(round(age_s)), "", stale_after_s, is_read)

    def _show(self) -> None:
        if self.context.live is None:
            return
        view, now_ns = self.live.overview(self._history_age()), self.live.now_ns()
        self._show_health(view.health)
        self._show_incidents(view, now_ns)
        self.worst.put(frames.worst_rows(view, self._figures.value, self.live.verdict().is_fresh))
        self.cleared.put(frames.cleared_rows(view.cleared, now_ns))
        self.cleared_part.set_visibility(bool(view.cleared))
        self.jobs.put(frames.job_rows(view.slow_jobs, now_ns))
        self.jobs_empty.set_text(self._jobs_text(view))
        self.jobs_empty.set_visibility(not view.slow_jobs)
        mode = "ACT: carried out" if view.acts else "OBSERVE: only proposed"
        self.actions_note.set_text(f"{total_text(view.actions)}; {mode}" if view.actions else mode)
        self.actions.put(frames.action_rows(view.actions, now_ns))
        self.actions_empty.set_text("No action was needed within the last hour.")
        self.actions_empty.set_visibility(not view.actions)

    def _show_health(self, health: Health) -> None:
        self.sentence.set_text(health.sentence)
        self.consequence.set_text(health.consequence)
        self.consequence.set_visibility(bool(health.consequence))
        cause = health.cause and f"{health.cause[0].upper()}{health.cause[1:]}"
        self.cause.set_text(cause)
        self.cause.set_visibility(bool(cause))
        self.sentence.classes(remove="ft-ok ft-wait ft-warn ft-bad", add=f"ft-{health.level}")
        light = "wait" if health.level == "warn" else health.level
        self.light.classes(remove="ft-wait ft-bad ft-ok", add=f"ft-{light}")

    def _show_incidents(self, view: Overview, now_ns: int) -> None:
        settings = self.context.settings
        self.incidents.put(frames.incident_rows(view, now_ns, settings.runbook_url))
        noted = sum(incident.is_quiet for incident in view.incidents)
        parts = [f"{noted} acknowledged, silenced or in maintenance, listed last"] if noted else []
        if len(view.incidents) > frames.INCIDENTS_SHOWN:
            worst = f"the worst {frames.INCIDENTS_SHOWN} of {len(view.incidents)}"
            parts.append(f"{worst}; the others are in Alerts and Contention")
        self.incident_note.set_text("; ".join(parts))
        self.incidents_empty.set_text(_empty_text(view, self.live.verdict().is_fresh))
        self.incidents_empty.set_visibility(not view.incidents)

    def _jobs_text(self, view: Overview) -> str:
        if not view.fleet.jobs:
            return "No job is watched yet. The tab Jobs has the steps to load the profiler."
        unknown = view.fleet.jobs - view.fleet.healthy_jobs
        more = f", {unknown} without a verdict" if unknown else ""
        return f"{counted(view.fleet.healthy_jobs, 'job')} without a fault{more}."


def _empty_text(view: Overview, is_fresh: bool) -> str:
    """Return the text in place of an empty list of incidents."""
    if not view.fleet.nics:
        return "Start the agent on your hosts, or try a simulated fleet: fabrictime up --fleet sim:8."
    return "Nothing." if is_fresh else "No problem was active in the last known state."


def _open(row: Row) -> None:
    go_to(row["address"])
