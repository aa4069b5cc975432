"""Alerts from link health: each cause once, raised and cleared."""

from __future__ import annotations

from dataclasses import replace

from schemas.records import AlertKind
from schemas.topics import LINK_HEALTH
from streams.runtime.detection import Detection
from tests.streams.alerts.script import (
    MS,
    SHIFT,
    T0,
    S,
    Script,
    access,
    book,
    cable,
    lines,
    play,
)


def test_a_dead_link_is_raised_once_and_cleared_once() -> None:
    script = Script().health(cable(1, 2), "DOWN").wait(10).health(cable(1, 2), "DOWN").wait(20)
    script.inputs[-1][2]["seq"] = 1  # type: ignore[index]  # told again, as every 10 s
    records = play(script.health(cable(1, 2), "UP").inputs)
    assert lines(records)[0] == ("LINK_DOWN", cable(1, 2), "RAISED")
    assert lines(records)[-1] == ("LINK_DOWN", cable(1, 2), "CLEARED")
    assert [r["state"] for r in records].count("CLEARED") == 1
    assert {r["alert_id"] for r in records} == {f"LINK_DOWN:{cable(1, 2)}:{T0 + SHIFT - 20 * MS}"}
    raised, cleared = records[0], records[-1]
    assert raised["severity"] == "CRITICAL"
    assert raised["evidence"] == [{
        "topic": LINK_HEALTH.name, "key": cable(1, 2), "at_ns": T0 + SHIFT, "text": f"{cable(1, 2)} is DOWN"
    }]  # fmt: skip
    assert cleared["cleared_ns"] == T0 + 30 * S + SHIFT - 20 * MS
    assert [r["update"] for r in records] == list(range(len(records)))


def test_a_dead_spine_is_one_alert_on_the_spine() -> None:
    script = Script()
    for leaf in (3, 1, 4, 2):
        script.health(cable(leaf, 2), "DOWN").wait(0.03)
    records = play(script.inputs, rest_s=5)
    assert lines(records) == [("LINK_DOWN", "spine2", "RAISED")]
    assert sorted(records[0]["grouped"]) == [cable(leaf, 2) for leaf in (1, 2, 3, 4)]
    assert records[0]["text"].startswith("spine2: 4 of its 4 cables are down since ")
    script.wait(5)
    for leaf in (3, 1, 4, 2):
        script.health(cable(leaf, 2), "UP").wait(0.5)
    assert lines(play(script.inputs)) == [
        ("LINK_DOWN", "spine2", "RAISED"),
        ("LINK_DOWN", "spine2", "CLEARED"),
    ]


def test_cables_that_follow_an_active_alert_join_it() -> None:
    script = Script().health(cable(1, 2), "DOWN").wait(0.5)
    for leaf in (2, 3, 4):
        script.health(cable(leaf, 2), "DOWN").wait(0.01)
    records = play(script.inputs, rest_s=5)
    assert {r["alert_id"] for r in records} == {f"LINK_DOWN:{cable(1, 2)}:{T0 + SHIFT - 20 * MS}"}
    assert set(records[-1]["grouped"]) == {cable(leaf, 2) for leaf in (2, 3, 4)}
    assert "spine2: 4 of its 4 cables" in records[-1]["text"]


def test_two_links_at_one_spine_are_two_alerts() -> None:
    script = Script().health(cable(1, 2), "DOWN").health(cable(3, 2), "DOWN")
    assert {r["subject"] for r in play(script.inputs, rest_s=5)} == {cable(1, 2), cable(3, 2)}


def test_a_dead_host_groups_its_nics_and_cables() -> None:
    script = Script().health(access(3), "DOWN", candidates=["h3/eth1"]).wait(3)
    script.health("h3", "DOWN", kind="HOST").wait(0.01).health("h3/eth2", "DOWN", kind="NIC").wait(4)
    records = play(script.inputs, rest_s=5)
    standing = {r["subject"]: r for r in records if r["state"] == "RAISED"} | {
        r["subject"]: None for r in records if r["state"] == "CLEARED"
    }
    assert standing[access(3)] is None
    assert standing["h3"]["grouped"] == ["h3/eth2", access(3)]
    assert set(standing["h3"]["nics"]) == {"h3/eth2", "h3/eth1"}
    script.forget("h3").forget(access(3)).forget("h3/eth2")
    last = play(script.inputs)[-1]
    assert (last["subject"], last["state"]) == ("h3", "CLEARED")
    assert "did not come back" in last["text"]


def test_a_host_that_dies_after_its_prober_fell_silent_is_one_alert() -> None:
    alerts = book()
    detection = Detection(AlertKind.AGENT, "h3", T0, T0, "the prober does not answer", nics=("h3/eth1",))
    found = [record for _, record in alerts.ingest_detection(detection)]
    script = Script().wait(2).health("h3", "DOWN", kind="HOST").wait(5)
    found += play(script.inputs, alerts, rest_s=2)
    later = replace(detection, at_ns=T0 + 4 * S, since_ns=T0 + 3 * S, nics=("h3/eth2",))
    found += [record for _, record in alerts.ingest_detection(later)]
    assert sorted(lines(found)) == [
        ("AGENT", "h3", "CLEARED"),
        ("AGENT", "h3", "RAISED"),
        ("HOST_DOWN", "h3", "RAISED"),
    ]
    assert [alert.partition(":")[0] for alert in alerts.open_ids()] == ["HOST_DOWN"]
    cleared = next(record for record in found if record["state"] == "CLEARED")
    assert cleared["text"] == "the prober does not answer; now HOST_DOWN"
    play(script.health("h3", "UP", kind="HOST").inputs[-1:], alerts, rest_s=300)
    again = replace(detection, at_ns=T0 + 400 * S, since_ns=T0 + 399 * S)
    assert lines([record for _, record in alerts.ingest_detection(again)]) == [("AGENT", "h3", "RAISED")]


