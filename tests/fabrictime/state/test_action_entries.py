"""Action entries from decisions, reports and flows; flow history."""

from __future__ import annotations

from typing import Any

from fabrictime.state import action_entries, action_limits, action_text
from fabrictime.state.action_state import ActionState
from fabrictime.state.flow_history import FlowHistory, Sample, effect
from fabrictime.web.tabs.actions.frames import cause_links, flow_history_frame
from schemas import codec
from schemas.reasons import Reason
from schemas.topics import ACTIONS, DECISIONS, FLOWS, POLICY_CYCLES

S = 1_000_000_000
NOW = 1_760_000_000 * S
FLOW = "h1/boot/sock:1"
WINDOW = "fabric/leaf1:swp4>spine2:swp1/1760000000"


def flows(made: Any, at_ns: int, rate_bps: float, **more: Any) -> tuple[str, bytes, int]:
    flow = made.flow(1, "h1/eth1", "h5/eth1", rate_bps=rate_bps, interval_ns=S, **more)
    return "h1", codec.encode(FLOWS.record, made.flows("h1", [flow])), at_ns


def sample(end_s: float, rate_bps: float, rtt_ns: int | None = None, links: str = "") -> Sample:
    end_ns = NOW + round(end_s * S)
    return Sample(end_ns - S, end_ns, rate_bps, rtt_ns, 1, None, tuple(links.split()))


def test_reports_across_the_move_count_on_neither_side() -> None:
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
    assert (found.left, found.taken) == (("b",), ("c",))
    assert effect(samples, NOW, NOW + S // 2, max_ns=NOW + S).after_bps == 600, "up to the next move"
    assert effect(samples, NOW - 10 * S, NOW - 9 * S).before_bps is None
    assert effect([], NOW, NOW).taken == ()


def test_the_outcome_is_that_of_the_highest_ranked_report(made: Any, actions: ActionState) -> None:
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    for seq, outcomes in enumerate((["APPLIED", "DUPLICATE"], ["APPLIED", "ENDED"], ["STALE"], [], [])):
        at_ns = NOW if seq < 4 else NOW - 60 * S
        decision = made.decision(seq, flow, WINDOW, kind="COLLISION", at_ns=at_ns)
        actions.take(DECISIONS.name, "h1", decision)
        for outcome in outcomes:
            report = made.action(decision, outcome)
            actions.take(ACTIONS.name, "h1", report)
            actions.take(ACTIONS.name, "h1", report)  # read a second time
    alone = made.action(made.decision(9, flow, WINDOW), "LOCAL_REPAIR", decision_id="h1/reflex/1")
    actions.take(ACTIONS.name, "h1", alone)
    found = {entry.decision_id: entry for entry in action_entries.entries(actions, NOW + S)}
    assert [found[f"fabric/7/{n}"].outcome for n in range(5)] == [
        "APPLIED",
        "ENDED",
        "STALE",
        "WAITING",
        "UNANSWERED",
    ]
    assert found["fabric/7/1"].how == "SOCKET", "from the report that applied it"
    assert [entry.done for entry in found.values() if entry.outcome in ("ENDED", "STALE", "WAITING")].count(
        True
    ) == 1
    assert found["h1/reflex/1"].done
    assert action_text.table_row(found["h1/reflex/1"])["cause"] == "its path is down"
    moved, *_ = action_limits.limits_used(actions, NOW + S)
    assert (moved.used, moved.max) == (1, 1), "one flow, counted once; a shard without a cycle may move one"
    assert action_text.counts_text({"STALE": 2, "APPLIED": 1}) == "1 APPLIED, 2 STALE"


def test_local_repairs_after_an_actuator_restart_are_separate(made: Any, actions: ActionState) -> None:
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(0, []))
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    for at_ns in (NOW, NOW, NOW + S):  # the first twice: read a second time
        repair = made.action(
            made.decision(0, flow, WINDOW), "LOCAL_REPAIR", decision_id="h1/reflex/0", shard=""
        )
        actions.take(ACTIONS.name, "h1", {**repair, "at_ns": at_ns})
    found = action_entries.entries(actions, NOW + 2 * S)
    assert [entry.done_ns for entry in found] == [NOW + S, NOW]
    assert [entry.done_ns - entry.at_ns for entry in found] == [3_000_000] * 2, "starts with the move"
    assert len({entry.decision_id for entry in found}) == 2
    assert action_limits.limits_used(actions, NOW + 2 * S)[0].used == 1


