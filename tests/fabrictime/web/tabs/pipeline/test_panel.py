"""The pipeline panel shows each check with its colour, and rejects only where there are some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fabrictime.web.elements import READING
from fabrictime.web.tabs.pipeline.panel import PipelinePanel, RejectsPanel
from fabrictime.web.tabs.pipeline.queries import RejectRow
from tests.fabrictime.web.tabs.pipeline.test_health import HEALTHY, THROUGHPUT


@pytest.fixture
def panel(page_client: Any) -> PipelinePanel:
    made = PipelinePanel()
    made.build()
    return made


def test_the_worst_check_colours_the_title_and_recovery_clears_it(panel: PipelinePanel) -> None:
    assert panel.empty.text == READING
    panel.show(HEALTHY)
    assert (panel.worst.text, panel.empty.visible) == ("OK", False)
    built = len(panel._checks)
    panel.show(replace(HEALTHY, throughput_now=replace(THROUGHPUT, samples=0)))
    assert (panel.worst.text, "ft-bad" in panel.worst._classes) == ("BAD", True)
    light, name, _, sentence = panel._checks[0]
    assert (name.text, "ft-bad" in light._classes) == ("Samples", True)
    assert "No sample" in sentence.text
    panel.show(HEALTHY)
    assert "ft-bad" not in panel.worst._classes
    assert len(panel._checks) == built, "lines are changed, not added"


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
