"""The Audit tab: a square per host, the checks that did not pass, and below them results and findings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

from fabrictime.audit.groups import Level
from fabrictime.web.elements import (
    card,
    empty,
    link_button,
    name_value_table,
    part,
    put_values,
    table,
    text,
    utc_time,
)
from fabrictime.web.history_client import HistoryEmpty
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.audit import frames, queries
from fabrictime.web.tabs.audit.queries import AuditFleet, ResultRow, RunRow, audited
from fabrictime.web.tabs.base import AppContext, Choice, Tab
from fabrictime.web.tabs.delays.queries import Fleet
from fabrictime.web.widgets import Cell, Chips, LiveMarkup, Row
from schemas.units import count_text, counted, delay_text, seconds_text
from streams.audit.results import FLEET

KPIS: Final = (
    ("hosts", "hosts audited"),
    ("unfit", "not fit"),
    ("errors", "errors"),
    ("warnings", "warnings"),
    ("unknown", "unknown"),
    ("age", "newest result"),
)
PERIOD_S: Final = 1.0
PICK_HOST: Final = (
    "(e) => { const host = e.target.closest('[data-host]'); "
    "if (host && !e.ctrlKey && !e.metaKey) { e.preventDefault(); emit(host.dataset.host); } }"
)
"""JavaScript of a click on a square: chooses the host without loading a page; with Ctrl, the host opens in a
new tab.
"""


@dataclass(frozen=True, slots=True)
class AuditChoice(Choice):
    """The user's choices on the tab. Without a chosen run, the tab shows the newest result of each host and
    check.
    """

    run: str = ""
    category: str = ""
    host: str | None = None
    check: str | None = None

    @staticmethod
    def parse(query: dict[str, str]) -> AuditChoice:
        """Return the user's choices from the query parameters of an address."""
        return AuditChoice(
            query.get("run", ""),
            query.get("category", ""),
            query.get("host") or None,
            query.get("check") or None,
        )


