"""The tab Fabric: the drawn topology, and what is known of the link, node or job that was chosen.

In: the process's `AppContext` and the tab's choices, which stand in its address. No query, no maths here.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args
from urllib.parse import urlencode

from nicegui import ui

from fabrictime.state.fabric_state import STATES, Part, stands
from fabrictime.state.labels import arrow
from fabrictime.state.queue_history import QueueHistory
from fabrictime.state.units import bps_text, count_text, counted, delay_text, percent_text
from fabrictime.web.chart import FabricMap, LiveChart
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.rows import Cell, Row
from fabrictime.web.tabs.base import CSS, AppContext, card, part, replace_address, text, toggle
from fabrictime.web.tabs.fabric import frames
from fabrictime.web.tabs.fabric.frames import LinkMetric
from fabrictime.web.tabs.fabric.queries import Over
from fabrictime.web.tabs.live_tab import KPIS, LiveTab, empty, table
from fabrictime.web.widgets import Chips, Markup

METRICS = {"state": "state", "queue": "queue", "load": "time busy"}
PATHS_SHOWN = 10
FLOWS_SHOWN = 10
JOBS_SHOWN = 12
TROUBLE_SHOWN = 40
OVER_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class FabricChoice:
    """What a tab shows; wrong values in its address fall back to the defaults."""

    metric: LinkMetric = "state"
    link: str | None = None
    node: str | None = None
    job: str | None = None

    @staticmethod
    def parse(query: dict[str, str]) -> FabricChoice:
        """Return the choice that an address's query stands for."""
        choice = FabricChoice(
            link=query.get("link") or None, node=query.get("node") or None, job=query.get("job") or None
        )
        if query.get("metric") in get_args(LinkMetric):
            choice = replace(choice, metric=query["metric"])  # type: ignore[arg-type]
        return choice

    def address(self) -> str:
        """Return the query that brings this choice back; defaults are left out."""
        default = asdict(FabricChoice())
        return urlencode({k: v for k, v in asdict(self).items() if v is not None and v != default[k]})


