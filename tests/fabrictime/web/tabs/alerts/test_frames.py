"""Order of alerts and their evidence."""

from __future__ import annotations

from typing import Any

from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.alerts import frames as alert_frames
from schemas.topics import ALERT_NOTES
from tests.actuators.notify.alerts import note

S = 1_000_000_000


def test_alerts_are_ordered_by_urgency(fabric: Any) -> None:
    def alert(name: str, raised: int, **fields: Any) -> dict[str, Any]:
        return fabric.alert(name, name, raised_ns=raised, **fields)

    given = [
        alert("cleared", 9, state="CLEARED", cleared_ns=10),
        alert("warning", 8, severity="WARNING"),
        alert("critical", 1),
        alert("newer critical", 2),
    ]
    names = [each["text"] for each in alert_frames.ordered(given)]
    assert names == ["newer critical", "critical", "warning", "cleared"]
    link = fabric.up("leaf1", 1)
    links = alert_frames.related_links(alert("x", 1, links=[link, fabric.back(link)], jobs=["llm"]))
    assert [label for label, _ in links] == ["leaf1:swp3 → spine1:swp1 in the fabric", "job llm"]
    assert links[0][1] == "/fabric?link=leaf1%3Aswp3%3Espine1%3Aswp1"


def test_an_alert_about_a_host_leads_to_the_host(fabric: Any) -> None:
    links = [link for link in fabric.links() if link.startswith("h1:")]
    fields = {"kind": "HOST_DOWN", "links": links, "nics": ["h1/eth1"]}
    assert alert_frames.related_links(fabric.alert("h1", "h1 is down", **fields)) == [
        ("h1 in the fabric", "/fabric?node=h1")
    ]


def test_evidence_is_the_record_with_its_time_else_the_nearest_of_its_nic() -> None:
    found = [
        (100, {"nic": "h1/eth1", "evaluated_ns": 7}),
        (205, {"nic": "h2/eth1"}),
        (230, {"nic": "h3/eth1"}),
        (400, {"nic": "h1/eth1", "evaluated_ns": 200}),
    ]
    assert alert_frames.nearest(found, 200, "h3/eth1 lost 8") == found[3]
    assert alert_frames.nearest(found[:3], 200, "h3/eth1 lost 8") == found[2]
    assert alert_frames.nearest(found[:3], 200, "another NIC lost 8") == found[1]
    assert alert_frames.nearest([], 200, "") is None


def test_notes_of_operators_are_rows_of_an_alert(fabric: Any) -> None:
    state = FabricState(lambda value: None)
    alert = fabric.alert("h1/eth0 is down", "h1/eth0", raised_ns=5)
    comment = {"at_ns": 7, "author": "ana@h", "text": "new optics"}
    record = note("h1/eth0", acknowledged_ns=9, owner="ana", comments=[comment])
    assert alert_frames.note_rows(state.notes, alert, 10) == []
    assert state.take(ALERT_NOTES.name, "h1/eth0", record, 1) == "alerts"
    alert = {**alert, "subject": "h1/eth0"}
    assert alert_frames.note_rows(state.notes, alert, 10) == [
        ("operators", "acknowledged, owner ana"),
        ("comments", "ana@h: new optics"),
    ]
    state.take(ALERT_NOTES.name, "h1/eth0", None, 2)
    assert alert_frames.note_rows(state.notes, alert, 10) == []
