"""The Fabric tab: the drawn topology, and the chosen cable, node or job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from nicegui import ui

from fabrictime.state.fabric_state import Part
from fabrictime.state.labels import readable
from fabrictime.web.addresses import jobs_address
from fabrictime.web.chart import FabricMap
from fabrictime.web.elements import card, empty, link_button, part, table, text, toggle
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.base import AppContext, Choice
from fabrictime.web.tabs.fabric import frames
from fabrictime.web.tabs.fabric.frames import LinkMetric
from fabrictime.web.tabs.fabric.link_panel import LinkPanel
from fabrictime.web.tabs.fabric.queries import LinkTraffic
from fabrictime.web.tabs.live_tab import KPIS, LiveTab
from fabrictime.web.widgets import Cell, Chips, Row
from schemas.ids import host_of
from schemas.records import LinkState
from schemas.units import counted

METRICS: Final = {"state": "state", "queue": "queue", "load": "time busy"}
TROUBLE_SHOWN: Final = 40
NICS_SHOWN: Final = 16
TRAFFIC_PERIOD_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class FabricChoice(Choice):
    """The user's choices on the tab, from its address. Invalid values become the defaults."""

    metric: LinkMetric = "state"
    link: str | None = None
    node: str | None = None
    rack: str | None = None
    job: str | None = None

    @staticmethod
    def parse(query: dict[str, str]) -> FabricChoice:
        """Return the user's choices from the query parameters of an address."""
        names: dict[str, Any] = {key: query.get(key) or None for key in ("link", "node", "rack", "job")}
        choice = FabricChoice(**names)
        if query.get("metric") in get_args(LinkMetric):
            choice = replace(choice, metric=query["metric"])  # type: ignore[arg-type]
        return choice


