"""The panel of a NIC: its place, its queue pairs, and why there are none."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state.cable_graph import Nic
from fabrictime.web.tabs.jobs.nic_panel import NicPanel
from fabrictime.web.tabs.jobs.queries import NicProfile, profile_of
from tests.fabrictime.job_records import JobRecords


@pytest.fixture
def panel(page_client: Any, choose: Any) -> NicPanel:
    made = NicPanel(choose)
    made.build()
    return made


def test_a_nic_has_its_place_and_leads_to_host_and_rack(panel: NicPanel) -> None:
    panel.show("h3/eth1", Nic("h3/eth1", "h3", "eth1", "r2", 1, 400 * 10**9), "llama")
    assert panel.place.text == "host h3, rack r2, rail 1, 400 Gbit/s"
    assert [chip[2] for chip in panel.to._shown] == [
        "/fabric?node=h3&job=llama",
        "/fabric?rack=r2",
        "/jobs?nic=h3%2Feth1",
    ]
    panel.show(None, None, None)
    assert (panel.hint.visible, panel.nic_part.visible) == (True, False)
    panel.show("h3/eth1", None, None)
    assert panel.place.text == "host h3"


def test_queue_pairs_are_shown_with_counters(panel: NicPanel, made: JobRecords, fabric: Any) -> None:
    profile = profile_of([made.batch(2, 1, fabric.now_ns)], "h3/eth1", ("llama",))
    panel.show_profile(profile, "", past=False)
    assert panel.note.text == "2 queue pairs in the last seconds, in-band: from post to completion"
    assert panel.counters.text == "1,204 CNPs received"
    assert [row["queue_pair"] for row in panel.pairs._shown] == ["202", "201"]


def test_missing_queue_pairs_have_a_reason(panel: NicPanel) -> None:
    for profile, error, start in (
        (None, "", "Reading the log"),
        (None, "the log does not answer", "the log does not answer"),
        (NicProfile(), "", "No job uses this NIC now."),
        (NicProfile(("llama",)), "", "No queue pair of it was profiled in this interval: load"),
    ):
        panel.show_profile(profile, error, past=True)
        assert panel.note.text.startswith(start)
        assert panel.pairs._shown == []
