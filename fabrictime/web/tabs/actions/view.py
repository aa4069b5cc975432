"""The tab Actions: what was decided, why, what came of it, what was held back; and one flow in depth.

In: the process's `AppContext` and the tab's choices, which stand in its address. No query, no maths here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args
from urllib.parse import urlencode

from nicegui import ui
from nicegui.events import ValueChangeEventArguments

from fabrictime.state import action_entries
from fabrictime.state.action_entries import ActionEntry, Paces
from fabrictime.state.action_state import WATCHED_NS, SuppressedAction
from fabrictime.state.fabric_state import Part, cleared
from fabrictime.state.labels import arrow
from fabrictime.state.units import bps_text, count_text, delay_text
from fabrictime.web.addresses import fabric_address
from fabrictime.web.chart import LiveChart
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.rows import Cell, Row
from fabrictime.web.tabs.base import CSS, AppContext, card, part, replace_address, text, toggle
from fabrictime.web.tabs.fabric.queries import Around
from fabrictime.web.tabs.live_tab import LiveTab, empty, table
from fabrictime.web.widgets import Chips

Listed = Literal["all", "done", "not"]

LISTS: Final = {"all": "all", "done": "done", "not": "not done"}
SPANS: Final = {60: "1 min", 300: "5 min", 900: "15 min"}
LISTED: Final = 250
HELD_SHOWN: Final = 200
PACED_SHOWN: Final = 50
HINT: Final = "A click on a decision opens it: its flow, its cause, its effect."
QUICKEST_S: Final = 0.3
"""s between two drawings."""
KPIS: Final = (
    ("mode", "mode"),
    ("decided", "decisions, last hour"),
    ("done", "done"),
    ("held", "held back now"),
    ("moved", "moved within the minute"),
    ("age", "newest record"),
)


@dataclass(frozen=True, slots=True)
class ActionsChoice:
    """What a tab shows; wrong values in its address fall back to the defaults."""

    flow: str | None = None
    decision: str | None = None
    listed: Listed = "all"
    span: int = 300

    @staticmethod
    def parse(query: dict[str, str]) -> ActionsChoice:
        """Return the choice that an address's query stands for."""
        choice = ActionsChoice(flow=query.get("flow") or None, decision=query.get("decision") or None)
        if query.get("listed") in get_args(Listed):
            choice = replace(choice, listed=query["listed"])  # type: ignore[arg-type]
        span = query.get("span", "")
        return replace(choice, span=int(span)) if span.isdecimal() and int(span) in SPANS else choice

    def address(self) -> str:
        """Return the query that brings this choice back; defaults are left out."""
        default = asdict(ActionsChoice())
        return urlencode({k: v for k, v in asdict(self).items() if v is not None and v != default[k]})


