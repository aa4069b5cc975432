"""The Pipeline tab: state, lag and rejects of the pipeline itself."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from fabrictime.web.elements import text
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.base import AppContext, Choice, Tab
from fabrictime.web.tabs.delays.queries import Fleet, fleet
from fabrictime.web.tabs.pipeline.health import DataAges
from fabrictime.web.tabs.pipeline.panel import PipelinePanel, RejectsPanel
from fabrictime.web.tabs.pipeline.queries import PipelineRows, RejectRow, pipeline, rejects
from schemas.units import count_text, ms_text, rate_text

KPIS: Final = (
    ("samples", "samples"),
    ("lag", "largest lag"),
    ("latency", "clocks solved after, p99"),
    ("rejects", "rejects in 10 min"),
    ("age", "data age"),
)


@dataclass(frozen=True, slots=True)
class PipelineChoice(Choice):
    """The user's choices on the tab Pipeline, which offers none."""


class PipelineTab(Tab[PipelineChoice]):
    """Shows whether probers, log, workers and history keep up, and the messages that no stage could read."""

    address = "/pipeline"

    def __init__(self, context: AppContext, choice: PipelineChoice) -> None:
        super().__init__(context, choice)
        self._rows: PipelineRows | None = None
        self.panel = PipelinePanel()
        self.rejects = RejectsPanel()

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page"):
            self._build_header(KPIS)
            with ui.element("div").classes("ft-column"):
                self.panel.build()
                self.rejects.build()
                text(
                    "Probers publish samples to the log. Map workers cut them into windows of one second, "
                    "solve workers compute clocks, links and queues from these, and the sink stores all in "
                    "the history, which this tab reads.",
                    "ft-note",
                )
        ui.timer(0.5, self._show_banner)

    def start(self) -> None:
        """Subscribe to the history; called again when the browser reconnects."""
        history = self.context.history
        self.follow("fleet", fleet, (history,), self._on_fleet)
        self.follow("health", pipeline, (history,), self._on_health, 1.0)
        self.follow("rejects", rejects, (history,), self._on_rejects, 2.0)

    def _on_fleet(self, snapshot: Snapshot[Fleet]) -> None:
        self._fleet = snapshot
        self._show_banner()

    def _show_banner(self) -> None:
        super()._show_banner()
        self._show_checks()

    def _show_checks(self) -> None:
        """Show the checks; the check of the data's age has the same source as the header and the banner."""
        fleet, now_s = self._fleet.value, time.monotonic()
        if self._rows is not None and fleet is not None:
            ages = (self._aged_s(age_s, now_s) for age_s in (fleet.delays_age_s, fleet.clocks_age_s))
            self.panel.show(self._rows, DataAges(*ages))

    def _on_health(self, snapshot: Snapshot[PipelineRows | None]) -> None:
        rows = snapshot.value
        if snapshot.error is not None or rows is None:
            return
        self._rows = rows
        self._show_checks()
        self._kpi("samples", rate_text(rows.throughput_now.samples_per_s), "mean of 10 s")
        lags = [lag for lag in rows.lags if lag.lag_messages >= 0]
        lag = f"{count_text(lags[0].lag_messages)} msg" if lags else "—"
        self._kpi("lag", lag, lags[0].source if lags else "")
        latency = ms_text(rows.latency.p99_ms) if rows.latency.windows else "—"
        self._kpi("latency", latency, "after the end of their window")
        count = max(rows.throughput_recent.rejected, rows.rejects_recent)
        self._kpi("rejects", count_text(count), "listed below" if count else "none")

    def _on_rejects(self, snapshot: Snapshot[list[RejectRow]]) -> None:
        if snapshot.error is None and snapshot.value is not None:
            self.rejects.show(snapshot.value)
