"""The panel of one flow: its entry, its decisions, probe delays over the links that a move left and took."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.state import action_entries
from fabrictime.state.action_entries import ActionEntry
from fabrictime.state.action_state import ActionState
from fabrictime.state.flow_history import Effect, Sample
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.actions.flow_panel import ENTRIES_SHOWN, HINT, FlowPanel
from fabrictime.web.tabs.actions.view import SPANS, ActionsChoice
from fabrictime.web.tabs.fabric.queries import MoveDelays
from schemas.topics import ACTIONS, DECISIONS

S = 1_000_000_000
FLOW = "h1/boot/sock:1"


class Tab:
    """A tab that records what the panel follows."""

    def __init__(self) -> None:
        self.choice = ActionsChoice()
        self.context = SimpleNamespace(links=SimpleNamespace(move_delays=lambda *ends: ends))
        self.followed: dict[str, Any] = {}

    def choose(self, **choice: Any) -> None:
        self.choice = replace(self.choice, **choice)

    def on_entry_row(self, row: Any) -> None:
        self.choose(decision=row["id"])

    def follow(self, slot: str, query: Any, arguments: Any, callback: Any, period_s: float) -> None:
        self.followed[slot] = (query, arguments, callback)

    def unfollow(self, slot: str) -> None:
        del self.followed[slot]


@pytest.fixture
def tab() -> Tab:
    return Tab()


@pytest.fixture
def panel(page_client: Any, tab: Tab) -> FlowPanel:
    made = FlowPanel(tab)  # type: ignore[arg-type]
    made.build(SPANS, tab.choice.span)
    return made


def entries(fabric: Any, count: int) -> list[ActionEntry]:
    actions = ActionState(lambda value: {})
    for seq in range(count):
        decision = fabric.decision(seq, fabric.flow(1, "h1/eth1", "h5/eth1"), "leaf1:a<>spine1:b/3")
        actions.take(DECISIONS.name, "h1", decision)
        actions.take(ACTIONS.name, "h1", fabric.action(decision))
    return action_entries.entries(actions, fabric.now_ns)


def test_without_a_flow_the_panel_explains_how_to_choose_one(panel: FlowPanel, tab: Tab) -> None:
    panel.show(None, None, [], [], [], S)
    assert (panel.nothing.text, panel.part.visible) == (HINT, False)
    tab.choose(flow="h9")
    panel.show(None, None, [], [], [], S)
    assert panel.nothing.text.startswith("h9: no reports or decisions")
    tab.choose(decision="fabric/7/0")
    panel.show(None, None, [], [], [], S)
    assert panel.nothing.text.startswith("This decision is no longer in memory")


def test_a_flow_without_reports_has_a_reason_instead_of_a_chart(panel: FlowPanel) -> None:
    panel.show(FLOW, None, [], [], [], S)
    assert (panel.title.text, panel.detail.text) == ("h1 sock:1", FLOW)
    assert (panel.chart.visible, panel.of_flow_title.text) == (False, "")
    assert panel.chart_empty.text.startswith("No reports of this flow in this span.")


def test_a_thousand_decisions_about_a_flow_are_counted_and_cut(panel: FlowPanel, fabric: Any) -> None:
    many = entries(fabric, 1000)
    samples = [Sample(fabric.now_ns - S, fabric.now_ns, 5e6, 1000, 1, None, ())]
    panel.show(FLOW, many[0], many, samples, [], fabric.now_ns)
    assert panel.of_flow_title.text == "All decisions about this flow: 1000"
    assert len(panel.of_flow.state()["rows"]) == ENTRIES_SHOWN
    assert panel.chart.visible
    assert ["cause", ["cause", "leaf1:a ⇄ spine1:b is down"]] in panel.figures.state()["rows"]


def test_probe_delays_of_a_move_are_followed_until_another_entry_is_chosen(
    panel: FlowPanel, tab: Tab, fabric: Any
) -> None:
    [still] = entries(fabric, 1)
    moved = replace(still, effect=Effect(None, None, None, None, ("a>b",), ("c>d",)))
    panel.show(FLOW, moved, [], [], [], fabric.now_ns)
    query, arguments, answer = tab.followed["move"]
    assert query == tab.context.links.move_delays
    assert arguments == (("a>b",), ("c>d",), moved.at_ns, moved.done_ns)
    answer(Snapshot(MoveDelays(40_000.0, None)))
    panel.show(FLOW, moved, [], [], [], fabric.now_ns)
    rows = dict(row[1] for row in panel.figures.state()["rows"])
    assert rows["probe delay"] == "links left 40.0 µs before, links taken — after"
    assert [chip[0] for chip in panel.links.state()["chips"]][-2:] == ["left a → b", "taken c → d"]
    panel.show(FLOW, still, [], [], [], fabric.now_ns)
    assert tab.followed == {}
