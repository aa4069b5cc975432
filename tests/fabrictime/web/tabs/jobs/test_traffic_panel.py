"""The panel of traffic: list or matrix, one flow with its links, links of the job."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.jobs import flow_frames
from fabrictime.web.tabs.jobs.traffic_panel import TrafficPanel


@pytest.fixture
def panel(page_client: Any, choose: Any) -> TrafficPanel:
    made = TrafficPanel(choose)
    made.build("list", "rate")
    made.build_links()
    return made


def test_a_list_can_be_limited_to_a_nic(panel: TrafficPanel, record: Any) -> None:
    panel.show("llama", record["flows"], "list", "rate", None, None)
    assert panel.note.text == "8 pairs of NICs"
    assert panel.filter._shown == []
    panel.show("llama", record["flows"], "list", "rate", "h3/eth1", None)
    assert [row["id"] for row in panel.list._shown] == ["h3/eth1>h4/eth1", "h2/eth1>h3/eth1"]
    assert panel.filter._shown == [("h3/eth1", "only h3/eth1 ✕", "")]


def test_a_cell_of_the_matrix_is_a_flow(panel: TrafficPanel, record: Any, choices: list[Any]) -> None:
    panel.show("llama", record["flows"], "matrix", "data", None, None)
    assert panel.note.text == "8 NICs; a click opens the flow"
    assert (panel.list_part.visible, panel.matrix_part.visible) == (False, True)
    panel._on_cell(2, 3)
    panel._on_cell(99, 3)
    assert choices == [{"flow": "h3/eth1>h4/eth1"}]


def test_a_flow_leads_to_each_of_its_links(
    panel: TrafficPanel, record: Any, state: FabricState, fabric: Any
) -> None:
    panel.show("llama", record["flows"], "list", "rate", None, None)
    flow = next(each for each in record["flows"] if each["nic"] == "h3/eth1")
    panel.show_flow(flow, state, fabric.now_ns)
    assert panel.title.text == "h3/eth1 → h4/eth1"
    assert [chip[0] for chip in panel.route._shown] == flow["links"]
    assert all(chip[2].startswith("/fabric?link=") for chip in panel.route._shown)
    panel.show_flow(None, state, fabric.now_ns)
    assert not panel.flow_part.visible


def test_links_are_listed_or_their_absence_is_stated(
    panel: TrafficPanel, record: Any, state: FabricState, fabric: Any
) -> None:
    rows = flow_frames.link_rows(state, record["flows"], record["links"], fabric.now_ns)
    panel.show_links(rows, "llama")
    assert panel.map._shown == [("map", "show all in the fabric", "/fabric?job=llama")]
    panel.show_links([], "llama")
    assert panel.links_empty.visible
    panel.show("llama", [], "list", "rate", None, None)
    assert panel.empty.text.startswith("No flow of this job is known")
