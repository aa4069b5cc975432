"""The panel of ranks: bars or a heat map, and the chosen rank with its NIC."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.web.tabs.jobs.rank_panel import RankPanel
from tests.fabrictime.job_records import JobRecords


@pytest.fixture
def panel(page_client: Any, choose: Any) -> RankPanel:
    made = RankPanel(choose)
    made.build("bars", "")
    return made


def test_bars_name_their_order_and_a_rank_its_nic(panel: RankPanel, record: Any, choices: list[Any]) -> None:
    panel.show(record, "bars", "", 2)
    assert panel.note.text == "8 ranks, most network late first; a click on a rank shows its flows"
    assert (panel.bars_part.visible, panel.map_part.visible, panel.rank_part.visible) == (True, False, True)
    assert panel.title.text == "Rank 2 on h3"
    assert panel.nic._shown == [("h3/eth1", "queue pairs of h3/eth1", "")]
    panel._on_pick("5")
    assert choices == [{"rank": 5}]


def test_a_thousand_ranks_are_bars_of_some_or_a_heat_map_of_all(panel: RankPanel, fabric: Any) -> None:
    record = JobRecords(fabric, ranks=1_000).diagnosis(1, fabric.now_ns)
    panel.show(record, "bars", "peer_late_ns", None)
    assert panel.note.text.startswith("24 of 1,000 ranks, most peer late first")
    panel.show(record, "map", "rank", None)
    assert panel.note.text.startswith("1,000 ranks, by number; a column is a rank")
    assert (panel.bars_part.visible, panel.map_part.visible) == (False, True)


def test_without_a_split_the_panel_states_why(panel: RankPanel, record: Any) -> None:
    panel.show(None, "bars", "", None)
    assert panel.empty.text == "This interval is no longer in memory."
    panel.show({**record, "time_splits": []}, "bars", "", 2)
    assert panel.empty.text == "No rank reported the split of its time in this interval."
    assert not panel.rank_part.visible