class FabricTab(LiveTab[FabricChoice]):
    """Shows the topology, and beside it an overview, a cable or a node."""

    address = "/fabric"
    past_note = "States, queues, flows and jobs are of this moment; cables and routes are those of now."

    def __init__(self, context: AppContext, choice: FabricChoice) -> None:
        super().__init__(context, choice)
        self._numbers: list[int] = []
        """Numbers of both links of the chosen cable."""
        self._lit: set[int] = set()
        self._traffic: LinkTraffic | None = None
        self._plan_sent = -1
        self.link = LinkPanel(self._clear, self._choose_job)

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen ft-fabric-screen"):
            self._build_header(KPIS)
            with ui.element("div").classes("ft-fabric-grid"):
                self._build_map()
                with card("ft-panel"):
                    self._build_overview()
                    self.link.build()
                    self._build_node()
        ui.timer(0.5, self._show_banner)
        ui.timer(2.0, self._show_hour)

    def _build_map(self) -> None:
        with card("ft-map-card"):
            with ui.element("div").classes("ft-head"):
                text("Fabric", "ft-title")
                self.job_chip = (
                    ui.element("button")
                    .classes("ft-chip")
                    .props('type=button data-testid=job-chip aria-label="show all jobs"')
                )
                with self.job_chip:
                    self.job_text = text("", "")
                self.job_chip.on("click", lambda: self._choose_job(None))
                self.to_job = Chips().props("data-testid=to-job")
                toggle(METRICS, self.choice.metric, self._choose_metric, "metric")
            self.map_note = text("", "ft-note", test="map-note")
            self.map = FabricMap(
                "topology of the fabric; the panel beside it has the same as text", self._on_hit
            )
            self.map.classes("ft-fill").props("data-testid=fabric")

    def _build_overview(self) -> None:
        self.overview = part("overview")
        with self.overview:
            text("Not UP", "ft-title")
            self.trouble_empty = empty("", "trouble-empty")
            trouble_columns = [("state", "state", "left"), ("subject", "subject", "left")]
            self.trouble = table(trouble_columns, "trouble", self._on_link_row, {"subject": _trouble_cell})
            text("Deepest queues", "ft-title ft-gap")
            self.deepest_empty = empty("", "deepest-empty")
            deepest_columns = [
                ("link", "link", "left"),
                ("depth", "mean depth", "right"),
                ("delay", "wait", "right"),
                ("load", "busy", "right"),
            ]
            self.deepest = table(deepest_columns, "deepest", self._on_link_row)
            self.hint = text(
                "A click opens a cable, NIC, rack or switch; the wheel or two fingers zoom, a drag moves.",
                "ft-note",
            )

    def _build_node(self) -> None:
        self.node_part = part("node")
        with self.node_part:
            with ui.element("div").classes("ft-head"):
                self.node_title = text("", "ft-title", test="node-title")
                link_button("close", "close", self._clear)
            self.node_note = text("", "ft-note", test="node-note")
            self.node_nics_title = text("Jobs and queue pairs of", "ft-detail")
            self.node_nics = Chips().props("data-testid=node-nics")
            columns = [
                ("port", "port", "left"),
                ("far", "to", "left"),
                ("state", "state", "left"),
                ("depth", "out: depth", "right"),
                ("load", "busy", "right"),
            ]
            self.node_table = table(columns, "node-table", self._on_link_row)

    # ----------------------------------------------------------------------------------------------- choices

    def _choose_metric(self, metric: LinkMetric) -> None:
        self._choose(metric=metric)
        self._draw()
        self._show_lists()

    def _clear(self) -> None:
        self._choose(link=None, node=None, rack=None)
        self._open()

    def _choose_link(self, link: str) -> None:
        self._choose(link=link, node=None, rack=None)
        self._open()

    def _choose_node(self, node: str) -> None:
        self._choose(link=None, node=node, rack=None)
        self._open()

    def _choose_rack(self, rack: str) -> None:
        self._choose(link=None, node=None, rack=rack)
        self._open()

    def _choose_job(self, job: str | None) -> None:
        self._choose(job=job or None)
        self._follow_job()

    def _on_hit(self, kind: str, k: int, plan_number: int) -> None:
        live = self.context.live
        if live is None or plan_number != live.plan_number:
            return
        plan, graph = live.drawn.plan, live.state.cable_graph
        if kind == "none":
            self._clear()
        elif kind == "cable" and 0 <= k < len(plan.cables):
            self._choose_link(graph.name(plan.links[2 * k]))
        elif kind == "nic" and 0 <= k < len(plan.nics):
            cable = plan.nics[k][4]
            if cable >= 0:
                self._choose_link(graph.name(plan.links[2 * cable]))
        elif kind == "rack" and 0 <= k < len(plan.racks):
            self._choose_rack(plan.racks[k])
        elif kind == "node" and (name := frames.node_at(plan, k)) is not None:
            self._choose_node(name)

    def _on_link_row(self, row: Row) -> None:
        subject = row["id"]
        with self.state.lock:
            number = self.state.cable_graph.existing_number(subject)
        if number is not None:
            self._choose_link(subject)
        else:  # the row of a NIC or host opens the host
            self._choose_node(host_of(subject))

    # --------------------------------------------------------------------------------------------- following

    def start_live(self) -> None:
        """Subscribe to the live state. Called again when the browser reconnects."""
        super().start_live()
        if self.context.live is None:
            for part in (self.overview, self.link.part, self.node_part):
                part.set_visibility(part is self.overview)
            self.job_chip.set_visibility(False)
            return
        self._open()
        self._follow_job()
        for chart in (self.link.hour, self.link.minute):
            chart.resume()

    def resume(self) -> None:
        """Send the whole map to a browser that has reconnected."""
        self.map.resume()

    def on_live(self, parts: frozenset[Part]) -> None:
        """Redraw the elements that depend on the changed parts of the state."""
        if parts & {"plan", "paths", "health", "queues"}:
            self._draw()
        if parts & {"plan", "paths", "health", "queues", "alerts", "contention"}:
            self._show_lists()

    def _open(self) -> None:
        """Show the part of the panel for the user's choices, and subscribe to its queries."""
        choice = self.choice
        self._numbers = self._known_numbers()
        has_link = choice.link is not None
        has_node = choice.node is not None or choice.rack is not None
        self.overview.set_visibility(not has_link and not has_node)
        self.link.part.set_visibility(has_link)
        self.node_part.set_visibility(has_node and not has_link)
        self._traffic = None
        self.unfollow("traffic")
        self._follow_traffic()
        self._draw()
        self._show_lists()
        self._show_hour()

    def _known_numbers(self) -> list[int]:
        if self.choice.link is None:
            return []
        with self.state.lock:
            number = self.state.cable_graph.existing_number(self.choice.link)
        return [] if number is None else [number & ~1, number | 1]

    def _follow_traffic(self) -> None:
        links, numbers = self.context.links, self._numbers
        if links is not None and numbers:
            arguments = (tuple(numbers), self.live.now_ns)
            self.follow("traffic", links.traffic, arguments, self._on_traffic, TRAFFIC_PERIOD_S)

    def _follow_job(self) -> None:
        links, job = self.context.links, self.choice.job
        self.job_chip.set_visibility(job is not None)
        self.to_job.put([] if job is None else [("job", "open the job", jobs_address(job=job))])
        self._lit = set()
        if links is None or job is None:
            self.unfollow("job")
            self._draw()
            return
        self.job_text.set_text(f"{job}: stop showing")
        self.follow("job", links.job_links, (job,), self._on_job, TRAFFIC_PERIOD_S)

    # ----------------------------------------------------------------------------------------------- filling

    def _draw(self) -> None:
        if self.context.live is not None:
            self.map.show(self._map_frame)

    def _map_frame(self, is_full: bool) -> dict[str, Any]:
        live, choice = self.live, self.choice
        plan = {}
        if is_full or self._plan_sent != live.plan_number:
            plan = {"plan": frames.plan_frame(live.drawn.plan, live.plan_number)}
            self._plan_sent = live.plan_number
        choice_frame = frames.choice_frame(
            live.drawn, live.plan_number, choice.link, choice.node, self._lit, self._numbers
        )
        return {"metric": choice.metric, **plan, "links": live.links_frame(), "choice": choice_frame}

    def _show_lists(self) -> None:
        choice = self.choice
        with self.state.lock:
            self._show_map_note()
            if choice.link is not None:
                if not self._numbers:
                    self._numbers = self._known_numbers()
                    self._follow_traffic()
                now_ns, verdict = self.live.now_ns(), self.live.verdict()
                self.link.show(self.state, choice.link, self._numbers, now_ns, verdict)
            elif choice.node is not None:
                self._show_node(choice.node)
            elif choice.rack is not None:
                self._show_rack(choice.rack)
            else:
                self._show_overview()

    def _show_map_note(self) -> None:
        state, plan = self.state, self.live.drawn.plan
        if not plan.nics and not plan.cables:
            note = "No NICs and no paths yet."
        elif not plan.cables:
            note = "No paths traced yet: cables appear with the first traced paths."
        else:
            pairs = counted(state.link_index.pairs, "pair")
            note = f"{counted(len(plan.cables), 'cable')}; paths of {pairs} traced"
            if state.link_index.left_out or plan.refused:
                note += "; the rest does not fit and is left out"
            if self.choice.metric != "state":
                note += " · each half of a cable is the queue of the port at its end"
                if not state.queues.version:
                    note += " · no queue inferred yet"
        self.map_note.set_text(note)

    def _show_overview(self) -> None:
        state = self.state
        trouble = frames.trouble_rows(state)
        self.trouble.put(trouble[:TROUBLE_SHOWN])
        self.trouble_empty.set_text(
            self.live.verdict().claim("All cables, NICs and hosts with a known state are UP.")
            if state.subjects or self.live.summary().cables[LinkState.UP]
            else "No cable, NIC or host is known to be in trouble: no worker has published health yet."
        )
        self.trouble_empty.set_visibility(not trouble)
        deepest = self.live.deepest_rows(self.choice.metric)
        self.deepest.put(deepest)
        self.deepest_empty.set_text(
            self.live.verdict().claim("All queues are empty.")
            if state.queues.version
            else "No queue inferred yet: this needs traced paths and probes on them."
        )
        self.deepest_empty.set_visibility(not deepest)

    def _show_node(self, node: str) -> None:
        rows = frames.node_rows(self.state, self.live.drawn, node)
        self.node_title.set_text(node)
        nics = [nic for nic in self.state.nics.values() if nic.host == node]
        host = f" · {counted(len(nics), 'NIC')}, rack {nics[0].rack or 'unknown'}" if nics else ""
        health = self.state.subjects.get(node)
        host += f" · {readable(health.record['text'])}" if health is not None else ""
        unknown = "No cable of it is known now. The search field (key /) finds nodes by parts of their names."
        self.node_note.set_text(f"{counted(len(rows), 'cable')}{host}" if rows or nics else unknown)
        self.node_table.put(rows)
        self.node_nics.put([(nic.nic, nic.nic, jobs_address(nic=nic.nic)) for nic in nics[:NICS_SHOWN]])
        self.node_nics_title.set_visibility(bool(nics))

    def _show_rack(self, rack: str) -> None:
        nics = [nic for nic in self.state.nics.values() if nic.rack == rack]
        self.node_title.set_text(f"Rack {rack}")
        hosts = counted(len({nic.host for nic in nics}), "host")
        self.node_note.set_text(
            f"{hosts}, {counted(len(nics), 'NIC')}; a click on a row opens the NIC's cable"
        )
        self.node_table.put(frames.rack_rows(self.state, self.live.drawn, rack))
        self.node_nics.put([])
        self.node_nics_title.set_visibility(False)

    def _show_hour(self) -> None:
        if self.context.live is not None and self._numbers:
            self.link.show_hour(self.state, self._numbers[0], self.live.now_ns())
        if self.context.live is not None and self.live.verdict().missing:
            self._show_lists()  # the age of the evidence grows

    def _on_traffic(self, snapshot: Snapshot[LinkTraffic]) -> None:
        if snapshot.value is not None and snapshot.value is not self._traffic:
            self._traffic = snapshot.value
            self.link.show_traffic(snapshot.value)

    def _on_job(self, snapshot: Snapshot[set[int]]) -> None:
        if snapshot.value is not None and snapshot.value != self._lit:
            self._lit = snapshot.value
            self._draw()


def _trouble_cell(row: Row) -> Cell:
    return [("ft-subject", row["subject"], ""), *(("ft-detail", row[key], "") for key in ("text", "aliased"))]
