"""Base class of the tabs that show the live state: header figures and banner come from the topics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fabrictime.state.fabric_state import FabricState, Part
from fabrictime.state.labels import arrow, kind_label
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.tabs.base import Tab, TabChoice
from schemas.records import LinkState
from schemas.units import bytes_text, count_text, counted, delay_text, seconds_text

KPIS: Final = (
    ("cables", "cables UP"),
    ("trouble", "cables not UP"),
    ("deepest", "deepest queue"),
    ("contention", "contention now"),
    ("alerts", "active alerts"),
    ("age", "newest record"),
)

FAST_PARTS: Final[frozenset[Part]] = frozenset({"queues", "paths", "flows"})
"""Parts that change ten times a second. The header shows them only twice a second, because each of its
changes makes the browser lay out the page."""


KINDS_NAMED: Final = 2


def kinds_text(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the kinds of records as text: those that fit below a figure, and the number of further kinds."""
    kinds = sorted({kind_label(record["kind"]) for record in records})
    more = len(kinds) - KINDS_NAMED
    return ", ".join(kinds[:KINDS_NAMED]) + (f", {more} more" if more > 0 else "")


class LiveTab(Tab[TabChoice]):
    """A tab whose content comes from the topics of the log."""

    @property
    def live(self) -> LiveFabric:
        """The live state. Only valid if the settings have a log address."""
        assert self.context.live is not None  # noqa: S101 - without it, no live callback runs
        return self.context.live

    @property
    def state(self) -> FabricState:
        """The fabric's state. Callers hold its lock while they read."""
        return self.live.state

    def start(self) -> None:
        """Do nothing: live tabs subscribe in `start_live`."""

    def show_first(self) -> None:
        """Show the present state and the banner once, before the browser has connected."""
        super().show_first()
        self._show_banner()

    @abstractmethod
    def on_live(self, parts: frozenset[Part]) -> None:
        """Redraw the elements that depend on the changed parts of the state."""

    def _on_live(self, parts: frozenset[Part]) -> None:
        super()._on_live(parts)
        if parts - FAST_PARTS:
            self._show_kpis()
        self.on_live(parts)

    def _show_kpis(self) -> None:
        summary, verdict = self.live.summary(), self.live.verdict()
        counts, windows, alerts = summary.cables, summary.contention, summary.active_alerts
        cable_count = sum(counts.values())
        trouble = {
            name: counts[name]
            for name in (LinkState.DOWN, LinkState.FLAPPING, LinkState.GREY)
            if counts[name]
        }
        fleet = (
            f"of {count_text(cable_count)}, {counted(summary.hosts, 'host')}, {counted(summary.nics, 'NIC')}"
        )
        is_known = cable_count > counts[LinkState.UNKNOWN] and not verdict.missing
        self._kpi("cables", count_text(counts[LinkState.UP]) if is_known else "—", fleet)
        by_state = [f"{count} {name}" for name, count in trouble.items()]
        by_state += [f"{counts[LinkState.UNKNOWN]} unknown"] if counts[LinkState.UNKNOWN] else []
        self._kpi_of_faults("trouble", sum(trouble.values()), ", ".join(by_state) or "no cable")
        if summary.deepest is None:
            self._kpi("deepest", "—", "no queue inferred yet")
        else:
            link, queue = summary.deepest
            delay = delay_text(queue.delay_ns(queue.mean_bytes))
            depth = bytes_text(queue.mean_bytes) if queue.rate_bps else delay
            slots = f"; slots {summary.fold} times as long: inference is slow" if summary.fold > 1 else ""
            self._kpi("deepest", depth, f"{arrow(link)}{slots}")
        self._kpi_of_faults("contention", len(windows), kinds_text(windows) or "no link")
        self._kpi_of_faults("alerts", len(alerts), kinds_text(alerts) or "none")

    def _kpi_of_faults(self, key: str, count: int, note: str) -> None:
        """Show a number of faults in the header. A 0 is shown as not known unless the evidence is fresh."""
        if count or self.live.verdict().is_fresh:
            self._kpi(key, count_text(count), note)
        else:
            self._kpi(key, "—", "not known")

    def _show_banner(self) -> None:
        if self.context.live is not None:
            self._show_kpis()
        message, kind, age = self._live_banner()
        self._kpi("age", age, "of any topic of the fabric")
        self._set_banner(message, kind)

    def _live_banner(self) -> tuple[str, str, str]:
        """Return the banner's text and kind, and the age of the newest record."""
        live = self.context.live
        if live is None:
            return "web.kafka is not set: the live tabs need the address of the log.", "bad", "—"
        status = live.status
        age_s = live.state.age_s(live.log_now_ns())
        age = "—" if age_s is None else seconds_text(age_s)
        if status.error is not None:
            return f"{status.error}. The page shows the last state.", "bad", age
        if status.missing:
            return f"Topics missing in the log: {', '.join(status.missing)}.", "bad", age
        if not live.state.nics and not len(live.state.cable_graph):
            return "No NICs yet: waiting for the first prober.", "wait", age
        if not status.caught_up:
            return "Reading the log …", "wait", age
        verdict = live.verdict()
        if verdict.missing:
            return f"{verdict.claim('')}. The page shows the last state.", "bad", age
        return "", "ok", age
