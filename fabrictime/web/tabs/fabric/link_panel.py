"""The panel of the Fabric tab about one cable: health, queues, paths, flows, jobs."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from nicegui import ui

from fabrictime.state.alert_now import text_now
from fabrictime.state.cable_graph import ends_of
from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_state import STATES, FabricState, is_active
from fabrictime.state.labels import aliased_text, arrow, readable
from fabrictime.web.addresses import alert_address, contention_address, jobs_address
from fabrictime.web.chart import LiveChart
from fabrictime.web.elements import empty, go_to, link_button, part, table, text
from fabrictime.web.tabs.fabric import frames
from fabrictime.web.tabs.fabric.frames import DirectionFigures
from fabrictime.web.tabs.fabric.queries import LinkTraffic, PathFigures
from fabrictime.web.widgets import Chips, LiveMarkup, Row
from schemas.records import LinkHealth, LinkState
from schemas.units import bps_text, count_text, delay_text, percent_text

PATHS_SHOWN: Final = 10
FLOWS_SHOWN: Final = 10
JOBS_SHOWN: Final = 12
NOTES_SHOWN: Final = 12
NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=[a-zA-Zµ])")


class LinkPanel:
    """Shows the health, queues, paths, flows and jobs of the chosen cable."""

    def __init__(self, close: Callable[[], None], choose_job: Callable[[str | None], None]) -> None:
        self._close = close
        self._choose_job = choose_job

    def build(self) -> None:
        """Create the panel's elements."""
        self.part = part("link")
        with self.part:
            with ui.element("div").classes("ft-head"):
                self.title = text("", "ft-title", test="link-title")
                self.state = text("", "ft-pill ft-big", test="link-state")
                link_button("close", "close", self._close)
            self.health = text("", "ft-detail", test="link-text")
            self.link_part = part("link-figures")
        with self.part, self.link_part:
            self.nics = Chips().props("data-testid=link-nics")
            self.figures = LiveMarkup().classes("ft-figures").props("data-testid=figures")
            text("Past hour", "ft-sub-title")
            self.hour_note = text("", "ft-note", test="hour-note")
            self.hour = LiveChart("hour").classes("ft-hour").props("data-testid=hour")
            text("Queue, last minute", "ft-sub-title")
            self.minute_empty = empty(
                "No window has this link: no probe crosses it, or queues are not inferred.", "minute-empty"
            )
            self.minute = LiveChart("minute").classes("ft-minute").props("data-testid=minute")
            self.paths_title = text("Paths over it", "ft-sub-title", test="paths-title")
            self.paths_note = text("", "ft-note", test="paths-note")
            path_columns = [
                ("path", "from → to", "left"),
                ("port", "path", "right"),
                ("p50", "p50", "right"),
                ("p99", "p99", "right"),
                ("lost", "lost", "right"),
            ]
            self.paths = table(path_columns, "paths", _open_pair)
            self.flows_title = text("Flows over it", "ft-sub-title", test="flows-title")
            self.flows_empty = empty("No reported flow crosses it.", "flows-empty")
            flow_columns = [("flow", "from → to", "left"), ("rate", "rate", "right"), ("job", "job", "left")]
            self.flows = table(flow_columns, "flows", self._on_flow_row)
            self.jobs = Chips(self._choose_job).props("data-testid=jobs")
            self.notes = LiveMarkup().classes("ft-notes").props("data-testid=notes")

    def _on_flow_row(self, row: Row) -> None:
        if row["job"]:
            self._choose_job(row["job"])

    def show(
        self, state: FabricState, link: str, numbers: Sequence[int], now_ns: int, verdict: Verdict
    ) -> None:
        """Show health, figures and queues of a cable. The caller holds the state's lock.

        `numbers` are the cable's two links, empty while the cable is unknown. `verdict` is whether the
        evidence about health is fresh.
        """
        self.link_part.set_visibility(bool(numbers))
        if not numbers:
            self.title.set_text(arrow(link))
            self.state.set_text("")
            self.health.set_text(
                "No path, health record or queue has this link now. The search field (key /) finds links by "
                "parts of their names."
            )
            return
        cable = state.cable_graph.cable(numbers[0])
        self.title.set_text(arrow(cable))
        ends = ends_of(cable) or ()
        nics = [nic for end in ends if (nic := f"{end.node}/{end.port}") in state.nics]
        self.nics.put([_nic_chip(nic) for nic in nics])
        subject = state.subject_of(numbers[0])
        worst = STATES[max(state.state(number) for number in numbers)]
        fine = verdict.claim("Probes cross it; no trouble was detected.")
        no_record = fine if worst == "UP" else "Its health is unknown."
        self.state.set_text("state unknown" if worst == "UNKNOWN" else worst)
        self.state.classes(remove=" ".join(f"ft-{s}" for s in STATES), add=f"ft-{worst}")
        self.health.set_text(no_record if subject is None else readable(subject.record["text"]))
        self.figures.set_text(_figures([frames.direction_figures(state, number) for number in numbers]))
        self._show_minute(state, numbers)
        self.notes.set_text(_notes(state, cable, numbers, now_ns))

    def _show_minute(self, state: FabricState, numbers: Sequence[int]) -> None:
        has_queue = any(state.queues.newest(number) is not None for number in numbers)
        self.minute_empty.set_visibility(not has_queue)
        self.minute.set_visibility(has_queue)
        if has_queue:
            number = numbers[0]

            def frame(_is_full: bool) -> dict[str, Any]:
                with state.lock:
                    return frames.minute_frame(state, number)

            self.minute.show(frame)

    def show_hour(self, state: FabricState, number: int, now_ns: int) -> None:
        """Show the state changes of the cable's past hour."""
        with state.lock:
            frame = frames.hour_frame(state, number, now_ns)
            subject = state.subject_of(number)
        self.hour.set_visibility(subject is not None)
        if subject is None:
            self.hour_note.set_text("No change of state is known.")
        else:
            record = subject.record
            count, total = record["flaps_hour"], record["flaps_total"]
            note = f"{'once' if count == 1 else f'{count} times'} down within the past hour, {total} in total"
            if record["state"] == LinkState.GREY and record["loss_rate"] is not None:
                low, high = record["loss_rate_low"], record["loss_rate_high"]
                interval = ""
                if low is not None and high is not None:
                    interval = f" ({percent_text(low)} to {percent_text(high)})"
                note += f"; loses {percent_text(record['loss_rate'])}{interval}{_classes_text(record)}"
            if record["max_packet_bytes"] is not None:
                note += f"; drops packets above {record['max_packet_bytes']:,} bytes"
            if record["state"] != LinkState.UP:  # the counts are those of the detection
                note += f"; {record['paths_dead']} paths dead, {record['paths_living']} living"
            self.hour_note.set_text(note)
        self.hour.show(lambda _is_full: frame)

    def show_traffic(self, traffic: LinkTraffic) -> None:
        """Show the cable's paths, flows and jobs."""
        total, pairs = count_text(traffic.total), count_text(traffic.pairs)
        self.paths_title.set_text(f"Paths over it: {total} of {pairs} pairs")
        note = "No traced path crosses it now."
        if traffic.paths:
            note = f"the {min(PATHS_SHOWN, len(traffic.paths))} slowest of the last 10 s"
        if traffic.trouble is not None:
            note = f"no delays: {traffic.trouble}"
        self.paths_note.set_text(note)
        self.paths.put([_path_row(path) for path in traffic.paths[:PATHS_SHOWN]])
        rate = f": {count_text(len(traffic.flows))}, {bps_text(traffic.rate_bps)}" if traffic.flows else ""
        self.flows_title.set_text(f"Flows over it{rate}")
        self.flows_empty.set_visibility(not traffic.flows)
        self.flows.put(
            [
                {
                    "id": flow["flow_id"],
                    "flow": f"{flow['nic']} → {flow['peer'] or flow['peer_address']}",
                    "rate": bps_text(flow["rate_bps"]),
                    "job": flow["job"] or "",
                }
                for flow in traffic.flows[:FLOWS_SHOWN]
            ]
        )
        jobs = list(traffic.jobs.items())[:JOBS_SHOWN]
        self.jobs.put([(job, f"{job}: {bps_text(rate_bps)}", "") for job, rate_bps in jobs])