class AuditTab(Tab[AuditChoice]):
    """Shows hosts, failed checks, and the chosen host's or check's results with their findings."""

    address = "/audit"
    past_note = "This tab shows the newest audit, not that of this moment; the chips choose an earlier run."

    def __init__(self, context: AppContext, choice: AuditChoice) -> None:
        super().__init__(context, choice)
        self._audit: Snapshot[AuditFleet] = Snapshot()
        self._results: list[ResultRow] = []

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page ft-screen ft-fabric-screen"):
            self._build_header(KPIS)
            with ui.element("div").classes("ft-fabric-grid ft-audit-grid"):
                with ui.element("div").classes("ft-column"):
                    self._build_hosts()
                    self._build_checks()
                self._build_panel()
        ui.timer(0.5, self._show_banner)

    def _build_hosts(self) -> None:
        with card("ft-audit-hosts"):
            with ui.element("div").classes("ft-head"):
                text("Hosts", "ft-title")
                self.run_chips = Chips(self._choose_run).props("data-testid=runs")
            self.category_chips = Chips(self._choose_category).props("data-testid=categories")
            self.hosts_note = text("", "ft-note", test="hosts-note")
            self.grid = LiveMarkup().classes("ft-hosts").props("data-testid=hosts")
            self.grid.on("click", self._on_host, js_handler=PICK_HOST)

    def _build_checks(self) -> None:
        with card("ft-audit-list"):
            with ui.element("div").classes("ft-head"):
                text("Checks that did not pass", "ft-title")
            self.checks = table(
                [
                    ("level", "", "left"),
                    ("title", "expected", "left"),
                    ("hosts", "on", "left"),
                    ("remedy", "remedy", "left"),
                ],
                "checks",
                self._on_check_row,
                {"level": _level_cell, "remedy": _remedy_cell},
            )
            self.checks_empty = empty("", "checks-empty")

    def _build_panel(self) -> None:
        with card("ft-panel"):
            self.hint = empty("", "hint")
            self.part = part("chosen")
            with self.part:
                with ui.element("div").classes("ft-head"):
                    self.title = text("", "ft-title", test="chosen-title")
                    self.back = link_button("all hosts", "back", self._go_back)
                self.detail = text("", "ft-detail", test="chosen-detail")
                self.remedy = text("", "ft-subject", test="remedy")
                self.figures = name_value_table("figures")
                columns = [("level", "", "left"), ("name", "", "left"), ("text", "", "left")]
                self.findings_title = text("Findings", "ft-sub-title")
                self.findings = table(columns, "findings", cells={"level": _level_cell})
                self.results_title = text("", "ft-sub-title", test="results-title")
                self.results = table(columns, "results", self._on_result_row, {"level": _level_cell})
            self.part.set_visibility(False)

    # --------------------------------------------------------------------------------------------- following

    def start(self) -> None:
        """Subscribe to history queries; called again when the browser reconnects. `stop` ends the
        subscriptions.
        """
        self.follow("runs", queries.newest_runs, (self.context.history,), self._on_runs, 5.0)
        self._follow_all()

    def _follow_all(self) -> None:
        history, run = self.context.history, self.choice.run
        self.follow("audit", audited, (history, queries.fleet, run), self._on_audit, PERIOD_S)
        self._follow_results()

    def _follow_results(self) -> None:
        """Subscribe to the results of the chosen host, or else of the chosen check."""
        history, run, host, check = self.context.history, self.choice.run, self.choice.host, self.choice.check
        self._results = []
        if host is not None:
            of_host = (history, queries.host_results, run, host)
            self.follow("results", audited, of_host, self._on_results, PERIOD_S)
        elif check is not None:
            of_check = (history, queries.check_results, run, check)
            self.follow("results", audited, of_check, self._on_results, PERIOD_S)
        else:
            self.unfollow("results")
            self._show_panel()

    def _on_runs(self, snapshot: Snapshot[list[RunRow]]) -> None:
        chips = [
            (row.run, f"{_when(row.newest_ns)} · {counted(row.hosts, 'host')}", "")
            for row in snapshot.value or ()
        ]
        runs = {row.run for row in snapshot.value or ()}
        if self.choice.run and self.choice.run not in runs:
            chips.insert(0, (self.choice.run, self.choice.run, ""))
        marked = [(key, f"✓ {name}" if key == self.choice.run else name, at) for key, name, at in chips]
        newest = "newest of each host"
        self.run_chips.put([("", newest if self.choice.run else f"✓ {newest}", ""), *marked] if chips else [])

    def _on_audit(self, snapshot: Snapshot[AuditFleet]) -> None:
        self._audit = snapshot
        if snapshot.value is not None:
            self._show_fleet(snapshot.value)

    def _on_results(self, snapshot: Snapshot[list[ResultRow]]) -> None:
        if snapshot.value is not None:
            self._results = snapshot.value
            self._show_panel()

    # ----------------------------------------------------------------------------------------------- choices

    def _choose(self, **change: Any) -> None:
        before = self.choice
        super()._choose(**change)
        if before.run != self.choice.run:
            self._follow_all()
        elif (before.host, before.check) != (self.choice.host, self.choice.check):
            self._follow_results()
        if self._audit.value is not None:
            self._show_fleet(self._audit.value)
        self._show_panel()

    def _choose_run(self, run: str) -> None:
        self._choose(run=run)

    def _choose_category(self, category: str) -> None:
        self._choose(category=category)

    def _go_back(self) -> None:
        self._choose(host=None, check=None)

    def _on_host(self, event: GenericEventArguments) -> None:
        self._choose(host=str(event.args), check=None)

    def _on_check_row(self, row: Row) -> None:
        self._choose(host=None, check=row["check"])

    def _on_result_row(self, row: Row) -> None:
        """Open the result of a clicked row. In the list of a check's hosts, this also chooses the host."""
        host, _, check = str(row["id"]).partition(" ")
        self._choose(host=host, check=check)

    # --------------------------------------------------------------------------------------------- rendering

    def _show_fleet(self, audit: AuditFleet) -> None:
        hosts = frames.squares(audit.cells)
        names = frames.categories(audit.cells)
        self.category_chips.put(
            [
                (key, f"✓ {title}" if key == self.choice.category else title, "")
                for key, title in names.items()
            ]
            if hosts
            else []
        )
        self.grid.set_text(frames.grid_markup(hosts, self.choice.category, self.choice.run, self.choice.host))
        counts = frames.totals(hosts)
        real = [square for square in hosts if square.host != FLEET]
        unfit = sum(square.counts[Level.ERROR] > 0 for square in real)
        self.hosts_note.set_text(
            f"{counted(len(real), 'host')}: {frames.counts_text(counts)}" if hosts else ""
        )
        self._kpi("hosts", count_text(len(real)), self.choice.run or "last day")
        self._kpi("unfit", count_text(unfit) if hosts else "—", "with an error")
        for key, level in (("errors", Level.ERROR), ("warnings", Level.WARNING), ("unknown", Level.UNKNOWN)):
            checks = len({row.check for row in audit.checks if row.level is level})
            self._kpi(key, count_text(counts[level]) if hosts else "—", f"in {counted(checks, 'check')}")
        check_rows = [row for row in audit.checks if self.choice.category in ("", row.category)]
        self.checks.put([frames.check_row(row) for row in check_rows])
        self.checks_empty.set_text("Nothing is checked yet." if not hosts else "All checks passed.")
        self.checks_empty.set_visibility(not check_rows)
        self.hint.set_text(frames.hint(hosts))

    def _show_panel(self) -> None:
        host, check = self.choice.host, self.choice.check
        has_choice = host is not None or check is not None
        self.part.set_visibility(has_choice)
        self.hint.set_visibility(not has_choice)
        if not has_choice:
            return
        opened = next((row for row in self._results if host is not None and row.check == check), None)
        if host is not None:
            self._show_host(host, opened)
        else:
            self._show_check(str(check))
        self._show_findings(opened)

    def _show_host(self, host: str, opened: ResultRow | None) -> None:
        rows = frames.open_results(self._results)
        passed = sum(row.level is Level.PASSED for row in self._results)
        self.title.set_text(frames.shown_host(host))
        self.detail.set_text(f"{len(rows)} did not pass, {passed} passed")
        self.results_title.set_text("Checks" if self._results else "No result of this host.")
        result_rows = [*rows, *(row for row in self._results if row not in rows)]
        self.results.put([frames.result_row(row, row.title) for row in result_rows])
        self.remedy.set_text(_remedy(opened))

    def _show_check(self, check: str) -> None:
        first = self._results[0] if self._results else None
        rows = frames.open_results(self._results)
        self.title.set_text(first.title if first else check)
        self.detail.set_text(check)
        self.remedy.set_text(_remedy(first))
        self.results_title.set_text(
            f"Did not pass on {counted(len(rows), 'host')}" if rows else "Passed on all hosts."
        )
        self.results.put([frames.result_row(row, frames.shown_host(row.host)) for row in rows])

    def _show_findings(self, opened: ResultRow | None) -> None:
        self.findings_title.set_visibility(bool(opened and opened.findings))
        self.findings.put(
            [
                {"id": str(k), "level": status.lower(), "name": subject, "text": finding}
                for k, (subject, status, finding) in enumerate(opened.findings)
            ]
            if opened
            else []
        )
        put_values(
            self.figures,
            [
                ("check", opened.check),
                ("run", opened.run),
                ("checked", f"{_when(opened.checked_ns)} UTC, took {delay_text(opened.took_ns)}"),
            ]
            if opened
            else [],
        )

    def age_s(self, fleet: Fleet) -> float | None:
        """Return None: this tab shows no windows, so its data has no age."""
        return None

    def _show_banner(self) -> None:
        audit, now_s = self._audit, time.monotonic()
        newest_ns = audit.value.newest_ns if audit.value is not None else None
        age = "—" if newest_ns is None else seconds_text((time.time_ns() - newest_ns) / 1e9)
        self._kpi("age", age, "old, by its host's clock")
        if isinstance(audit.error, HistoryEmpty):
            self._set_banner("No audit yet: the history has no tables.", "wait")
        elif audit.error is not None:
            failing_s = now_s - (audit.failing_s if audit.failing_s is not None else now_s)
            self._set_banner(f"{audit.error} since {failing_s:.0f} s", "bad")
        elif audit.value is None:
            self._set_banner("Querying the history …", "wait")
        else:
            self._set_banner("", "ok")


def _when(ns: int) -> str:
    day = time.strftime("%m-%d", time.gmtime(ns / 1e9))
    return f"{day} {utc_time(ns)}"


def _remedy(row: ResultRow | None) -> str:
    """Return the remedy of a check that did not pass; empty otherwise."""
    is_open = row is not None and row.level is not Level.UNKNOWN and bool(frames.open_results([row]))
    return f"{row.action.lower()}: {row.remedy}" if row is not None and is_open else ""


def _level_cell(row: Row) -> Cell:
    level = "error" if row["level"] == "failed" else row["level"]
    return [(f"ft-level ft-{level}", row["level"], "")]


def _remedy_cell(row: Row) -> Cell:
    return [("", row["remedy"], ""), ("ft-detail", row["action"], "")]