def test_causes_link_to_their_tabs(made: Any) -> None:
    cable = "leaf1:swp4<>spine2:swp1"
    alert = made.alert(cable, "it is DOWN", alert_id="a1")
    assert action_text.cause_text("DOWN", Reason(cable, 12)) == "leaf1:swp4 ⇄ spine2:swp1 is down"
    assert cause_links("DOWN", Reason(cable, 12), [alert]) == [
        ("leaf1:swp4 ⇄ spine2:swp1 in the fabric", "/fabric?link=leaf1%3Aswp4%3Espine2%3Aswp1"),
        ("alert: it is DOWN", "/alerts?alert=a1"),
    ]
    assert cause_links("GREY", Reason("h1/eth0", 3), []) == [("h1 in the fabric", "/fabric?node=h1")]
    assert (
        action_text.cause_text("COLLISION", Reason.of_window(WINDOW))
        == "flows collide at leaf1:swp4 → spine2:swp1"
    )
    [(_, address)] = cause_links("COLLISION", Reason.of_window(WINDOW), [])
    assert address.startswith("/contention?window=fabric%2Fleaf1")
    assert cause_links("DELAY", Reason(FLOW), [alert]) == []


def test_a_watched_hosts_flows_have_a_past(made: Any) -> None:
    flow_history = FlowHistory(lambda value: codec.decode(value, FLOWS.record))
    for second in range(30):
        flow_history.take(*flows(made, NOW + second * S, second))
    assert flow_history.of(FLOW) == []
    flow_history.watch("h1", NOW + 40 * S)
    assert [each.rate_bps for each in flow_history.of(FLOW)] == list(range(17, 30))
    for second in range(30, 60):
        flow_history.take(*flows(made, NOW + second * S, second))
    flow_history.take("h1", b"unreadable", NOW + 60 * S)
    assert [each.rate_bps for each in flow_history.of(FLOW)][-1] == 40
    flow_history.watch("h1", NOW + 50 * S)
    assert flow_history.of(FLOW)[-1].rate_bps == 40, "an expired watch is ignored"


def test_a_decisions_effect_outlives_its_samples(made: Any, actions: ActionState) -> None:
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    decision = made.decision(0, flow, WINDOW)
    actions.take(DECISIONS.name, "h1", decision)
    actions.take(ACTIONS.name, "h1", made.action(decision))
    for second in range(-6, 12):
        actions.flow_history.take(*flows(made, NOW + second * S, 100 if second <= 0 else 900))
    [entry] = action_entries.with_effects(
        action_entries.entries(actions, NOW + 12 * S), actions, NOW + 12 * S
    )
    assert (entry.effect.before_bps, entry.effect.after_bps) == (100, 900)
    actions.flow_history.restart("h1")
    [later] = action_entries.with_effects(
        action_entries.entries(actions, NOW + 99 * S), actions, NOW + 99 * S
    )
    assert later.effect == entry.effect
    frame = flow_history_frame(
        [sample(1, 5), sample(2, 6), sample(9, 7)], [entry], FLOW, NOW + 10 * S, 60 * S
    )
    assert frame["rate"] == [5, 6, None, 7], "a gap is drawn as a gap"
    assert frame["marks"][0][1:] == [
        "DOWN",
        "move, port 50001 → 50002",
        "APPLIED",
        frame["marks"][0][4],
        1,
        "fabric/7/0",
    ]