def _nic_chip(nic: str) -> tuple[str, str, str]:
    """Return the chip (key, text, address) that links to a NIC's jobs and queue pairs."""
    return nic, f"jobs and queue pairs of {nic}", jobs_address(nic=nic)


def _classes_text(record: LinkHealth) -> str:
    """Return as text the traffic classes that lose packets while others do not; empty if none differ."""
    lossy = [str(traffic_class["dscp"]) for traffic_class in record["classes"] if traffic_class["is_lossy"]]
    others = [
        str(traffic_class["dscp"]) for traffic_class in record["classes"] if not traffic_class["is_lossy"]
    ]
    return f" of DSCP {', '.join(lossy)}, not of DSCP {', '.join(others)}" if lossy else ""


def _path_row(path: PathFigures) -> dict[str, Any]:
    sent = path.count + path.lost
    return {
        "id": f"{path.nic} {path.peer} {path.path} {path.answer}",
        "path": f"{path.nic} → {path.peer}" + (" (answer)" if path.answer else ""),
        "pair": [path.peer, path.nic] if path.answer else [path.nic, path.peer],
        "port": path.path,
        "p50": delay_text(path.p50_ns),
        "p99": delay_text(path.p99_ns),
        "lost": f"{path.lost} of {count_text(sent)}" if sent else "—",
    }


