"""Panels of the tab Pipeline: the pipeline's checks, and the table of rejected messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from nicegui import ui

from fabrictime.web.elements import READING, card, column, text
from fabrictime.web.tabs.pipeline import health
from fabrictime.web.tabs.pipeline.health import Check, DataAges
from fabrictime.web.tabs.pipeline.queries import PipelineRows, RejectRow
from fabrictime.web.widgets import LiveText
from schemas.units import count_text

REJECTS_PER_PAGE: Final = 8


class PipelinePanel:
    """Shows one line per check of the pipeline."""

    def __init__(self) -> None:
        self._checks: list[tuple[Any, LiveText, LiveText, LiveText]] = []

    def build(self) -> None:
        """Create the panel's elements."""
        with card("ft-health"):
            with ui.element("div").classes("ft-head"):
                text("Pipeline", "ft-title")
                self.worst = text("", "ft-worst-state", test="health-state")
            self.checks = ui.element("div").classes("ft-checks").props("data-testid=health")
            self.empty = text(READING, "ft-empty")

    def show(self, rows: PipelineRows, ages: DataAges) -> None:
        """Show a line for each check of `rows`."""
        checks = health.evaluate(rows, ages)
        self.empty.set_visibility(False)
        if not self._checks:
            with self.checks:
                for check in checks:
                    self._build_check(check)
        for (light, name, figure, sentence), check in zip(self._checks, checks, strict=True):
            light.classes(remove="ft-ok ft-warn ft-bad", add=f"ft-{check.state.name.lower()}")
            light.props(f'aria-label="{check.state.name}"')
            name.set_text(check.name)
            figure.set_text(check.figure)
            sentence.set_text(check.sentence)
        worst = max(check.state for check in checks)
        self.worst.set_text(worst.name)
        self.worst.classes(remove="ft-ok ft-warn ft-bad", add=f"ft-{worst.name.lower()}")

    def _build_check(self, check: Check) -> None:
        with ui.element("div").classes("ft-check").props(f'data-check="{check.name}"'):
            light = ui.element("span").classes("ft-state").props("role=img")
            name, figure = text("", "ft-check-name"), text("", "ft-figure")
            self._checks.append((light, name, figure, text("", "ft-sentence")))


class RejectsPanel:
    """A table of rejected messages, hidden while it is empty."""

    def build(self) -> None:
        """Create the panel's elements."""
        self.card = card("ft-rejects")
        with self.card:
            with ui.element("div").classes("ft-head"):
                text("Recent rejects", "ft-title")
                self.note = text("", "ft-note")
            columns = [
                column("at", "time (UTC)", align="left"),
                column("position", "message", align="left"),
                column("reader", "rejected by", align="left"),
                column("reason", "reason", align="left"),
                column("detail", "detail", align="left"),
                column("size", "size"),
            ]
            self.table = ui.table(rows=[], columns=columns, row_key="id", pagination=REJECTS_PER_PAGE)
            self.table.classes("ft-table").props("flat dense data-testid=rejects")
        self.card.set_visibility(False)

    def show(self, rejects: list[RejectRow]) -> None:
        """Show these rejected messages in the table."""
        self.card.set_visibility(bool(rejects))
        self.note.set_text(f"{count_text(len(rejects))} in the last day, newest first")
        rows = [_table_row(reject) for reject in rejects]
        if rows != self.table.rows:
            self.table.rows = rows


def _table_row(row: RejectRow) -> dict[str, Any]:
    at = datetime.fromtimestamp(row.append_ns / 1e9, tz=UTC)
    return {
        "id": f"{row.topic}/{row.partition}/{row.offset}/{row.reader}",
        "at": f"{at:%m-%d %H:%M:%S}",
        "position": f"{row.topic}/{row.partition} @ {row.offset}",
        "reader": row.reader,
        "reason": row.reason,
        "detail": row.detail,
        "size": f"{count_text(row.size_bytes)} B",
    }
