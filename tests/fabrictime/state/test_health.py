"""One sentence on the fleet: nothing wrong, nothing measured, late evidence, or the worst problems."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state.evidence import CHECKING, Age, Source, Verdict, evaluate
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.freshness import HistoryAge
from fabrictime.state.health import MIN_QUEUE_NS, Overview, overview
from tests.fabrictime.fill import fill, fill_health
from tests.fabrictime.job_records import JobRecords
from tests.records import make

S = 1_000_000_000
LATE = evaluate({source: Age(14.0 if source is Source.PROBES else 0.1) for source in Source})


@pytest.fixture
def healthy(state: FabricState, fabric: Any) -> FabricState:
    """Return a state of 8 hosts whose 24 cables are UP."""
    fill(state, *fabric.fleet())
    for link in fabric.links()[::2]:
        fill_health(state, fabric, link, "UP")
    return state


def raise_alert(target: FabricState, fabric: Any, link: str, **fields: Any) -> None:
    alert = fabric.alert(fabric.cable(link), "it is dead", links=[link], **fields)
    fill_health(target, fabric, link, "GREY" if alert["kind"] == "LINK_GREY" else "DOWN")
    fill(target, ("fabric.alerts", alert["alert_id"], alert))


def of(state: FabricState, fabric: Any, evidence: Verdict = Verdict(), **more: Any) -> Overview:  # noqa: B008
    return overview(state, evidence, fabric.now_ns, **more)


def test_nothing_is_measured_yet(state: FabricState, fabric: Any) -> None:
    health = of(state, fabric, CHECKING).health
    assert (health.level, health.sentence) == (
        "wait",
        "Nothing is measured yet: no NIC has announced itself.",
    )


def test_the_first_evidence_is_being_checked(healthy: FabricState, fabric: Any) -> None:
    health = of(healthy, fabric, CHECKING).health
    assert (health.level, health.sentence) == (
        "wait",
        "8 NICs on 8 hosts are announced; the first measurements are being checked.",
    )


def test_nothing_is_wrong(healthy: FabricState, fabric: Any) -> None:
    health = of(healthy, fabric).health
    assert (health.level, health.consequence) == ("ok", "")
    assert health.sentence == "Nothing is wrong: 24 cables UP, 8 NICs on 8 hosts, no active alert."


def test_a_healthy_job_is_counted_and_an_unknown_one_is_not(healthy: FabricState, fabric: Any) -> None:
    for name, verdict in (("a", "HEALTHY"), ("b", "UNKNOWN")):
        record = JobRecords(fabric, name).diagnosis(1, fabric.now_ns, verdict=verdict)
        fill(healthy, ("fabric.diagnoses", name, record))
    view = of(healthy, fabric)
    assert ", 1 job without a fault," in view.health.sentence
    assert (view.fleet.jobs, view.fleet.healthy_jobs, view.slow_jobs) == (2, 1, [])


def test_late_evidence_is_never_health(healthy: FabricState, fabric: Any) -> None:
    health = of(healthy, fabric, LATE).health
    assert (health.level, health.sentence) == ("bad", "Health is not known now.")
    assert health.consequence == "Links and alerts are 14 s old; delays and clocks are current."
    assert health.cause == "no fresh probe results for 14 s (probers stopped?)"
    raise_alert(healthy, fabric, fabric.up("leaf1", 1))
    sentence = of(healthy, fabric, LATE).health.sentence
    assert sentence.startswith("Health is not known now. The last state had 1 problem: link down at leaf1")


def test_a_late_history_leaves_the_health_of_links_known(healthy: FabricState, fabric: Any) -> None:
    health = of(healthy, fabric, history=HistoryAge(14.0)).health
    assert health.level == "wait"
    assert health.sentence.startswith("Nothing is wrong")
    assert health.consequence == "Delays and clocks are 14 s old; links and alerts are current."


def test_the_worst_problems_are_named_with_their_jobs(healthy: FabricState, fabric: Any) -> None:
    raise_alert(healthy, fabric, fabric.up("leaf1", 1), severity="WARNING", kind="LINK_GREY", jobs=["a", "b"])
    health = of(healthy, fabric).health
    assert health.level == "warn"
    assert health.sentence == "1 problem: link loses packets at leaf1:swp3 ⇄ spine1:swp1, 2 jobs."
    raise_alert(healthy, fabric, fabric.up("leaf2", 2), jobs=["train"])
    raise_alert(healthy, fabric, fabric.up("leaf3", 3), severity="INFO")
    health = of(healthy, fabric).health
    assert health.level == "bad"
    assert health.sentence.startswith(
        "3 problems: link down at leaf2:swp4 ⇄ spine2:swp2, job train; link loses"
    )
    assert health.sentence.endswith("; and 1 more.")


def test_acknowledged_problems_are_nothing_new(healthy: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 1)
    raise_alert(healthy, fabric, link, raised_ns=S)
    note = make("AlertNote", subject=fabric.cable(link), scope="SUBJECT", acknowledged_ns=fabric.now_ns)
    fill(healthy, ("fabric.alert-notes", note["subject"], note))
    health = of(healthy, fabric).health
    assert health.level == "ok"
    assert health.sentence.startswith(
        "Nothing new is wrong: 1 problem acknowledged, silenced or in maintenance; 23 cables UP"
    )


def test_the_worst_queue_is_the_one_with_the_longest_delay(healthy: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 1)
    few_bytes = MIN_QUEUE_NS // 8 - 50  # at 1 Gbit/s, a byte takes 8 ns
    fill(healthy, ("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": float(few_bytes)}})))
    view = of(healthy, fabric)
    assert (view.worst_queue, view.queues) == (None, 1)
    window = fabric.contention(link, opened_ns=fabric.now_ns - 9 * S)
    fill(healthy, ("fabric.contention", link, window))  # the list of incidents names it
    persistent = of(healthy, fabric).worst_queue
    assert persistent is not None
    assert persistent[0] == link
    alert = fabric.alert(link, "queue", kind="CONTENTION", links=[link])
    fill(healthy, ("fabric.contention", link, window | {"state": "CLOSED"}))
    fill(healthy, ("fabric.alerts", alert["alert_id"], alert))  # active for a while after the queue has gone
    assert of(healthy, fabric).worst_queue is None
    fabric.now_ns += S
    fill(healthy, ("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": 9e4}})))
    worst = of(healthy, fabric).worst_queue
    assert worst is not None
    assert worst[0] == link


def test_an_incident_names_its_actions(healthy: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 1)
    raise_alert(healthy, fabric, link)
    view = of(healthy, fabric)
    assert view.done(view.incidents[0]) == "nothing: the mode is OBSERVE"
    decision = fabric.decision(1, fabric.flow(1, "h1/eth1", "h5/eth1"), f"{fabric.cable(link)}/1")
    fill(
        healthy,
        ("fabric.config", "*", fabric.config()),
        ("fabric.decisions", "h1", decision),
        ("fabric.actions", "h1", fabric.action(decision)),
    )
    view = of(healthy, fabric)
    assert view.done(view.incidents[0]) == "1 flow moved, within 12.0 ms"


def test_the_jobs_of_moved_flows_are_those_of_the_incident(healthy: FabricState, fabric: Any) -> None:
    link = fabric.up("leaf1", 1)
    raise_alert(healthy, fabric, link)
    flows = [fabric.flow(7, "h1/eth1", "h5/eth1", job="train"), fabric.flow(8, "h1/eth1", "h6/eth1", job="x")]
    decision = fabric.decision(1, flows[0], f"{fabric.cable(link)}/1")
    fill(
        healthy,
        ("fabric.flows", "h1", fabric.flows("h1", flows)),
        ("fabric.decisions", "h1", decision),
        ("fabric.actions", "h1", fabric.action(decision)),
    )
    assert of(healthy, fabric).incidents[0].jobs == ("train",)


def test_the_newest_cleared_alerts_come_first(healthy: FabricState, fabric: Any) -> None:
    for k, spine in enumerate((1, 2)):
        raise_alert(healthy, fabric, fabric.up("leaf1", spine), state="CLEARED", cleared_ns=(k + 1) * S)
    assert [alert["cleared_ns"] for alert in of(healthy, fabric).cleared] == [2 * S, S]
