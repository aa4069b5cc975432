"""The pipeline panel shows each check with its colour, and rejects only where there are some."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from fabrictime.web.elements import READING
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.settings import WebSettings
from fabrictime.web.tabs.base import AppContext
from fabrictime.web.tabs.delays.queries import Fleet
from fabrictime.web.tabs.pipeline.panel import PipelinePanel, RejectsPanel
from fabrictime.web.tabs.pipeline.queries import RejectRow
from fabrictime.web.tabs.pipeline.view import PipelineChoice, PipelineTab
from tests.fabrictime.web.tabs.pipeline.test_health import FRESH, HEALTHY, THROUGHPUT


@pytest.fixture
def panel(page_client: Any) -> PipelinePanel:
    made = PipelinePanel()
    made.build()
    return made


def test_the_worst_check_colours_the_title_and_recovery_clears_it(panel: PipelinePanel) -> None:
    assert panel.empty.text == READING
    panel.show(HEALTHY, FRESH)
    assert (panel.worst.text, panel.empty.visible) == ("OK", False)
    built = len(panel._checks)
    panel.show(replace(HEALTHY, throughput_now=replace(THROUGHPUT, samples=0)), FRESH)
    assert (panel.worst.text, "ft-bad" in panel.worst._classes) == ("BAD", True)
    light, name, _, sentence = panel._checks[0]
    assert (name.text, "ft-bad" in light._classes) == ("Samples", True)
    assert "No sample" in sentence.text
    panel.show(HEALTHY, FRESH)
    assert "ft-bad" not in panel.worst._classes
    assert len(panel._checks) == built, "lines are changed, not added"


def test_header_and_check_state_one_age_of_the_data(page_client: Any) -> None:
    """However long ago the checks or the header were queried."""
    tab = PipelineTab(AppContext(WebSettings(), None, None), PipelineChoice())  # type: ignore[arg-type]
    tab.build()
    now_s = time.monotonic()
    fleet = Fleet([], 8, 1e4, [], 0.6, 0.5)
    tab._on_health(Snapshot(HEALTHY, 1, answered_s=now_s))
    for age_s, text in ((600.0, "10 min"), (7200.0, "2 h")):
        tab._on_fleet(Snapshot(fleet, 1, answered_s=now_s - age_s))
        check = next(line for line in tab.panel._checks if line[1].text == "Data age")
        assert tab.kpis["age"][0].text == check[2].text == text
        assert f"the newest clocks are {text} old" in check[3].text


def test_rejects_are_hidden_until_there_is_one(page_client: Any) -> None:
    panel = RejectsPanel()
    panel.build()
    panel.show([])
    assert not panel.card.visible
    reject = RejectRow(1_760_000_000_000_000_000, "fabric.probes", 3, 17, "map", "BAD_RECORD", "<b>", 12_345)
    panel.show([reject] * 1000)
    assert panel.card.visible
    assert panel.note.text == "1,000 in the last day, newest first"
    shown = panel.table.rows[0]
    assert (shown["at"], shown["position"], shown["size"]) == (
        "10-09 08:53:20",
        "fabric.probes/3 @ 17",
        "12.3k B",
    )