class FabricTab(LiveTab):
    """The topology, and a link in depth: health, queues, paths, flows, jobs."""

    address = "/fabric"

    def __init__(self, site: AppContext, choice: FabricChoice) -> None:
        super().__init__(site)
        self.choice = choice
        self._numbers: list[int] = []
        self._lit: set[int] = set()
        self._over: Over | None = None
        self._plan_sent = -1

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Lay the page out inside the current client."""
        ui.add_css(CSS)
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen ft-fabric-screen"):
            self._build_header(KPIS)
            with ui.element("main").classes("ft-fabric-grid"):
                self._build_map()
                with card("ft-panel"):
                    self._build_overview()
                    self._build_link()
                    self._build_node()
        ui.timer(0.5, self._show_banner)
        ui.timer(2.0, self._show_hour)

    def _build_map(self) -> None:
        with card("ft-map-card"):
            with ui.element("div").classes("ft-head"):
                text("Fabric", "ft-title")
                self.job_chip = (
                    ui.element("button").classes("ft-chip").props("type=button data-testid=job-chip")
                )
                with self.job_chip:
                    self.job_text = text("", "")
                self.job_chip.on("click", lambda: self._choose_job(None))
                toggle(METRICS, self.choice.metric, self._choose_metric, "metric")
            self.map_note = text("", "ft-note", test="map-note")
            self.map = FabricMap("topology of the fabric; the same in words beside it", self._on_hit)
            self.map.classes("ft-fill").props("data-testid=fabric")

    def _build_overview(self) -> None:
        self.overview = part("overview")
        with self.overview:
            text("In trouble", "ft-title")
            self.trouble_empty = empty("", "trouble-empty")
            self.trouble = table(
                [("state", "state", "left"), ("what", "what", "left")],
                "trouble",
                self._on_link_row,
                {"what": _trouble_cell},
            )
            text("Deepest queues", "ft-title ft-gap")
            self.deep_empty = empty("", "deep-empty")
            self.deep = table(
                [
                    ("what", "link", "left"),
                    ("depth", "mean depth", "right"),
                    ("delay", "wait", "right"),
                    ("load", "busy", "right"),
                ],
                "deep",
                self._on_link_row,
            )
            self.hint = text(
                "A click on a cable, NIC or switch opens it; the wheel zooms, a drag moves.", "ft-note"
            )

    def _build_link(self) -> None:
        self.link_part = part("link")
        with self.link_part:
            with ui.element("div").classes("ft-head"):
                self.link_title = text("", "ft-title", test="link-title")
                self.link_state = text("", "ft-pill ft-big", test="link-state")
                _close(self._clear)
            self.link_text = text("", "ft-said", test="link-text")
            self.link_figures = Markup().classes("ft-figures").props("data-testid=figures")
            text("Past hour", "ft-sub-title")
            self.hour_note = text("", "ft-note", test="hour-note")
            self.hour = LiveChart("hour").classes("ft-hour").props("data-testid=hour")
            text("Queue, last minute", "ft-sub-title")
            self.minute_empty = empty(
                "No window names this link: no probe crosses it, or queues are not inferred.", "minute-empty"
            )
            self.minute = LiveChart("minute").classes("ft-minute").props("data-testid=minute")
            self.paths_title = text("Paths over it", "ft-sub-title", test="paths-title")
            self.paths_note = text("", "ft-note", test="paths-note")
            self.paths = table(
                [
                    ("path", "from → to", "left"),
                    ("port", "path", "right"),
                    ("p50", "p50", "right"),
                    ("p99", "p99", "right"),
                    ("lost", "lost", "right"),
                ],
                "paths",
                _to_pair,
            )
            self.flows_title = text("Flows over it", "ft-sub-title", test="flows-title")
            self.flows_empty = empty("No flow report names a flow over it.", "flows-empty")
            self.flows = table(
                [("flow", "from → to", "left"), ("rate", "rate", "right"), ("job", "job", "left")],
                "flows",
                self._on_flow_row,
            )
            self.jobs = Chips(self._choose_job).props("data-testid=jobs")
            self.about = Markup().classes("ft-about").props("data-testid=about")

    def _build_node(self) -> None:
        self.node_part = part("node")
        with self.node_part:
            with ui.element("div").classes("ft-head"):
                self.node_title = text("", "ft-title", test="node-title")
                _close(self._clear)
            self.node_note = text("", "ft-note")
            self.node_table = table(
                [
                    ("port", "port", "left"),
                    ("far", "to", "left"),
                    ("state", "state", "left"),
                    ("depth", "out: depth", "right"),
                    ("load", "busy", "right"),
                ],
                "node-table",
                self._on_link_row,
            )

    # ----------------------------------------------------------------------------------------------- choices

    def _choose(self, **changes: Any) -> None:
        self.choice = replace(self.choice, **changes)
        address = self.choice.address()
        replace_address(f"{self.address}?{address}" if address else self.address)

    def _choose_metric(self, metric: LinkMetric) -> None:
        self._choose(metric=metric)
        self._draw()
        self._show_lists()

    def _clear(self) -> None:
        self._choose(link=None, node=None)
        self._open()

    def _choose_link(self, link: str) -> None:
        self._choose(link=link, node=None)
        self._open()

    def _choose_job(self, job: str | None) -> None:
        self._choose(job=job or None)
        self._light_job()

    def _on_hit(self, what: str, k: int, plan: int) -> None:
        live = self.site.live
        if live is None or plan != live.plan_number:
            return
        shown = live.shown.plan
        if what == "none":
            self._clear()
        elif what == "cable" and 0 <= k < len(shown.cables):
            self._choose_link(live.state.cable_graph.name(shown.links[2 * k]))
        elif what == "nic" and 0 <= k < len(shown.nics):
            cable = shown.nics[k][4]
            if cable >= 0:
                self._choose_link(live.state.cable_graph.name(shown.links[2 * cable]))
        elif what == "node" and (name := frames.node_at(shown, k)) is not None:
            self._choose(link=None, node=name)
            self._open()

    def _on_link_row(self, row: Row) -> None:
        link = row["id"]
        with self.state.lock:
            known = self.state.cable_graph.known(link)
        if known is not None:
            self._choose_link(link)
        else:  # a NIC or a host: its node
            self._choose(link=None, node=link.partition("/")[0])
            self._open()

    def _on_flow_row(self, row: Row) -> None:
        if row["job"]:
            self._choose_job(row["job"])

    # --------------------------------------------------------------------------------------------- following

    def start_live(self) -> None:
        """Begin to follow the topics, or follow them again after the browser was away."""
        self._plan_sent = -1
        super().start_live()
        if self.site.live is None:
            for each in (self.overview, self.link_part, self.node_part):
                each.set_visibility(each is self.overview)
            self.job_chip.set_visibility(False)
            return
        self._open()
        self._light_job()
        for chart in (self.map, self.hour, self.minute):
            chart.resume()

    def on_live(self, parts: frozenset[Part]) -> None:
        """Take that these parts of the fabric's state changed."""
        if parts & {"plan", "paths", "health", "queues"}:
            self._draw()
        if parts & {"plan", "paths", "health", "queues", "alerts", "contention"}:
            self._show_lists()

    def _open(self) -> None:
        """Show the part of the panel that the choice asks for, and follow what it needs."""
        choice = self.choice
        with self.state.lock:
            number = None if choice.link is None else self.state.cable_graph.known(choice.link)
        self._numbers = [] if number is None else [number & ~1, number | 1]
        linked = choice.link is not None
        self.overview.set_visibility(not linked and choice.node is None)
        self.link_part.set_visibility(linked)
        self.node_part.set_visibility(choice.node is not None and not linked)
        self._over = None
        self._unfollow("over")
        self._follow_over()
        self._draw()
        self._show_lists()
        self._show_hour()

    def _follow_over(self) -> None:
        fabric, numbers = self.site.fabric, self._numbers
        if fabric is not None and numbers:
            self._follow(
                "over",
                ("over", *numbers),
                lambda: fabric.over(numbers, self.live.now_ns()),
                self._on_over,
                OVER_EVERY_S,
            )

    def _light_job(self) -> None:
        fabric, job = self.site.fabric, self.choice.job
        self.job_chip.set_visibility(job is not None)
        self._lit = set()
        if fabric is None or job is None:
            self._unfollow("job")
            self._draw()
            return
        self.job_text.set_text(f"{job}: no more")
        self._follow("job", ("job", job), lambda: fabric.job_links(job), self._on_job, OVER_EVERY_S)

    # ----------------------------------------------------------------------------------------------- filling

    def _draw(self) -> None:
        if self.site.live is not None:
            self.map.show(self._map_frame)

    def _map_frame(self, whole: bool) -> dict[str, Any]:
        live, choice = self.live, self.choice
        frame: dict[str, Any] = {"metric": choice.metric}
        if whole or self._plan_sent != live.plan_number:
            frame["plan"] = frames.plan_frame(live.shown.plan, live.plan_number)
            self._plan_sent = live.plan_number
        frame["look"] = live.look()
        frame["choice"] = frames.choice_frame(
            live.shown, live.plan_number, choice.link, choice.node, self._lit, self._numbers
        )
        return frame

    def _show_lists(self) -> None:
        choice = self.choice
        live = self.live
        with live.state.lock:
            self._show_map_note()
            if choice.link is not None:
                if not self._numbers and live.state.cable_graph.known(choice.link) is not None:
                    number = live.state.cable_graph.known(choice.link) or 0
                    self._numbers = [number & ~1, number | 1]
                    self._follow_over()
                self._show_link()
            elif choice.node is not None:
                self._show_node(choice.node)
            else:
                self._show_overview()

    def _show_map_note(self) -> None:
        state, plan = self.state, self.live.shown.plan
        if not plan.nics and not plan.cables:
            note = "No NICs and no paths yet."
        elif not plan.cables:
            note = "No paths traced yet: cables appear with the first paths that probers trace."
        else:
            pairs = counted(state.link_index.pairs, "pair")
            note = f"{counted(len(plan.cables), 'cable')}; paths of {pairs} traced"
            if state.link_index.left_out or plan.refused:
                note += "; more than fits here is left out"
            if self.choice.metric != "state":
                note += " · each half of a cable is the queue of the port at its end"
                if not state.queues.version:
                    note += " · no queue is inferred yet"
        self.map_note.set_text(note)

    def _show_overview(self) -> None:
        state, shown = self.state, self.live.shown
        rows = frames.worst_first(state, shown)
        self.trouble.put(rows[:TROUBLE_SHOWN])
        judged = bool(state.subjects)
        self.trouble_empty.set_text(
            "No cable, NIC or host is judged anything but UP."
            if judged
            else "No verdict yet: health is told once probers send evidence and a worker weighs it."
        )
        self.trouble_empty.set_visibility(not rows)
        deep = frames.deepest(state, shown, self.choice.metric)
        self.deep.put(deep)
        self.deep_empty.set_text(
            "All queues are empty."
            if state.queues.version
            else "No queue is inferred yet: it takes traced paths and probes on them."
        )
        self.deep_empty.set_visibility(not deep)

    def _show_node(self, node: str) -> None:
        rows = frames.of_node(self.state, self.live.shown, node)
        self.node_title.set_text(node)
        here = [nic for nic in self.state.nics.values() if nic.host == node]
        self.node_note.set_text(
            f"{len(rows)} cables"
            + (f" · {len(here)} NICs, rack {here[0].rack or 'not known'}" if here else "")
        )
        self.node_table.put(rows)

    def _show_link(self) -> None:
        state, link = self.state, self.choice.link or ""
        if not self._numbers:
            self.link_title.set_text(arrow(link))
            self.link_state.set_text("")
            self.link_text.set_text("No path, verdict or queue names this link now.")
            self.link_figures.set_text("")
            self.about.set_text("")
            return
        cable = state.cable_graph.cable(self._numbers[0])
        self.link_title.set_text(arrow(cable))
        subject = state.subject_of(self._numbers[0])
        worst = STATES[max(state.state(number) for number in self._numbers)]
        shown = "no verdict yet" if worst == "UNKNOWN" else worst
        unjudged = (
            "Probes cross it; no trouble was judged." if worst == "UP" else "Nothing was judged of it yet."
        )
        self.link_state.set_text(shown)
        self.link_state.classes(remove=" ".join(f"ft-{s}" for s in STATES), add=f"ft-{worst}")
        self.link_text.set_text(unjudged if subject is None else subject.record["text"])
        sides = [frames.side(state, number) for number in self._numbers]
        self.link_figures.set_text(_figures(sides))
        self._show_minute(state.queues)
        self.about.set_text(self._about(cable))

    def _show_minute(self, queues: QueueHistory) -> None:
        told = any(queues.newest(number) is not None for number in self._numbers)
        self.minute_empty.set_visibility(not told)
        self.minute.set_visibility(told)
        if told:
            number = self._numbers[0]

            def frame(whole: bool) -> dict[str, Any]:
                with self.state.lock:
                    return frames.minute_frame(self.state, number)

            self.minute.show(frame)

    def _show_hour(self) -> None:
        if self.site.live is None or not self._numbers:
            return
        number, now_ns = self._numbers[0], self.live.now_ns()
        with self.state.lock:
            frame = frames.hour_frame(self.state, number, now_ns)
            subject = self.state.subject_of(number)
        self.hour.set_visibility(subject is not None)
        if subject is None:
            self.hour_note.set_text("No change was judged.")
        else:
            record = subject.record
            hour, ever = record["flaps_hour"], record["flaps_total"]
            note = f"{'once' if hour == 1 else f'{hour} times'} down within the past hour, {ever} in all"
            if record["state"] == "GREY" and record["loss_rate"] is not None:
                low, high = record["loss_rate_low"], record["loss_rate_high"]
                span = (
                    "" if low is None or high is None else f" ({percent_text(low)} to {percent_text(high)})"
                )
                note += f"; loses {percent_text(record['loss_rate'])}{span}"
            note += f"; {record['paths_dead']} paths dead, {record['paths_living']} living"
            self.hour_note.set_text(note)
        self.hour.show(lambda whole: frame)

    def _about(self, cable: str) -> str:
        """Alerts and contention of the cable as HTML, everything from records escaped."""
        links = {self.state.cable_graph.name(number) for number in self._numbers} | {cable}
        parts = [
            f"<a href='/alerts?{urlencode({'alert': alert['alert_id']})}'>alert</a> "
            f"{html.escape(alert['text'])}"
            for alert in self.state.standing()
            if alert["subject"] in links or not links.isdisjoint(alert["links"])
        ]
        parts += [
            f"<a href='/contention?{urlencode({'window': each['window_id']})}'>contention</a> "
            f"{html.escape(each['text'])}"
            for each in self.state.contention.values()
            if each["link"] in links and stands(each, self.live.now_ns())
        ]
        subject = self.state.subject_of(self._numbers[0])
        if subject is not None and subject.record["candidates"]:
            names = ", ".join(html.escape(arrow(each)) for each in subject.record["candidates"][:6])
            parts.append(f"It may as well be {names}: no path tells them apart.")
        return "".join(f"<p>{each}</p>" for each in parts[:12])

    def _on_over(self, snapshot: Snapshot[Over]) -> None:
        over = snapshot.value
        if over is None or over is self._over:
            return
        self._over = over
        self.paths_title.set_text(
            f"Paths over it: {count_text(over.total)} of {count_text(over.pairs)} pairs"
        )
        note = "" if over.paths else "No traced path crosses it now."
        if over.paths:
            note = f"the {min(PATHS_SHOWN, len(over.paths))} slowest of the last 10 s"
        if over.trouble is not None:
            note = f"no delays: {over.trouble}"
        self.paths_note.set_text(note)
        self.paths.put(
            [
                {
                    "id": f"{row.nic} {row.peer} {row.path} {row.answer}",
                    "path": f"{row.nic} → {row.peer}" + (" (answer)" if row.answer else ""),
                    "pair": [row.peer, row.nic] if row.answer else [row.nic, row.peer],
                    "port": row.path,
                    "p50": delay_text(row.p50_ns),
                    "p99": delay_text(row.p99_ns),
                    "lost": "—"
                    if not row.count + row.lost
                    else f"{row.lost} of {count_text(row.count + row.lost)}",
                }
                for row in over.paths[:PATHS_SHOWN]
            ],
        )
        total = f": {count_text(len(over.flows))}, {bps_text(over.rate_bps)}" if over.flows else ""
        self.flows_title.set_text(f"Flows over it{total}")
        self.flows_empty.set_visibility(not over.flows)
        self.flows.put(
            [
                {
                    "id": flow["flow_id"],
                    "flow": f"{flow['nic']} → {flow['peer'] or flow['peer_address']}",
                    "rate": bps_text(flow["rate_bps"]),
                    "job": flow["job"] or "",
                }
                for flow in over.flows[:FLOWS_SHOWN]
            ],
        )
        self._show_jobs(over)

    def _show_jobs(self, over: Over) -> None:
        jobs = [(job, f"{job}: {bps_text(rate)}") for job, rate in list(over.jobs.items())[:JOBS_SHOWN]]
        self.jobs.put([(job, label, "") for job, label in jobs])

    def _on_job(self, snapshot: Snapshot[set[int]]) -> None:
        if snapshot.value is not None and snapshot.value != self._lit:
            self._lit = snapshot.value
            self._draw()


