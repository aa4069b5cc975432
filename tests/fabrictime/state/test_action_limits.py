"""Use of the limits: moves of a shard per minute, actions of a host per second, pacing and slices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.state import action_limits
from fabrictime.state.action_limits import LimitUse, limits_used
from fabrictime.state.action_state import MINUTE_NS, ActionState
from fabrictime.state.fabric_consumer import REPLAY_S
from fabrictime.web.past_log import BACK_S
from schemas.topics import ACTIONS, CONFIG, DECISIONS, POLICY_CYCLES, TOPICS
from tests.records import make

S = 1_000_000_000
NOW = 1_760_000_000 * S


def test_without_a_record_no_limit_is_used(actions: ActionState) -> None:
    assert limits_used(actions, NOW) == []
    assert action_limits.pacing({}, {}) == action_limits.Pacing([], [])


def test_moves_count_per_flow_and_minute_and_actions_per_host_and_second(
    made: Any, actions: ActionState
) -> None:
    config = made.config(max_moved_share=0.25, max_actions_per_s=2)
    actions.take(CONFIG.name, "*", make(CONFIG.record, **config))
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(0, []))
    for seq, (number, at_ns, kind) in enumerate(
        [
            (1, 0, "REROUTE"),
            (1, 1, "RESTORE"),
            (2, S // 2, "REROUTE"),
            (3, 2 * S, "PACE"),
            (4, -61 * S, "REROUTE"),
        ]
    ):
        flow = made.flow(number, "h1/eth1", "h5/eth1")
        actions.take(DECISIONS.name, "h1", made.decision(seq, flow, "x/1", at_ns=NOW + at_ns, action=kind))
    moved, busiest = limits_used(actions, NOW + 3 * S - 1)
    assert (moved.name, moved.used, moved.max, moved.share) == ("fabric", 2, 5, 0.4)
    assert (busiest.name, busiest.used, busiest.max) == ("h1", 3, 2)


def test_moves_count_against_the_maximum_of_flows_within_the_minute(made: Any, actions: ActionState) -> None:
    """27 flows moved and ended: 'of 1' would read as a limit that was exceeded."""
    actions.take(CONFIG.name, "*", make(CONFIG.record, **made.config(max_moved_share=1.0)))
    for cycle, flows in enumerate((40, 36, 1)):
        record = {**made.rounds(cycle, []), "flows": flows, "at_ns": NOW + cycle * S}
        actions.take(POLICY_CYCLES.name, "fabric", record)
    for number in range(27):
        flow = {**made.flow(1, "h1/eth1", "h5/eth1"), "flow_id": f"h1/boot/sock:{number}"}
        for again in range(2):
            decision = made.decision(2 * number + again, flow, "x/1", at_ns=NOW + again)
            actions.take(DECISIONS.name, "h1", decision)
    [moved, _] = limits_used(actions, NOW + 3 * S)
    assert (moved.used, moved.max) == (27, 40)
    record = {**made.rounds(3, []), "flows": 1, "at_ns": NOW + 60 * S + S // 2}
    actions.take(POLICY_CYCLES.name, "fabric", record)
    assert [each.max for each in limits_used(actions, NOW + 60 * S + S // 2)][:1] == [36]


def test_rate_changes_of_a_flow_within_a_second_count_as_one(made: Any, actions: ActionState) -> None:
    """As in the policy, whose limit they would seem to exceed."""
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    for seq, at_ns in enumerate((0, S // 10, S // 2, S)):
        decision = made.decision(seq, flow, "x/1", action="PACE", at_ns=NOW + at_ns)
        actions.take(DECISIONS.name, "h1", decision)
    [busiest] = limits_used(actions, NOW + 2 * S)
    assert (busiest.name, busiest.used) == ("h1", 1)


def test_local_repairs_count_and_explain_more_moves_than_the_limit(made: Any, actions: ActionState) -> None:
    """No limit holds a local repair back, so 3 of 2 need a reason."""
    actions.take(CONFIG.name, "*", make(CONFIG.record, **made.config(max_moved_share=0.5)))
    actions.take(POLICY_CYCLES.name, "fabric", {**made.rounds(0, []), "flows": 4, "at_ns": NOW})
    for number in range(3):
        flow = {**made.flow(1, "h1/eth1", "h5/eth1"), "flow_id": f"h1/boot/sock:{number}"}
        decision = made.decision(number, flow, "x/1", at_ns=NOW)
        if number == 2:
            repair = {**made.action(decision, "LOCAL_REPAIR"), "decision_id": "h1/repair/1"}
            actions.take(ACTIONS.name, "h1", repair)
        else:
            actions.take(DECISIONS.name, "h1", decision)
        used = limits_used(actions, NOW + S)[0]
        assert bool(used.excess) == (number == 2)
    assert (used.used, used.max, used.excess) == (3, 2, "1 by local repair, which no limit holds back")


def test_a_limit_that_fell_explains_more_moves_than_it_allows() -> None:
    assert LimitUse("sim", action_limits.MOVES_LIMIT, 14, 14).excess == ""
    assert "has fallen" in LimitUse("sim", action_limits.MOVES_LIMIT, 16, 14, 1).excess


@pytest.mark.parametrize("topics", [BACK_S, {TOPICS[name]: back_s for name, back_s in REPLAY_S.items()}])
def test_readers_begin_with_the_cycles_of_all_moves_that_count(topics: dict[Any, float]) -> None:
    """With the cycles of 21 s, '16 of 14 allowed': the flows of the moves had ended since then."""
    assert topics[POLICY_CYCLES] * S > MINUTE_NS


def test_only_the_busiest_of_many_hosts_are_listed(made: Any, actions: ActionState) -> None:
    for number in range(1000):
        for again in range(1 + (number == 500)):
            flow = {**made.flow(1, "h1/eth1", "h5/eth1"), "flow_id": f"h{number}/boot/sock:{again}"}
            decision = made.decision(2 * number + again, flow, "x/1", action="PACE", at_ns=NOW)
            actions.take(DECISIONS.name, f"h{number}", decision)
    hosts = [each.name for each in limits_used(actions, NOW)]
    assert hosts == ["h500", "h0", "h1"]


def test_a_limit_of_0_is_used_up() -> None:
    assert LimitUse("h1", "x", 0, 0).share == 1


@given(st.lists(st.integers(0, 5 * S)))
def test_the_peak_within_a_second_is_that_of_every_second_that_begins_with_an_action(
    times: list[int],
) -> None:
    expected = max((sum(begin <= at < begin + S for at in times) for begin in times), default=0)
    assert action_limits._max_within_a_second(list(times)) == expected


def test_pacing_from_flow_reports_and_slices_from_configs(made: Any) -> None:
    reported = {
        str(n): made.flow(n, "h1/eth1", "h5/eth1", tenant=tenant, rate_limit_bps=limit, rate_bps=1e6)
        for n, tenant, limit in ((1, "red", 500), (2, "red", None), (3, None, 100))
    }
    tenant_slice = {"tenant": "red", "guarantee_bps": 10, "ceiling_bps": None}
    found = action_limits.pacing(
        reported, {"*": made.config(slices=[tenant_slice]), "h1": made.config(slices=[])}
    )
    assert found.paced == [("3", 1e6, 100), ("1", 1e6, 500)]
    assert found.slices == [("red", 10, None, 2, 2e6)]


def test_the_slice_of_all_hosts_overrides_that_of_one(made: Any) -> None:
    def slices(guarantee_bps: int) -> list[dict[str, Any]]:
        return [{"tenant": "red", "guarantee_bps": guarantee_bps, "ceiling_bps": 99}]

    configs = {"*": made.config(slices=slices(7)), "h1": made.config(slices=slices(8))}
    assert action_limits.pacing({}, configs).slices == [("red", 7, 99, 0, 0)]


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_a_share_above_0_allows_one_move_of_a_small_shard(
    made: Any, actions: ActionState, share: float
) -> None:
    actions.take(CONFIG.name, "*", make(CONFIG.record, **made.config(max_moved_share=share)))
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(0, []))
    assert [each.max for each in limits_used(actions, NOW)] == [int(share > 0)]
