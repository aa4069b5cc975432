"""What the tabs of the fabric share: header figures and banner from the live feed, not from history.

In: the process's `AppContext`. Out: `LiveTab`, which the tabs Fabric, Contention and Alerts fill.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fabrictime.state.fabric_state import FabricState, Part
from fabrictime.state.units import bytes_text, count_text, counted, delay_text, seconds_text
from fabrictime.web.live_fabric import LiveFabric
from fabrictime.web.rows import Cell, LiveTable, Row
from fabrictime.web.tabs.base import Tab, text
from fabrictime.web.widgets import LiveText

KPIS: Final = (
    ("cables", "cables UP"),
    ("trouble", "in trouble"),
    ("deepest", "deepest queue"),
    ("contention", "contention now"),
    ("standing", "standing alerts"),
    ("age", "newest record"),
)

FLEETING: Final[frozenset[Part]] = frozenset({"queues", "paths", "flows"})
"""What changes ten times a second: the header follows it twice a second, since every new word in it has the
browser go through the whole page."""


class LiveTab(Tab):
    """A tab that is filled from the topics."""

    @property
    def live(self) -> LiveFabric:
        """The live state; only where there is one."""
        assert self.site.live is not None  # noqa: S101 - `start_live` calls nobody without one
        return self.site.live

    @property
    def state(self) -> FabricState:
        """The fabric's state; read under its lock."""
        return self.live.state

    def start(self) -> None:
        """Begin to follow: what comes from the topics begins with `start_live`."""

    @abstractmethod
    def on_live(self, parts: frozenset[Part]) -> None:
        """Take that these parts of the fabric's state changed."""

    def _on_live(self, parts: frozenset[Part]) -> None:
        super()._on_live(parts)
        if parts - FLEETING:
            self._show_kpis()
        self.on_live(parts)

    def _show_kpis(self) -> None:
        seen = self.live.summary()
        counts, opened, standing = seen.cables, seen.contention, seen.standing
        known = sum(counts.values())
        trouble = {name: counts[name] for name in ("DOWN", "FLAPPING", "GREY") if counts[name]}
        fleet = f"of {count_text(known)}, {counted(seen.hosts, 'host')}, {counted(seen.nics, 'NIC')}"
        self._kpi("cables", count_text(counts["UP"]) if known else "—", fleet)
        self._kpi(
            "trouble",
            count_text(sum(trouble.values())),
            ", ".join(f"{count} {name}" for name, count in trouble.items())
            or (f"{counts['UNKNOWN']} without a verdict yet" if counts["UNKNOWN"] else "no cable"),
        )
        if seen.deepest is None:
            self._kpi("deepest", "—", "no queue is told")
        else:
            link, told = seen.deepest
            delay = delay_text(told.delay_ns(told.mean_bytes))
            self._kpi(
                "deepest", bytes_text(told.mean_bytes) if told.rate_bps else delay, f"{delay} at {link}"
            )
        self._kpi(
            "contention",
            count_text(len(opened)),
            ", ".join(sorted({each["kind"].lower().replace("_", " ") for each in opened})) or "no link",
        )
        self._kpi(
            "standing",
            count_text(len(standing)),
            standing[0]["text"] if standing else "nothing to be told",
        )

    def _show_banner(self) -> None:
        live = self.site.live
        if live is not None:
            self._show_kpis()
        said, kind, age = "", "ok", "—"
        if live is None:
            said = "page.bootstrap is not set: this page does not know the log from which the fabric is read."
            kind = "bad"
        else:
            status = live.status
            newest_ns = max(live.state.append_ns.values(), default=0)
            if newest_ns:
                age = seconds_text((live.now_ns() - newest_ns) / 1e9)
            if status.error is not None:
                said, kind = f"{status.error}. What you see is the last state.", "bad"
            elif status.missing:
                said, kind = f"Topics that the log does not have: {', '.join(status.missing)}.", "bad"
            elif not live.state.nics and not len(live.state.cable_graph):
                said, kind = "No NICs yet: waiting for a prober to announce itself.", "wait"
            elif not status.caught_up:
                said, kind = "Reading what the log keeps …", "wait"
        self._kpi("age", age, "of any topic of the fabric")
        self.banner.set_text(said)
        self.banner.set_visibility(bool(said))
        self.banner.classes(remove="ft-wait ft-bad", add=f"ft-{kind}")
        self.light.classes(remove="ft-wait ft-bad ft-ok", add=f"ft-{kind}")


def table(
    columns: Sequence[tuple[str, str, str]],
    test: str,
    on_pick: Callable[[Row], None] | None = None,
    cells: Mapping[str, Callable[[Row], Cell]] | None = None,
) -> LiveTable:
    """Return a table of (name, label, align); a column named `state` shows it in its colour."""
    made = LiveTable(columns, {"state": _state_cell, **(cells or {})}, on_pick)
    return made.classes("ft-table ft-list").props(f"data-testid={test}")


def _state_cell(row: Row) -> Cell:
    return [(f"ft-pill ft-{row['state']}", row["state"], "")]


def empty(words: str, test: str) -> LiveText:
    """Return a line that says what is needed where there is nothing yet."""
    return text(words, "ft-nothing", test=test)