def _close(end: Callable[[], None]) -> None:
    button = ui.element("button").classes("ft-link").props("type=button data-testid=close")
    with button:
        text("close", "")
    button.on("click", lambda: end())


def _figures(sides: Sequence[frames.Side]) -> str:
    """Both directions side by side, as HTML; names come from the network and are escaped."""
    rows = [
        ("", [arrow(side.link) for side in sides], "ft-way"),
        ("state", [side.state if side.state != "UNKNOWN" else "no verdict yet" for side in sides], ""),
        ("mean depth", [side.depth for side in sides], ""),
        ("deepest", [side.deepest for side in sides], ""),
        ("time busy", [side.load for side in sides], ""),
        ("pairs over it", [count_text(side.pairs) for side in sides], ""),
    ]
    cells = "".join(
        f"<tr class='{kind}'><th>{name}</th>"
        + "".join(f"<td>{html.escape(v)}</td>" for v in values)
        + "</tr>"
        for name, values, kind in rows
    )
    return f"<table>{cells}</table>"


def _trouble_cell(row: Row) -> Cell:
    return [("ft-what", row["what"], ""), ("ft-said", row["text"], "")]


def _to_pair(row: Row) -> None:
    nic, peer = row["pair"]
    ui.navigate.to(f"/?{urlencode({'nic': nic, 'peer': peer})}")
