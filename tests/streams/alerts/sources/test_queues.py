"""Alerts from contention: queues that persist, or the cause that they follow from."""

from __future__ import annotations

from schemas.topics import CONTENTION
from tests.streams.alerts.script import (
    SHIFT,
    T0,
    S,
    Script,
    cable,
    lines,
    play,
)


def test_a_queue_that_persists_is_one_alert_while_it_comes_and_goes() -> None:
    link = "spine1:swp1>leaf1:swp3"
    script = Script().queue(link, "OPENED", 0).wait(1).queue(link, "CLOSED", 0).wait(20)
    assert play(script.inputs) == []
    script.queue(link, "OPENED", 21).wait(6).queue(link, "UPDATED", 21).wait(1).queue(link, "CLOSED", 21)
    script.wait(2).queue(link, "OPENED", 30).wait(6).queue(link, "UPDATED", 30).queue(link, "CLOSED", 30)
    records = play(script.inputs)
    assert lines(records) == [("CONTENTION", link, "RAISED"), ("CONTENTION", link, "CLEARED")]
    assert records[0]["jobs"] == ["j1"]
    assert records[0]["raised_ns"] == T0 + 21 * S + SHIFT


def test_a_queue_that_policy_ends_is_no_alert_and_one_that_persists_is_raised_after_three_seconds() -> None:
    link = "leaf1:swp3>spine1:swp1"
    script = Script().queue(link, "OPENED", 0).wait(2).queue(link, "UPDATED", 0).queue(link, "CLOSED", 0)
    assert play(script.inputs) == []
    script.wait(10).queue(link, "OPENED", 12).wait(3).queue(link, "UPDATED", 12)
    assert lines(play(script.inputs, rest_s=1)) == [("CONTENTION", link, "RAISED")]


def test_queues_behind_a_dead_link_belong_to_its_alert() -> None:
    link, elsewhere = "leaf1:swp3>spine1:swp1", "leaf4:swp3>spine1:swp4"
    script = Script().health(cable(1, 2), "DOWN").wait(2)
    script.queue(link, "OPENED", 2).queue(elsewhere, "OPENED", 2).wait(6)
    script.queue(link, "UPDATED", 2).queue(elsewhere, "UPDATED", 2)
    records = play(script.inputs, rest_s=1)
    assert records[-1]["subject"] == elsewhere
    dead = [r for r in records if r["kind"] == "LINK_DOWN"][-1]
    assert dead["grouped"] == [link]
    assert dead["evidence"][-1]["topic"] == CONTENTION.name
    assert {r["subject"] for r in records} == {cable(1, 2), elsewhere}


def test_links_that_one_nic_stops_are_one_alert() -> None:
    root, up = "leaf1:swp1>h1:eth1", "spine1:swp1>leaf1:swp3"
    script = Script().queue(root, "OPENED", 0, "PAUSE_STORM", links=[up]).wait(6)
    script.queue(root, "UPDATED", 0, "PAUSE_STORM", links=[up]).queue(up, "UPDATED", 0, "PAUSE_STORM")
    records = play(script.inputs, rest_s=1)
    assert {r["subject"] for r in records} == {root}
    assert records[0]["severity"] == "CRITICAL"
