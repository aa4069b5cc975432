"""The panel of the tab Jobs about traffic: flows by delay, the matrix of NICs, one flow, its links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from nicegui import ui

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.addresses import fabric_address
from fabrictime.web.chart import TrafficMatrix
from fabrictime.web.elements import (
    card,
    empty,
    go_to,
    name_value_table,
    part,
    put_values,
    table,
    text,
    toggle,
)
from fabrictime.web.tabs.jobs import flow_frames
from fabrictime.web.tabs.jobs.flow_frames import METRICS, Matrix, Metric
from fabrictime.web.widgets import Cell, Chips, Row
from schemas.records import JobFlow
from schemas.units import counted

VIEWS: Final = {"list": "list", "matrix": "matrix"}


class TrafficPanel:
    """Shows the flows of one job and the links that they cross. The panel calls `choose` with the choices of
    the tab that change.
    """

    def __init__(self, choose: Callable[..., None]) -> None:
        self._choose = choose
        self._matrix: Matrix | None = None
        self._job = ""

    def build(self, view: str, metric: Metric) -> None:
        """Create the elements that show the flows."""
        with card("ft-job-flows"):
            with ui.element("div").classes("ft-head"):
                text("Flows by delay", "ft-title")
                toggle(VIEWS, view, lambda value: self._choose(flows=value), "flows-view")
            self.note = text("", "ft-note", test="flows-note")
            self.filter = Chips(lambda _nic: self._choose(nic=None, rank=None, flow=None))
            self.filter.props("data-testid=flows-filter")
            self._build_flow()
            self.empty = empty("", "flows-empty")
            self.list_part, self.matrix_part = part("flows-list"), part("flows-matrix")
            with self.list_part.classes("ft-list-part"):
                columns = [
                    ("flow", "from → to", "left"),
                    ("data", "data delay", "right"),
                    ("probes", "probe delay", "right"),
                    ("rate", "rate", "right"),
                    ("paths", "flows", "right"),
                ]
                cells = {name: _delay_cell(name) for name in ("data", "probes")}
                self.list = table(columns, "flows", lambda row: self._choose(flow=row["id"]), cells)
            with self.matrix_part.classes("ft-chart-part ft-matrix-part"):
                toggle(METRICS, metric, lambda value: self._choose(metric=value), "matrix-metric")
                self.matrix = TrafficMatrix(
                    "traffic from NIC to NIC; the list beside it has the same as text", self._on_cell
                )
                self.matrix.classes("ft-fill").props("data-testid=matrix")

    def _build_flow(self) -> None:
        self.flow_part = part("flow")
        with self.flow_part.classes("ft-flow-part"):
            self.title = text("", "ft-sub-title", test="flow-title")
            self.figures = name_value_table("flow-figures")
            text("Its links; each opens in the fabric:", "ft-note")
            self.route = Chips().props("data-testid=flow-links")
            self.nics = Chips(lambda nic: self._choose(nic=nic)).props("data-testid=flow-nics")

    def build_links(self) -> None:
        """Create the elements that show the links."""
        with card("ft-job-links"):
            with ui.element("div").classes("ft-head"):
                text("Links that it crosses", "ft-title")
                self.map = Chips().props("data-testid=links-map")
            self.links_note = text("", "ft-note", test="links-note")
            self.links_empty = empty("No link of its flows is known yet.", "links-empty")
            columns = [
                ("state", "state", "left"),
                ("link", "link", "left"),
                ("queue", "queue", "right"),
                ("rate", "its rate", "right"),
            ]
            self.links = table(columns, "links", self._open_link, {"link": _link_cell})

    def _open_link(self, row: Row) -> None:
        go_to(fabric_address(link=row["id"], job=self._job))

    def _on_cell(self, row: int, column: int) -> None:
        matrix = self._matrix
        if matrix is not None and not matrix.hosts and max(row, column) < len(matrix.names):
            self._choose(flow=flow_frames.pair_id(matrix.names[row], matrix.names[column]))

    def show(
        self, job: str, flows: Sequence[JobFlow], view: str, metric: Metric, nic: str | None, flow: str | None
    ) -> None:
        """Show the flows as a list or a matrix."""
        self._job = job
        has_matrix = view == "matrix"
        self.list_part.set_visibility(bool(flows) and not has_matrix)
        self.matrix_part.set_visibility(bool(flows) and has_matrix)
        self.empty.set_visibility(not flows)
        self.empty.set_text("No flow of this job is known: neither its queue pairs nor its ranks name NICs.")
        self.filter.put([(nic, f"only {nic} ✕", "")] if nic else [])
        if not flows:
            self.note.set_text("")
            return
        if has_matrix:
            self._show_matrix(flows, metric, flow)
            return
        rows = flow_frames.flow_rows(flows, nic)
        marked = [{**row, "chosen": row["id"] == flow} for row in rows]
        self.list.put(marked)
        note = f"{counted(len(flows), 'pair')} of NICs"
        if nic is not None:
            note = f"{len(rows)} of {note}"
        elif len(rows) < len(flows):
            note += f"; the {len(rows)} slowest"
        self.note.set_text(note)

    def _show_matrix(self, flows: Sequence[JobFlow], metric: Metric, flow: str | None) -> None:
        matrix = flow_frames.matrix(flows, metric, flow)
        if self._matrix is None or matrix.frame != self._matrix.frame:
            self._matrix = matrix
            self.matrix.show(lambda _is_full: matrix.frame)
        note = counted(len(matrix.names), "host" if matrix.hosts else "NIC")
        note += "; too many NICs to draw, so hosts are drawn" if matrix.hosts else "; a click opens the flow"
        if matrix.left_out:
            note += f"; {matrix.left_out:,} with little traffic are left out"
        self.note.set_text(note)

    def show_flow(self, flow: JobFlow | None, state: FabricState, now_ns: int) -> None:
        """Show the chosen flow. The caller holds the state's lock."""
        self.flow_part.set_visibility(flow is not None)
        if flow is None:
            return
        self.title.set_text(f"{flow['nic']} → {flow['peer']}")
        put_values(self.figures, flow_frames.flow_figures(flow))
        self.route.put(flow_frames.route_chips(state, flow["links"], self._job, now_ns))
        self.nics.put([(nic, f"queue pairs of {nic}", "") for nic in (flow["nic"], flow["peer"])])

    def show_links(self, rows: list[dict[str, Any]], job: str) -> None:
        """Show the table of the links that the job crosses."""
        self.links.put(rows)
        self.links_empty.set_visibility(not rows)
        self.links_note.set_text(
            "those that the verdict names first, then the worst; a click opens one in the fabric"
            if rows
            else ""
        )
        self.map.put([("map", "show all in the fabric", fabric_address(job=job))] if rows else [])


def _delay_cell(name: str) -> Callable[[Row], Cell]:
    """Return a function that makes the table cell of a delay, marked if the delay is far above the median."""

    def cell(row: Row) -> Cell:
        slow = row[f"{name}_slow"]
        return [("ft-active" if slow else "", row[name], ""), ("ft-detail", slow, "")]

    return cell


def _link_cell(row: Row) -> Cell:
    parts = [("ft-active" if row["named"] else "ft-subject", row["link"], "")]
    return [*parts, ("ft-detail", row["contention"], "")]