def _open_pair(row: Row) -> None:
    nic, peer = row["pair"]
    go_to(f"/delays?{urlencode({'nic': nic, 'peer': peer})}")


def _figures(directions: Sequence[DirectionFigures]) -> str:
    """Return the figures of a cable's two directions side by side as HTML, with escaped names."""
    rows = [
        ("", [arrow(direction.link) for direction in directions], "ft-direction"),
        (
            "state",
            [direction.state if direction.state != "UNKNOWN" else "unknown" for direction in directions],
            "",
        ),
        ("mean depth", [direction.depth for direction in directions], ""),
        ("deepest", [direction.deepest for direction in directions], ""),
        ("time busy", [direction.load for direction in directions], ""),
        ("pairs over it", [count_text(direction.pairs) for direction in directions], ""),
    ]
    cells = ""
    for name, values, kind in rows:
        columns = "".join(f"<td>{_BEFORE_UNIT.sub(NO_BREAK, html.escape(value))}</td>" for value in values)
        cells += f"<tr class='{kind}'><th>{name}</th>{columns}</tr>"
    return f"<table>{cells}</table>"


def _notes(state: FabricState, cable: str, numbers: Sequence[int], now_ns: int) -> str:
    """Return alerts, contention and aliased links of a cable as HTML, with escaped text."""
    links = {state.cable_graph.name(number) for number in numbers} | {cable}
    notes = [
        f"<a href='{alert_address(alert['alert_id'])}'>alert</a> {_escaped(text_now(state, alert))}"
        for alert in state.active_alerts()
        if alert["subject"] in links or not links.isdisjoint(alert["links"])
    ]
    notes += [
        f"<a href='{contention_address(window['window_id'])}'>contention</a> {_escaped(window['text'])}"
        for window in state.contention.values()
        if window["link"] in links and is_active(window, now_ns)
    ]
    subject = state.subject_of(numbers[0])
    if subject is not None and subject.record["candidates"]:
        notes.append(html.escape(aliased_text(subject.record["candidates"])))
    return "".join(f"<p>{note}</p>" for note in notes[:NOTES_SHOWN])


def _escaped(text: str) -> str:
    """Return a record's text in readable form, escaped for HTML."""
    return html.escape(readable(text))