class ActionsTab(LiveTab):
    """All decisions, and one flow with what was done to it."""

    address = "/actions"

    def __init__(self, site: AppContext, choice: ActionsChoice) -> None:
        super().__init__(site)
        self.choice = choice
        self._around_of = ""
        self._around: Around | None = None
        self._shown_s = 0.0

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Lay the page out inside the current client."""
        ui.add_css(CSS)
        with ui.element("div").classes("ft-page"), ui.element("div").classes("ft-screen ft-fabric-screen"):
            self._build_header(KPIS)
            self.mode = text("", "ft-mode", test="mode")
            with ui.element("main").classes("ft-fabric-grid ft-act-grid"):
                with ui.element("div").classes("ft-column"):
                    self._build_list()
                    with ui.element("div").classes("ft-act-below"):
                        self._build_held()
                        self._build_limits()
                with card("ft-panel"):
                    self._build_flow()
        ui.timer(0.5, self._show_banner)
        ui.timer(1.0, self._show)

    def _build_list(self) -> None:
        with card("ft-act-list"):
            with ui.element("div").classes("ft-head"):
                text("Decisions", "ft-title")
                self.filter = ui.input(
                    placeholder="flow", value=self.choice.flow or "", on_change=self._on_filter
                ).classes("ft-input")
                self.filter.props("dense borderless clearable debounce=300 data-testid=filter")
                toggle(LISTS, self.choice.listed, self._choose_list, "listed")
            self.note = text("", "ft-note", test="actions-note")
            self.empty = empty("", "actions-empty")
            self.table = table(
                [
                    ("at", "at (UTC)", "left"),
                    ("flow", "flow", "left"),
                    ("cause", "detected_by", "left"),
                    ("what", "what", "left"),
                    ("outcome", "outcome", "left"),
                    ("took", "took", "right"),
                    ("rate", "rate before → after", "right"),
                    ("delay", "round trip before → after", "right"),
                ],
                "actions",
                self._on_row,
                {"outcome": _outcome_cell},
            )

    def _build_held(self) -> None:
        with card("ft-act-list"):
            text("Held back now", "ft-title")
            self.held_note = text("", "ft-note", test="held-note")
            self.held_empty = empty("", "held-empty")
            self.held = table(
                [
                    ("flow", "flow", "left"),
                    ("what", "would", "left"),
                    ("reason", "detected_by", "left"),
                    ("why", "held back, since", "left"),
                ],
                "held",
                self._on_held,
            )

    def _build_limits(self) -> None:
        with card("ft-act-list"):
            text("Limits, paces, slices", "ft-title")
            self.limits = table(
                [("name", "of", "left"), ("what", "limit", "left"), ("used", "used", "right")], "limits"
            )
            self.paced_note = text("", "ft-note", test="paced-note")
            self.paced = table(
                [("flow", "paced flow", "left"), ("rate", "sends", "right"), ("limit", "held to", "right")],
                "paced",
                self._on_held,
            )
            self.slices = table(
                [
                    ("tenant", "tenant", "left"),
                    ("flows", "flows", "right"),
                    ("rate", "sends", "right"),
                    ("guarantee", "guarantee", "right"),
                    ("ceiling", "ceiling", "right"),
                ],
                "slices",
            )

    def _build_flow(self) -> None:
        self.nothing = empty(HINT, "act-nothing")
        self.part = part("act")
        with self.part:
            with ui.element("div").classes("ft-head"):
                self.title = text("", "ft-title", test="act-title")
                toggle(SPANS, self.choice.span, self._choose_span, "span")
            self.said = text("", "ft-said", test="act-text")
            self.picture_empty = empty("", "trail-empty")
            self.picture = LiveChart("trail", on_pick=self._choose_decision)
            self.picture.classes("ft-trail").props("data-testid=trail")
            self.figures = table([("name", "", "left"), ("value", "", "left")], "act-figures")
            self.links = Chips().props("data-testid=act-links")
            self.of_flow_title = text("", "ft-sub-title", test="of-flow-title")
            self.of_flow = table(
                [
                    ("at", "at (UTC)", "left"),
                    ("cause", "detected_by", "left"),
                    ("what", "what", "left"),
                    ("outcome", "outcome", "left"),
                ],
                "of-flow",
                self._on_row,
                {"outcome": _outcome_cell},
            )

    # ----------------------------------------------------------------------------------------------- choices

    def _choose(self, **changes: Any) -> None:
        self.choice = replace(self.choice, **changes)
        address = self.choice.address()
        replace_address(f"{self.address}?{address}" if address else self.address)
        self._show()

    def _choose_list(self, listed: Listed) -> None:
        self._choose(listed=listed)

    def _choose_span(self, span: int) -> None:
        self._choose(span=span)

    def _choose_decision(self, decision: str) -> None:
        self._choose(decision=decision)

    def _on_filter(self, event: ValueChangeEventArguments[Any]) -> None:
        self._choose(flow=str(event.value or "").strip() or None, decision=None)

    def _on_row(self, row: Row) -> None:
        self._choose(decision=row["id"])

    def _on_held(self, row: Row) -> None:
        self.filter.set_value(row["flow_id"])

    # ----------------------------------------------------------------------------------------------- filling

    def start_live(self) -> None:
        """Begin to follow the topics, or follow them again after the browser was away."""
        super().start_live()
        self.picture.resume()
        if self.site.live is None:
            self.part.set_visibility(False)
            self.mode.set_visibility(False)
        elif self.site.fabric is not None:
            self._follow("paces", ("paces",), self.site.fabric.paces, self._show_paces, 2.0)

    def on_live(self, parts: frozenset[Part]) -> None:
        """Take that these parts of the fabric's state changed."""
        if "acts" in parts and time.monotonic() - self._shown_s > QUICKEST_S:
            self._show()  # else, and what is held back, with the next tick

    def _show_kpis(self) -> None:
        """The header's figures are this tab's own; `_show` puts them there."""

    def _show(self) -> None:
        if self.site.live is None:
            return
        self._shown_s = time.monotonic()
        now_ns = self.live.now_ns()
        with self.state.lock:
            acts = self.state.acts
            every = action_entries.deeds(acts, now_ns)
            flow_id = action_entries.only(
                self.choice.flow, [*(d.flow_id for d in every), *acts.trail.flows()]
            )
            listed = [
                deed
                for deed in every
                if (self.choice.flow is None or action_entries.names(self.choice.flow, deed.flow_id))
                and (self.choice.listed == "all" or deed.done == (self.choice.listed == "done"))
            ]
            shown = action_entries.with_effects(listed, acts, now_ns, LISTED)
            chosen = self._find(every, shown, flow_id)
            if chosen is not None:
                flow_id = chosen.flow_id
                chosen = action_entries.with_effects([chosen], acts, now_ns)[0]
            elif self.choice.flow is not None:
                acts.trail.watch((flow_id or self.choice.flow).partition("/")[0], now_ns + WATCHED_NS)
            samples = [] if flow_id is None else acts.trail.of(flow_id)
            everything = acts.held()
            held = [
                each
                for each in everything
                if self.choice.flow is None or action_entries.names(self.choice.flow, each.flow_id)
            ]
            policies = {name: (shard.at_ns, shard.held is None) for name, shard in acts.shards.items()}
            used = action_entries.limits_used(acts, now_ns)
            mode, words, apart = acts.mode(), action_entries.mode_text(acts), acts.apart()
            alerts = [each for each in self.state.alerts.values() if not cleared(each)]
        self._show_mode(mode.act, words, bool(apart))
        self._show_figures(every, len(everything), used)
        self._show_list(every, listed, shown)
        self._show_held(held, policies, now_ns)
        self.limits.put(
            [
                {
                    "id": f"{each.name} {each.what}",
                    "name": each.name,
                    "what": each.what,
                    "used": f"{each.used:,} of {each.most:,}",
                }
                for each in used
            ]
        )
        self._show_flow(flow_id, chosen, [d for d in every if d.flow_id == flow_id], samples, alerts, now_ns)

    def _find(
        self, every: Sequence[ActionEntry], shown: Sequence[ActionEntry], flow_id: str | None
    ) -> ActionEntry | None:
        if self.choice.decision is not None:
            return next((deed for deed in every if deed.decision_id == self.choice.decision), None)
        if flow_id is not None:
            return next((deed for deed in every if deed.flow_id == flow_id), None)
        return shown[0] if shown else None

    def _show_mode(self, act: bool, words: str, apart: bool) -> None:
        self.mode.set_text(words)
        self.mode.classes(remove="ft-ok ft-wait", add="ft-ok" if act else "ft-wait")
        self._kpi("mode", "ACT" if act else "OBSERVE", "not everywhere" if apart else "everywhere")

    def _show_figures(self, every: list[ActionEntry], held: int, used: Sequence[action_entries.Used]) -> None:
        counted = action_entries.counts(every)
        reasons = {deed.kind for deed in every}
        self._kpi(
            "decided",
            count_text(len(every)),
            ", ".join(sorted(reason.lower() for reason in reasons)) or "nothing called for one",
        )
        done = sum(deed.done for deed in every)
        rest = {name: count for name, count in counted.items() if name not in action_entries.DONE}
        self._kpi("done", count_text(done), action_entries.counts_text(rest) or "all of them")
        self._kpi("held", count_text(held), "see below" if held else "nothing")
        shares = [each for each in used if each.what.startswith("flows")]
        if shares:
            most = max(shares, key=lambda each: each.share)
            self._kpi("moved", f"{most.used:,}", f"of {most.most:,} that may, {most.name}")
        else:
            self._kpi("moved", "—", "policy has not told of a round")

    def _show_list(
        self, every: Sequence[ActionEntry], listed: Sequence[ActionEntry], shown: Sequence[ActionEntry]
    ) -> None:
        self.empty.set_text(
            "No decision of this flow within the last hour."
            if self.choice.flow is not None
            else "No decision yet: one is made when a link of a flow's path dies or flows collide."
            if not every
            else "None of these."
        )
        self.empty.set_visibility(not shown)
        note = action_entries.counts_text(action_entries.counts(listed))
        if len(listed) > len(shown):
            note += f"; the newest {len(shown)} of {len(listed):,} are listed"
        self.note.set_text(note)
        self.table.put([action_entries.row(deed) for deed in shown])

    def _show_held(
        self, held: Sequence[SuppressedAction], policies: dict[str, tuple[int, bool]], now_ns: int
    ) -> None:
        note = ""
        late = [name for name, (at_ns, _) in policies.items() if now_ns - at_ns > 10 * action_entries.S]
        if late:
            note = f"policy of {', '.join(sorted(late))} was last heard of at " + action_entries.time_text(
                min(policies[name][0] for name in late)
            )
        elif len(held) > HELD_SHOWN:
            note = f"the longest {HELD_SHOWN} of {len(held):,}"
        self.held_note.set_text(note)
        self.held_empty.set_text(
            "Policy has not told of a round yet: whether anything is held back is not known."
            if not policies
            else "Not told yet."
            if all(unknown for _, unknown in policies.values())
            else "Nothing is held back."
        )
        self.held_empty.set_visibility(not held)
        self.held.put(
            [
                {
                    "id": f"{h.flow_id} {h.action} {h.cause} {h.reason}",
                    "flow": action_entries.flow_text(h.flow_id),
                    "flow_id": h.flow_id,
                    "what": action_entries.what_text(h),
                    "reason": action_entries.reason_of_held(h),
                    "why": f"{action_entries.WHYS.get(h.cause, h.cause)}, since {action_entries.time_text(h.since_ns)}",
                }
                for h in held[:HELD_SHOWN]
            ]
        )

    def _show_paces(self, snapshot: Snapshot[Paces]) -> None:
        found = snapshot.value
        if found is None:
            return
        self.paced_note.set_text(
            f"Paced: {count_text(len(found.paced))}" if found.paced else "No flow is paced."
        )
        self.paced.put(
            [
                {
                    "id": name,
                    "flow_id": name,
                    "flow": action_entries.flow_text(name),
                    "rate": bps_text(rate),
                    "limit": bps_text(limit),
                }
                for name, rate, limit in found.paced[:PACED_SHOWN]
            ]
        )
        self.slices.put(
            [
                {
                    "id": each.tenant,
                    "tenant": each.tenant,
                    "flows": count_text(each.flows),
                    "rate": bps_text(each.rate_bps),
                    "guarantee": bps_text(each.guarantee_bps),
                    "ceiling": "—" if each.ceiling_bps is None else bps_text(each.ceiling_bps),
                }
                for each in found.slices
            ]
        )

    # -------------------------------------------------------------------------------------------- one flow

    def _show_flow(
        self,
        flow_id: str | None,
        deed: ActionEntry | None,
        of_flow: list[ActionEntry],
        samples: Any,
        alerts: Any,
        now_ns: int,
    ) -> None:
        self.part.set_visibility(flow_id is not None)
        self.nothing.set_visibility(flow_id is None)
        if flow_id is None:
            asked = self.choice.flow or self.choice.decision
            self.nothing.set_text(
                HINT
                if asked is None
                else "That decision is no longer kept here; history has it."
                if self.choice.decision
                else f"{asked}: no one flow of which reports or decisions are here."
            )
            return
        self.title.set_text(action_entries.flow_text(flow_id))
        self.said.set_text(flow_id if deed is None else deed.text)
        frame = action_entries.trail_frame(
            samples, of_flow, flow_id, now_ns, self.choice.span * action_entries.S
        )
        self.picture_empty.set_text(
            ""
            if frame["t"]
            else "No reports of this flow from around then: flows are followed from their"
            " first decision on, while this page's process runs; history has the rest."
        )
        self.picture_empty.set_visibility(not frame["t"])
        self.picture.set_visibility(bool(frame["t"]))
        if frame["t"]:
            self.picture.show(lambda whole: frame)
        around = self._follow_around(deed)
        rows = [] if deed is None else action_entries.figures(deed)
        if around is not None and (around.before_ns, around.after_ns) != (None, None):
            rows.append(
                (
                    "probes over the links",
                    f"left {delay_text(around.before_ns)} before, took {delay_text(around.after_ns)} after",
                )
            )
        self.figures.put([{"id": name, "name": name, "value": value} for name, value in rows])
        links = [] if deed is None else action_entries.ways_on(deed.kind, deed.reason, alerts)
        if deed is not None:
            links += [
                (f"{word} {arrow(link)}", fabric_address(link=link))
                for word, found in (("left", deed.effect.left), ("took", deed.effect.took))
                for link in found[:4]
            ]
        self.links.put([(label, label, address) for label, address in links])
        self.of_flow_title.set_text(f"All decisions of this flow: {len(of_flow)}" if of_flow else "")
        self.of_flow.put([action_entries.row(each) for each in of_flow[:LISTED]])

    def _follow_around(self, deed: ActionEntry | None) -> Around | None:
        """Ask history what probes said of the links that the flow left and took; return what it answered."""
        questions = self.site.fabric
        moved = deed is not None and deed.done_ns is not None and bool(deed.effect.left or deed.effect.took)
        if deed is None or not moved or questions is None:
            if self._around_of:
                self._unfollow("around")
            self._around_of, self._around = "", None
            return None
        if self._around_of != deed.decision_id:
            self._around_of, self._around = deed.decision_id, None
            left, took, at_ns, done_ns = deed.effect.left, deed.effect.took, deed.at_ns, deed.done_ns or 0

            def show(snapshot: Snapshot[Around]) -> None:
                self._around = snapshot.value

            self._follow(
                "around",
                ("around", deed.decision_id, left, took),
                lambda: questions.around(left, took, at_ns, done_ns),
                show,
                3.0,
            )
        return self._around


def _outcome_cell(row: Row) -> Cell:
    return [(f"ft-outcome ft-{row['good']}", row["outcome"], row["words"])]
