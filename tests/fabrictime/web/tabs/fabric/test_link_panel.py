"""The panel of one cable: health, traffic and notes, with names that are never run."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state.evidence import Verdict
from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.fabric.link_panel import FLOWS_SHOWN, PATHS_SHOWN, LinkPanel
from fabrictime.web.tabs.fabric.queries import LinkTraffic, PathFigures
from tests.fabrictime.fill import fill, fill_health, number_of

S = 1_000_000_000


@pytest.fixture
def chosen() -> list[str | None]:
    return []


@pytest.fixture
def panel(page_client: Any, chosen: list[str | None]) -> LinkPanel:
    made = LinkPanel(lambda: None, chosen.append)
    made.build()
    return made


@pytest.fixture
def link(state: FabricState, fabric: Any) -> str:
    fill(state, *fabric.fleet())
    found: str = fabric.up("leaf1", 1)
    return found


def show(
    panel: LinkPanel, state: FabricState, fabric: Any, link: str, verdict: Verdict | None = None
) -> None:
    numbers = [number_of(state, each) for each in (link, fabric.back(link))]
    panel.show(state, link, numbers, fabric.now_ns, verdict or Verdict())


def test_an_unknown_link_is_named_and_shows_nothing(
    panel: LinkPanel, state: FabricState, fabric: Any, link: str
) -> None:
    show(panel, state, fabric, link)
    assert panel.link_part.visible
    panel.show(state, "leaf9:swp1>spine9:swp1", [], S, Verdict())
    assert panel.title.text == "leaf9:swp1 → spine9:swp1"
    assert panel.health.text.startswith("No path, health record or queue has this link now.")
    assert "search field" in panel.health.text
    assert not panel.link_part.visible


def test_a_cable_without_a_record_is_unknown_until_probes_cross_it(
    panel: LinkPanel, state: FabricState, fabric: Any, link: str
) -> None:
    show(panel, state, fabric, link)
    assert (panel.state.text, panel.health.text) == ("state unknown", "Its health is unknown.")
    assert (panel.minute.visible, panel.minute_empty.visible) == (False, True)
    queues = fabric.queues({link: {"depth_mean_bytes": 60_000.0}, fabric.back(link): {}})
    fill(state, ("fabric.queues", "fabric", queues))
    show(panel, state, fabric, link)
    assert (panel.state.text, panel.health.text) == ("UP", "Probes cross it; no trouble was detected.")
    assert (panel.minute.visible, panel.minute_empty.visible) == (True, False)
    assert "60.0\xa0kB" in panel.figures.text
    show(panel, state, fabric, link, Verdict(("no fresh probe results for 12 s",)))
    assert panel.health.text == "Health is not known: no fresh probe results for 12 s"


def test_a_dead_cable_has_its_text_its_alert_and_its_aliased_links(
    panel: LinkPanel, state: FabricState, fabric: Any, link: str
) -> None:
    other = fabric.cable(fabric.up("leaf2", 1))
    fill_health(state, fabric, link, "DOWN", candidates=[other], text="it is <b>DOWN</b>")
    alert = fabric.alert(fabric.cable(link), "down <script>")
    fill(state, ("fabric.alerts", alert["alert_id"], alert))
    show(panel, state, fabric, link)
    assert (panel.state.text, panel.health.text) == ("DOWN", "it is <b>DOWN</b>")
    assert "down &lt;script&gt;" in panel.notes.text
    assert "May be leaf2:swp3 ⇄ spine1:swp2 instead" in panel.notes.text


def test_the_past_hour_counts_losses_and_paths(
    panel: LinkPanel, state: FabricState, fabric: Any, link: str
) -> None:
    number = number_of(state, link)
    panel.show_hour(state, number, fabric.now_ns)
    assert panel.hour_note.text == "No change of state is known."
    loss = {"loss_rate": 0.02, "loss_rate_low": 0.01, "loss_rate_high": 0.03}
    fill_health(
        state, fabric, link, "GREY", flaps_hour=1, flaps_total=7, paths_dead=2, paths_living=9, **loss
    )
    panel.show_hour(state, number, fabric.now_ns)
    assert panel.hour_note.text == (
        "once down within the past hour, 7 in total; loses 2% (1% to 3%); 2 paths dead, 9 living"
    )
    rates = {"loss_rate": 0.02, "loss_rate_low": 0.01, "loss_rate_high": 0.03}
    classes = [{"dscp": 0, **rates, "is_lossy": False}, {"dscp": 26, **rates, "is_lossy": True}]
    fill_health(state, fabric, link, "GREY", seq=2, classes=classes, **loss)
    panel.show_hour(state, number, fabric.now_ns)
    assert "loses 2% (1% to 3%) of DSCP 26, not of DSCP 0;" in panel.hour_note.text


def test_a_thousand_paths_and_flows_are_cut_and_counted(
    panel: LinkPanel, fabric: Any, chosen: list[str | None]
) -> None:
    paths = [PathFigures("h1/eth1", "h2/eth1", port, False, 1e3, 2e3, 50.0, 1, 99) for port in range(1000)]
    flows = [fabric.flow(number, "h1/eth1", "h2/eth1", job="train") for number in range(1000)]
    panel.show_traffic(LinkTraffic(paths, 1000, 30, flows, 8e10, {"train": 8e10}))
    assert panel.paths_title.text == "Paths over it: 1,000 of 30 pairs"
    assert len(panel.paths.state()["rows"]) == PATHS_SHOWN
    assert panel.paths.state()["rows"][0][1] == ["h1/eth1 → h2/eth1", "0", "1.00 µs", "2.00 µs", "1 of 100"]
    assert panel.flows_title.text == "Flows over it: 1,000, 80.0 Gbit/s"
    assert len(panel.flows.state()["rows"]) == FLOWS_SHOWN
    panel._on_flow_row(panel.flows._shown[0])
    assert chosen == ["train"]


def test_a_link_without_traffic_is_labelled_so(panel: LinkPanel) -> None:
    panel.show_traffic(LinkTraffic([], 0, 0, [], 0.0, {}, trouble="history at h does not answer"))
    assert panel.paths_note.text == "no delays: history at h does not answer"
    assert (panel.flows_title.text, panel.flows_empty.visible) == ("Flows over it", True)
