"""NICs that no peer measures are named; a lone NIC, a dead one and one that has started are not."""

from __future__ import annotations

from schemas.records import AlertKind, LinkEvent, Nic
from streams.alerts.rules import NEVER_NS
from streams.alerts.unmeasured import UnmeasuredNics
from streams.runtime.detection import Detection
from streams.runtime.units import NS_PER_S
from tests.records import make, make_part
from tests.streams.alerts.script import T0

RAILS = {"h1/eth0": ["h2/eth0"], "h2/eth0": ["h1/eth0"], "h1/eth1": [], "h2/eth1": []}


def event(nic: str, answering: list[str]) -> LinkEvent:
    paths = [make_part(LinkEvent, "PathEvidence", peer=peer, answered=3) for peer in answering]
    paths.append(make_part(LinkEvent, "PathEvidence", peer="h9/eth0", lost=3))
    return make(LinkEvent, nic=nic, kind="PROBE", paths=paths)


def watched(
    seconds: int,
    answers: dict[str, list[str]],
    detector: UnmeasuredNics,
    from_s: int = 0,
    pause: range = range(0),
) -> list[Detection]:
    """Report once a second for each NIC; no log time is seen within `pause`."""
    detections = []
    for second in range(from_s, from_s + seconds):
        at_ns = T0 + second * NS_PER_S
        if second not in pause:
            for nic, answering in answers.items():
                detector.ingest(event(nic, answering), at_ns)
        while detector.due_ns <= at_ns:
            detections += detector.evaluate(detector.due_ns)
    return detections


def test_nics_without_a_peer_that_answers_are_named_after_30_s_until_one_answers() -> None:
    detector = UnmeasuredNics("fabric", set)
    assert watched(30, RAILS, detector) == []
    (found,) = watched(5, RAILS, detector, 30)
    assert found.kind == AlertKind.UNMEASURED
    assert found.nics == ("h1/eth1", "h2/eth1")
    assert found.since_ns == T0
    assert "no probe from or to h1/eth1, h2/eth1 is answered since" in found.text
    repaired = {**RAILS, "h1/eth1": ["h2/eth1"]}
    (over,) = watched(5, repaired, detector, 35)
    assert over.over
    assert watched(60, repaired, detector, 40) == []


def test_answers_to_one_side_only_measure_both_nics() -> None:
    assert watched(60, {"h1/eth0": ["h2/eth0"], "h2/eth0": []}, UnmeasuredNics("fabric", set)) == []


def test_a_lone_nic_and_the_nics_of_a_lone_host_are_no_alert() -> None:
    assert watched(120, {"h1/eth0": []}, UnmeasuredNics("fabric", set)) == []
    assert watched(120, {"h1/eth0": [], "h1/eth1": []}, UnmeasuredNics("fabric", set)) == []


def test_nics_of_other_alerts_are_explained() -> None:
    detector = UnmeasuredNics("fabric", lambda: {"h1/eth1", "h2"})
    assert watched(120, RAILS, detector) == []


def test_a_log_that_stood_still_is_no_evidence() -> None:
    whole = {"h1/eth0": ["h2/eth0"], "h2/eth0": ["h1/eth0"]}
    detector = UnmeasuredNics("fabric", set)
    assert watched(200, whole, detector, pause=range(20, 100)) == []


def test_simulated_nics_are_not_watched() -> None:
    detector = UnmeasuredNics("fabric", set)
    for name in RAILS:
        detector.announce(name, make(Nic, nic=name, simulation_pace=1.0))
    assert watched(120, RAILS, detector) == []
    assert detector.due_ns == NEVER_NS


def test_a_restored_alert_ends_where_peers_answer() -> None:
    detector = UnmeasuredNics("fabric", set)
    detector.recover(["h1/eth1"], T0)
    repaired = {**RAILS, "h1/eth1": ["h2/eth1"]}
    assert [found.over for found in watched(60, repaired, detector)] == [True]
