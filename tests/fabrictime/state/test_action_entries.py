"""Decisions, reports and flows put together: pure, on records as the log would give them."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state import action_entries
from fabrictime.state.action_state import ActionState
from fabrictime.state.flow_history import FlowHistory, Sample, effect
from schemas import codec
from schemas.reasons import Reason
from schemas.topics import ACTIONS, CONFIG, DECISIONS, FLOWS, POLICY_CYCLES

S = 1_000_000_000
NOW = 1_760_000_000 * S
FLOW = "h1/boot/sock:1"
WINDOW = "fabric/leaf1:swp4>spine2:swp1/1760000000"


def state() -> ActionState:
    return ActionState(lambda value: codec.decode(value, FLOWS.record))


@pytest.fixture
def made(records: Any) -> Any:
    """Makes records."""
    found = records()
    found.now_ns = NOW
    return found


def flows(made: Any, at_ns: int, rate_bps: float, **more: Any) -> tuple[str, bytes, int]:
    flow = made.flow(1, "h1/eth1", "h5/eth1", rate_bps=rate_bps, interval_ns=S, **more)
    return "h1", codec.encode(FLOWS.record, made.flows("h1", [flow])), at_ns


def sample(end_s: float, rate_bps: float, rtt_ns: int | None = None, hops: str = "") -> Sample:
    end_ns = NOW + round(end_s * S)
    return Sample(end_ns - S, end_ns, rate_bps, rtt_ns, 1, None, tuple(hops.split()))


def test_reports_that_lie_across_the_move_count_on_neither_side() -> None:
    samples = [
        sample(-1, 100, 10, "a b d"),
        sample(0, 300, 30, "a b d"),
        sample(0.7, 9e9, 9999, "a b d"),
        sample(1.7, 600, None, "a b d"),
        sample(2.7, 800, 50, "a c d"),
    ]
    found = effect(samples, NOW, NOW + S // 2)
    assert (found.before_bps, found.after_bps) == (200, 700)
    assert (found.before_rtt_ns, found.after_rtt_ns) == (20, 50)
    assert (found.left, found.took) == (("b",), ("c",))
    assert effect(samples, NOW, NOW + S // 2, most_ns=NOW + S).after_bps == 600, "up to the next move"
    assert effect(samples, NOW - 10 * S, NOW - 9 * S).before_bps is None
    assert effect([], NOW, NOW).took == ()


def test_what_came_of_a_decision_is_the_report_that_says_most(made: Any) -> None:
    acts = state()
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    for seq, outcomes in enumerate((["APPLIED", "DUPLICATE"], ["APPLIED", "ENDED"], ["STALE"], [], [])):
        at_ns = NOW if seq < 4 else NOW - 60 * S
        decision = made.decision(seq, flow, WINDOW, kind="COLLISION", at_ns=at_ns)
        acts.take(DECISIONS.name, "h1", decision)
        for outcome in outcomes:
            report = made.action(decision, outcome)
            acts.take(ACTIONS.name, "h1", report)
            acts.take(ACTIONS.name, "h1", report)  # read again
    alone = made.action(made.decision(9, flow, WINDOW), "LOCAL_REPAIR", decision_id="h1/reflex/1")
    acts.take(ACTIONS.name, "h1", alone)
    found = {deed.decision_id: deed for deed in action_entries.deeds(acts, NOW + S)}
    assert [found[f"fabric/7/{n}"].outcome for n in range(5)] == [
        "APPLIED",
        "ENDED",
        "STALE",
        "WAITING",
        "UNANSWERED",
    ]
    assert found["fabric/7/1"].how == "SOCKET", "as the report that did it says"
    assert [deed.done for deed in found.values() if deed.outcome in ("ENDED", "STALE", "WAITING")].count(
        True
    ) == 1
    assert found["h1/reflex/1"].done
    assert action_entries.row(found["h1/reflex/1"])["cause"] == "its path is down"
    moved, *_ = action_entries.limits_used(acts, NOW + S)
    assert (moved.used, moved.most) == (1, 1), "one flow, however often; of a shard that told nothing, one"
    assert action_entries.counts_text({"STALE": 2, "APPLIED": 1}) == "1 APPLIED, 2 STALE"


def test_reflexes_of_an_actuator_that_began_anew_are_others(made: Any) -> None:
    acts = state()
    acts.take(POLICY_CYCLES.name, "fabric", made.rounds(0, []))
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    for at_ns in (NOW, NOW, NOW + S):  # the first twice: read again
        reflex = made.action(
            made.decision(0, flow, WINDOW), "LOCAL_REPAIR", decision_id="h1/reflex/0", shard=""
        )
        acts.take(ACTIONS.name, "h1", {**reflex, "at_ns": at_ns})
    found = action_entries.deeds(acts, NOW + 2 * S)
    assert [deed.done_ns for deed in found] == [NOW + S, NOW]
    assert [deed.done_ns - deed.at_ns for deed in found] == [3_000_000] * 2, "it began when the move did"
    assert len({deed.decision_id for deed in found}) == 2
    assert action_entries.limits_used(acts, NOW + 2 * S)[0].used == 1


def test_causes_lead_to_the_tab_that_shows_them(made: Any) -> None:
    cable = "leaf1:swp4<>spine2:swp1"
    alert = made.alert(cable, "it is DOWN", alert_id="a1")
    assert action_entries.cause_text("DOWN", Reason(cable, 12)) == "leaf1:swp4 ⇄ spine2:swp1 is down"
    assert action_entries.ways_on("DOWN", Reason(cable, 12), [alert]) == [
        ("leaf1:swp4 ⇄ spine2:swp1 in the fabric", "/fabric?link=leaf1%3Aswp4%3Espine2%3Aswp1"),
        ("alert: it is DOWN", "/alerts?alert=a1"),
    ]
    assert action_entries.ways_on("GREY", Reason("h1/eth0", 3), []) == [("h1 in the fabric", "/fabric?node=h1")]
    assert action_entries.cause_text("COLLISION", Reason.of_window(WINDOW)) == "flows collide at leaf1:swp4 → spine2:swp1"
    [(_, address)] = action_entries.ways_on("COLLISION", Reason.of_window(WINDOW), [])
    assert address.startswith("/contention?window=fabric%2Fleaf1")
    assert action_entries.ways_on("DELAY", Reason(FLOW), [alert]) == []


def test_held_back_is_told_as_of_the_newest_round_and_since_when(made: Any) -> None:
    acts = state()
    one, two = (FLOW, "REROUTE", "PROTECTED", WINDOW), ("h2/b/sock:2", "RESTORE", "COOL_DOWN", "h5/eth0/3")
    acts.take(POLICY_CYCLES.name, "fabric", made.rounds(0, None))
    assert acts.shards["fabric"].held is None, "not told yet"
    acts.take(POLICY_CYCLES.name, "fabric", made.rounds(1, [one], at_ns=NOW))
    acts.take(POLICY_CYCLES.name, "fabric", made.rounds(2, [two, one], at_ns=NOW + S))
    acts.take(POLICY_CYCLES.name, "fabric", made.rounds(3, None, at_ns=NOW + 2 * S))
    acts.take(POLICY_CYCLES.name, "fabric", made.rounds(1, [], at_ns=NOW))  # read again
    acts.take(POLICY_CYCLES.name, "fabric", made.rounds(9, [], epoch=6))  # of an owner that is no more
    assert [(each.flow_id, each.since_ns) for each in acts.held()] == [(FLOW, NOW), (two[0], NOW + S)]
    told = [action_entries.reason_of_held(each) for each in acts.held()]
    assert told == ["a queue stands at leaf1:swp4 → spine2:swp1", "h5/eth0 healed"]
    assert action_entries.held_text(acts.held()[0], NOW + 4 * S) == (
        "its job is protected (protected_jobs); for 4.0 s"
    )
    acts.take(POLICY_CYCLES.name, "fabric", made.rounds(0, None, epoch=8))
    assert acts.held() == [], "a new owner has not told yet"


def test_mode_says_who_changed_it_and_not_who_changed_something_else_later(made: Any) -> None:
    acts = state()
    assert action_entries.mode_text(acts).endswith("nobody has set a mode")
    acts.take(CONFIG.name, "*", made.config(1, mode="ACT", by="ann"))
    acts.take(CONFIG.name, "*", made.config(2, mode="ACT", by="bob", at_ns=NOW + S))
    acts.take(CONFIG.name, "h3", made.config(1, "h3", mode="OBSERVE", by="eve"))
    acts.take(CONFIG.name, "h4", made.config(1, "h4", mode="UNKNOWN"))
    assert (acts.mode().act, acts.mode().by, acts.mode().since_ns) == (True, "ann", NOW)
    assert acts.apart() == ["h3"]
    assert "set by ann" in action_entries.mode_text(acts)
    assert action_entries.mode_text(acts).endswith("Otherwise at h3: OBSERVE")
    acts.take(CONFIG.name, "*", None)
    assert not acts.mode().act


def test_a_hosts_flows_are_followed_from_just_before_it_was_acted_on(made: Any) -> None:
    trail = FlowHistory(lambda value: codec.decode(value, FLOWS.record))
    for second in range(30):
        trail.take(*flows(made, NOW + second * S, second))
    assert trail.of(FLOW) == []
    trail.watch("h1", NOW + 40 * S)
    assert [each.rate_bps for each in trail.of(FLOW)] == list(range(17, 30))
    for second in range(30, 60):
        trail.take(*flows(made, NOW + second * S, second))
    trail.take("h1", b"what nobody can read", NOW + 60 * S)
    assert [each.rate_bps for each in trail.of(FLOW)][-1] == 40
    trail.watch("h1", NOW + 50 * S)
    assert trail.of(FLOW)[-1].rate_bps == 40, "long ago: not watched again"


def test_the_effect_of_a_decision_stays_when_its_reports_are_gone(made: Any) -> None:
    acts = state()
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    decision = made.decision(0, flow, WINDOW)
    acts.take(DECISIONS.name, "h1", decision)
    acts.take(ACTIONS.name, "h1", made.action(decision))
    for second in range(-6, 12):
        acts.trail.take(*flows(made, NOW + second * S, 100 if second <= 0 else 900))
    [deed] = action_entries.with_effects(action_entries.deeds(acts, NOW + 12 * S), acts, NOW + 12 * S)
    assert (deed.effect.before_bps, deed.effect.after_bps) == (100, 900)
    acts.trail.begin("h1")
    [again] = action_entries.with_effects(action_entries.deeds(acts, NOW + 99 * S), acts, NOW + 99 * S)
    assert again.effect == deed.effect
    frame = action_entries.trail_frame(
        [sample(1, 5), sample(2, 6), sample(9, 7)], [deed], FLOW, NOW + 10 * S, 60 * S
    )
    assert frame["rate"] == [5, 6, None, 7], "a gap is a gap"
    assert frame["marks"][0][1:] == [
        "DOWN",
        "move, port 50001 → 50002",
        "APPLIED",
        frame["marks"][0][4],
        1,
        "fabric/7/0",
    ]


def test_paces_and_slices_are_what_flows_report_and_configs_promise(made: Any) -> None:
    told = {
        str(n): made.flow(n, "h1/eth1", "h5/eth1", tenant=tenant, rate_limit_bps=limit, rate_bps=1e6)
        for n, tenant, limit in ((1, "red", 500), (2, "red", None), (3, None, 100))
    }
    promise = {"tenant": "red", "guarantee_bps": 10, "ceiling_bps": None}
    found = action_entries.paces(told, {"*": made.config(slices=[promise]), "h1": made.config(slices=[])})
    assert found.paced == [("3", 1e6, 100), ("1", 1e6, 500)]
    assert found.slices == [("red", 10, None, 2, 2e6)]


def test_only_one_flow_is_meant() -> None:
    ids = ["h1/b/sock:1", "h1/b/sock:12", "h2/b/sock:3"]
    assert action_entries.only("h1/b/sock:1", ids) == "h1/b/sock:1"
    assert action_entries.only("h2 sock:3", ids) == "h2/b/sock:3"
    assert action_entries.only("h1", ids) is None
    assert action_entries.only(None, ids) is None