def test_a_link_that_flaps_is_few_alerts_and_then_one() -> None:
    script = Script()
    for _ in range(12):
        script.health(cable(2, 3), "DOWN").wait(1)
        up = "FLAPPING" if len(script.flap_ns[cable(2, 3)]) > 8 else "UP"
        script.health(cable(2, 3), up).wait(15)
    records = play(script.inputs, rest_s=1)
    raised = [(r["kind"], r["raised_ns"]) for r in records if r["update"] == 0]
    assert [kind for kind, _ in raised].count("LINK_FLAPPING") == 1
    assert len(raised) <= 4  # holding it open grows with each flap
    script.health(cable(2, 3), "UP")
    assert lines(play(script.inputs))[-1] == ("LINK_FLAPPING", cable(2, 3), "CLEARED")


def test_a_lossy_link_is_critical_from_a_share_on_and_yields_to_its_death() -> None:
    records = play(Script().health(cable(1, 1), "GREY", loss=0.02).inputs)
    assert (records[0]["kind"], records[0]["severity"]) == ("LINK_GREY", "WARNING")
    script = Script().health(cable(1, 1), "GREY", loss=0.2).wait(5).health(cable(1, 1), "DOWN").wait(9)
    records = play(script.health(cable(1, 1), "UP").inputs)
    assert records[0]["severity"] == "CRITICAL"
    assert lines(records) == [
        ("LINK_GREY", cable(1, 1), "RAISED"),
        ("LINK_GREY", cable(1, 1), "CLEARED"),
        ("LINK_DOWN", cable(1, 1), "RAISED"),
        ("LINK_DOWN", cable(1, 1), "CLEARED"),
    ]


def test_a_lossy_link_is_stated_again_with_the_loss_rate_of_a_whole_window() -> None:
    script = Script().health(cable(1, 1), "GREY", loss=0.07)
    for loss in (0.1, 0.15, 0.2, 0.21, 0.19):
        script.wait(1).health(cable(1, 1), "GREY", loss=loss)
        script.inputs[-1][2]["since_ns"] = script.inputs[0][2]["since_ns"]
        script.inputs[-1][2]["text"] = f"loses {loss:.0%}"
    records = play(script.inputs)
    assert [(record["update"], record["text"]) for record in records[1:]] == [(1, "loses 15%")]


def test_a_loss_rate_that_doubles_is_stated_at_once() -> None:
    script = Script().health(cable(1, 1), "GREY", loss=0.025)
    for wait_s, loss in ((0.5, 0.04), (0.2, 0.2), (0.2, 0.19), (0.3, 0.22)):
        script.wait(wait_s).health(cable(1, 1), "GREY", loss=loss)
        script.inputs[-1][2]["since_ns"] = script.inputs[0][2]["since_ns"]
        script.inputs[-1][2]["text"] = f"loses {loss:.0%}"
    records = play(script.inputs)
    assert [(record["update"], record["text"]) for record in records[1:]] == [(1, "loses 20%")]


def test_losses_without_a_dead_link_and_blind_traces_are_alerts_of_their_own() -> None:
    set_a, set_b = [cable(1, 1), cable(1, 2)], [cable(1, 2), "h1/eth1"]
    script = Script().health("losses@fabric", "GREY", kind="PATHS", candidates=set_a).wait(1)
    script.health("losses@fabric", "GREY", kind="PATHS", candidates=set_b).wait(5)
    script.inputs[-1][2]["text"] = "another set"  # type: ignore[index]
    script.health("losses@fabric", "UP", kind="PATHS").wait(2)
    records = play(script.health("traces@fabric", "GREY", kind="TRACES").inputs)
    assert lines(records)[0] == ("UNEXPLAINED_LOSS", "losses@fabric", "RAISED")
    assert ("UNEXPLAINED_LOSS", "losses@fabric", "CLEARED") in lines(records)
    assert ("TRACING_BLIND", "traces@fabric", "RAISED") in lines(records)
    assert records[0]["links"] == set_a
    assert (records[1]["links"], records[1]["nics"]) == ([*set_a], ["h1/eth1"])
    assert records[1]["text"] == "another set"


def test_a_changed_dscp_is_an_alert_that_states_the_places() -> None:
    script = Script().health("classes@fabric", "GREY", kind="CLASSES", candidates=[cable(1, 1), "spine2"])
    records = play(script.wait(3).health("classes@fabric", "UP", kind="CLASSES").wait(5).inputs)
    assert lines(records)[0] == ("CLASS_REWRITTEN", "classes@fabric", "RAISED")
    assert records[0]["links"] == [cable(1, 1)]
    assert ("CLASS_REWRITTEN", "classes@fabric", "CLEARED") in lines(records)
