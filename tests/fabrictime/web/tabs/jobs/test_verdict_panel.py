"""The panel of a verdict: its text, remedy and evidence, or that there is none."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.web.tabs.jobs.verdict_panel import VerdictPanel


@pytest.fixture
def panel(page_client: Any, choose: Any) -> VerdictPanel:
    made = VerdictPanel(choose)
    made.build()
    return made


def test_a_verdict_stands_with_its_evidence_and_remedy(panel: VerdictPanel, record: Any, fabric: Any) -> None:
    panel.show("llama", record, fabric.now_ns)
    assert (panel.title.text, panel.pill.text) == ("llama", "slow flow")
    assert panel.text.text.startswith("h3/eth1 to h4/eth1 takes 94 µs")
    assert panel.remedy.text == "Remedy: move the flow to another path, or pace batch-b"
    assert "ft-kind-network" in panel.pill.classes
    assert [row["measured"] for row in panel.evidence._shown] == ["94.0 µs"]
    assert panel.alternatives_part.visible
    assert panel.missing.text == "<p>not known: no CE marks: probes do not carry ECN</p>"


def test_a_healthy_job_has_no_other_explanations(panel: VerdictPanel, record: Any, fabric: Any) -> None:
    panel.show("llama", {**record, "verdict": "HEALTHY", "blames_network": False}, fabric.now_ns)
    assert not panel.alternatives_part.visible


def test_without_a_diagnosis_nothing_of_the_last_one_stays(
    panel: VerdictPanel, record: Any, fabric: Any
) -> None:
    panel.show("llama", record, fabric.now_ns)
    panel.show("other", None, fabric.now_ns)
    assert panel.text.text == "No diagnosis of this job and interval is in memory."
    assert panel.pill.text == panel.remedy.text == panel.missing.text == ""
    assert panel.evidence._shown == panel.figures._shown == panel.subjects._shown == []
    assert not panel.alternatives_part.visible
