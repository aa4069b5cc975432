"""The panel of the tab Jobs about a verdict: text, remedy, evidence, and alternative explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from fabrictime.state.labels import readable, verdict_label
from fabrictime.web.elements import card, link_button, name_value_table, part, put_values, table, text
from fabrictime.web.tabs.jobs import frames
from fabrictime.web.widgets import Cell, Chips, LiveMarkup, Row


class VerdictPanel:
    """Shows the verdict of one interval. The panel calls `choose` with the choices of the tab that change."""

    def __init__(self, choose: Callable[..., None]) -> None:
        self._choose = choose

    def build(self) -> None:
        """Create the panel's elements."""
        with card("ft-job-verdict"):
            with ui.element("div").classes("ft-head"):
                self.title = text("", "ft-title", test="job-title")
                self.pill = text("", "ft-verdict", test="job-verdict")
                link_button("close", "job-close", lambda: self._choose(job=None))
            self.text = text("", "ft-subject ft-verdict-text", test="job-text")
            self.remedy = text("", "ft-detail", test="job-remedy")
            self.subjects = Chips().props("data-testid=job-subjects")
            columns = [
                ("text", "evidence", "left"),
                ("measured", "measured", "right"),
                ("expected", "expected", "right"),
            ]
            self.evidence = table(columns, "job-evidence", cells={"text": _evidence_cell})
            self.alternatives_part = part("job-alternatives-part")
            with self.alternatives_part:
                text("Other explanations", "ft-sub-title")
                columns = [("verdict", "", "left"), ("confidence", "", "right"), ("text", "", "left")]
                self.alternatives = table(columns, "job-alternatives")
            self.missing = LiveMarkup().classes("ft-notes").props("data-testid=job-missing")
            self.figures = name_value_table("job-figures")

    def show(self, job: str, head: Mapping[str, Any] | None, now_ns: int) -> None:
        """Show a verdict, or a line that the job has none."""
        self.title.set_text(job)
        if head is None:
            self._show_nothing()
            return
        kind = frames.kind_now(head)
        self.pill.set_text(verdict_label(head["verdict"]))
        self.pill.classes(remove=" ".join(f"ft-kind-{name}" for name in frames.KINDS), add=f"ft-kind-{kind}")
        self.text.set_text(frames.verdict_text(head))
        self.remedy.set_text(f"Remedy: {readable(head['remedy'])}" if head["remedy"] else "")
        self.subjects.put(frames.subject_chips(head))
        self.evidence.put(frames.evidence_rows(head))
        alternatives = frames.alternative_rows(head) if kind != "healthy" else []
        self.alternatives.put(alternatives)
        self.alternatives_part.set_visibility(bool(alternatives))
        self.missing.set_text(frames.missing_markup(head["missing"]))
        put_values(self.figures, frames.head_figures(head, now_ns))

    def _show_nothing(self) -> None:
        self.pill.set_text("")
        self.text.set_text("No diagnosis of this job and interval is in memory.")
        self.remedy.set_text("")
        self.missing.set_text("")
        for element in (self.subjects, self.evidence, self.alternatives, self.figures):
            element.put([])
        self.alternatives_part.set_visibility(False)


def _evidence_cell(row: Row) -> Cell:
    return [("", row["text"], ""), ("ft-detail", row["from"], "")]
