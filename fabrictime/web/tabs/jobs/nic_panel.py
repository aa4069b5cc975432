"""The panel of the tab Jobs about one NIC: its rack and host, its jobs, and its queue pairs with in-band
delay.
"""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from fabrictime.state.cable_graph import Nic
from fabrictime.web.addresses import fabric_address, jobs_address
from fabrictime.web.elements import card, empty, link_button, part, table, text
from fabrictime.web.tabs.jobs import flow_frames
from fabrictime.web.tabs.jobs.queries import NicProfile
from fabrictime.web.widgets import Cell, Chips, Row
from schemas.ids import host_of
from schemas.units import bps_text, counted


class NicPanel:
    """Shows one NIC. The panel calls `choose` with the choices of the tab that change."""

    def __init__(self, choose: Callable[..., None]) -> None:
        self._choose = choose

    def build(self) -> None:
        """Create the panel's elements."""
        with card("ft-job-nic"):
            with ui.element("div").classes("ft-head"):
                self.title = text("Queue pairs", "ft-title", test="nic-title")
                self.close = link_button("close", "nic-close", lambda: self._choose(nic=None, rank=None))
            self.hint = empty(
                "A click on a rank or a flow shows the queue pairs of its NIC with the delay of their data.",
                "nic-hint",
            )
            self.nic_part = part("nic")
            with self.nic_part:
                self.place = text("", "ft-note", test="nic-place")
                self.to = Chips(lambda job: self._choose(job=job)).props("data-testid=nic-links")
                self.note = text("", "ft-note", test="nic-note")
                self.counters = text("", "ft-detail", test="nic-counters")
                columns = [
                    ("queue_pair", "queue pair", "right"),
                    ("peer", "to", "left"),
                    ("p99", "p99", "right"),
                    ("mean", "mean", "right"),
                    ("max", "longest", "right"),
                    ("chunks", "chunks", "right"),
                    ("bytes", "data", "right"),
                    ("job", "job", "left"),
                ]
                cells = {"mean": _mean_cell}
                self.pairs = table(columns, "queue-pairs", lambda row: self._choose(job=row["job"]), cells)

    def show(self, nic: str | None, inventory_nic: Nic | None, job: str | None) -> None:
        """Show the NIC's rack and host, with links to its host, rack and jobs."""
        self.nic_part.set_visibility(nic is not None)
        self.hint.set_visibility(nic is None)
        self.close.set_visibility(nic is not None)
        self.title.set_text("Queue pairs" if nic is None else f"Queue pairs of {nic}")
        if nic is None:
            return
        place = [f"host {host_of(nic)}"]
        if inventory_nic is not None:
            place += [f"rack {inventory_nic.rack}"] if inventory_nic.rack else []
            place += [f"rail {inventory_nic.rail}"] if inventory_nic.rail is not None else []
            place += [bps_text(inventory_nic.speed_bps)] if inventory_nic.speed_bps else []
        self.place.set_text(", ".join(place))
        chips = [("host", "the host in the fabric", fabric_address(node=host_of(nic), job=job))]
        if inventory_nic is not None and inventory_nic.rack:
            chips.append(("rack", "its rack", fabric_address(rack=inventory_nic.rack)))
        chips.append(("all jobs", "all jobs on this NIC", jobs_address(nic=nic) if job else ""))
        self.to.put([chip for chip in chips if chip[2]])

    def show_profile(self, profile: NicProfile | None, error: str, past: bool) -> None:
        """Show the queue pairs and counters of the NIC. With `past`, they belong to a past interval."""
        pairs = profile.pairs if profile is not None else []
        self.pairs.put(flow_frames.queue_pair_rows(pairs))
        if profile is None:
            self.note.set_text(error or "Reading the log …")
            self.counters.set_text("")
            return
        when = "in this interval" if past else "in the last seconds"
        if not profile.jobs:
            note = "No job uses this NIC now."
        elif pairs:
            note = f"{counted(len(pairs), 'queue pair')} {when}, in-band: from post to completion"
        else:
            note = f"No queue pair of it was profiled {when}: load the queue-pair library into the job."
        self.note.set_text(error or note)
        self.counters.set_text(flow_frames.counters_text(profile.counters) if profile.processes else "")


def _mean_cell(row: Row) -> Cell:
    slow = row["mean_slow"]
    return [("ft-active" if slow else "", row["mean"], ""), ("ft-detail", slow, "")]
