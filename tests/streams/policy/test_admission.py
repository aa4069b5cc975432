"""Admission: limits, causes of suppression, and the contents of decisions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.topics import FLOWS
from streams.policy.action_budget import NS_PER_MINUTE
from streams.policy.inputs import PolicyInputs
from tests.examples import examples
from tests.streams.policy.log_fabric import EPOCH, PARTITIONS, Log
from tests.streams.policy.small_fabric import FABRIC, MS, SPINES, S, World, links_of

events = st.one_of(
    st.tuples(st.sampled_from(["DOWN", "GREY", "UP", "FLAPPING"]), st.sampled_from(FABRIC)),
    st.tuples(st.sampled_from(["OPENED", "CLOSED"]), st.sampled_from(FABRIC)),
    st.tuples(st.just("pass"), st.sampled_from([1 * MS, 300 * MS, 2 * S, 15 * S, 70 * S])),
    st.tuples(st.just("rate"), st.sampled_from([1e6, 3e8, 9e8])),
)


@settings(max_examples=examples(80))
@given(
    st.lists(events, max_size=25),
    st.booleans(),
    st.sampled_from([1, 2, 100]),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]),
)
def test_no_flow_moves_to_a_dead_path_and_no_limit_is_exceeded(story, obey, max_count, share):
    w = World(24, obey=obey, max_actions_per_s=max_count, max_moved_share=share, protected_jobs=["llm"])
    safe = sorted(w.paths)[3]
    w.job[safe] = "llm"
    w.decide()
    for kind, value in story:
        if kind == "pass":
            w.now_ns += value
        elif kind == "rate":
            w.rate_bps = dict.fromkeys(w.paths, value)
        elif kind in ("OPENED", "CLOSED"):
            w.window(value, kind, opened_ns=w.now_ns)
        else:
            w.health(value, kind)
        for _ in range(3):
            for d in w.decide():
                assert d["flow_id"] != safe
                assert d["to_path"] != d["from_path"]
                route = links_of(*w.ends[d["flow_id"]], d["to_path"] % SPINES)
                assert not [link for link in route if w.states.get(link) == "DOWN"]
                if d["action"] == "RESTORE" or d["reason"]["kind"] == "COLLISION":
                    assert {w.states.get(link, "UP") for link in route} == {"UP"}
    assert [d["seq"] for d in w.decisions] == list(range(len(w.decisions)))
    assert len({d["decision_id"] for d in w.decisions}) == len(w.decisions)
    allowed = max(1, int(share * 24)) if share else 0
    for d in w.decisions:
        since = [o for o in w.decisions if d["at_ns"] <= o["at_ns"] < d["at_ns"] + S]
        assert sum(o["host"] == d["host"] for o in since) <= max_count
        minute = [o for o in w.decisions if d["at_ns"] <= o["at_ns"] < d["at_ns"] + NS_PER_MINUTE]
        assert len({o["flow_id"] for o in minute}) <= allowed


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"protected_jobs": ["llm"]}, "PROTECTED"),
        ({"allowed_actions": ["PACE"]}, "NOT_ALLOWED"),
        ({"max_actions_per_s": 0}, "ACTIONS_PER_S"),
        ({"max_moved_share": 0.0}, "MOVED_SHARE"),
    ],
)
def test_a_suppressed_action_names_its_cause(limits, why):
    w = World(8, job="llm", **limits)
    w.decide()
    w.health("leaf1:u1>spine1:p1", "DOWN")
    assert w.decide() == []
    assert {(h.flow_id, h.cause) for h in w.suppressed} == {
        (name, why) for name in w.crossing("leaf1:u1>spine1:p1")
    }


def test_a_decision_names_its_config_version():
    w = World(8, version=41)
    w.decide()
    w.health("leaf1:u1>spine1:p1", "DOWN")
    assert {d["config_version"] for d in w.decide()} == {41}


def test_a_flow_that_its_endpoint_does_not_let_move_stays() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    log.open(0, 1, 6000)
    log.report()
    message = log.messages.pop()
    while message.topic != FLOWS.name or message.key != "h0":
        message = log.messages.pop()
    record = codec.decode(message.value, FLOWS.record)
    record["flows"][0]["can"] = ["PACE"]
    log.ends.clear()
    for each in log.messages:
        log.ends[each.topic, each.partition] = each.offset + 1
    log.put(FLOWS, "h0", record)
    log.run_cycles(inputs, 1.0)
    log.health("leaf1:u0>spine0:leaf1", "DOWN")
    assert log.run_cycles(inputs, 0.02) == []
    log.run_cycles(inputs, 1.0)
    suppressed = [
        each for record in log.cycle_records for row in record["cycles"] for each in row["suppressed"] or ()
    ]
    assert {each["cause"] for each in suppressed} == {"NOT_MOVABLE"}


def test_a_new_config_ends_the_cooldown_of_observed_moves():
    link = "leaf1:u1>spine1:p1"
    world = World(obey=False, mode="OBSERVE", max_moved_share=1.0)
    for name in world.crossing(link):
        world.rate_bps[name] = 6e8

    def run_cycle():
        world.window(link)
        return {each["flow_id"] for each in world.decide(100 * MS)}

    def cooling_down():
        return {
            suppressed.flow_id for suppressed in world.suppressed if suppressed.cause == "COOL_DOWN"
        } & world.crossing(link)

    cycle_records = [run_cycle()]
    while cycle_records[-1] or not cooling_down():
        cycle_records.append(run_cycle())
        assert len(cycle_records) < 50, "the second move follows 5 s after the first"
    cooled_down = cooling_down()
    assert cooled_down <= set().union(*cycle_records)
    world.configure(version=2, mode="ACT", max_moved_share=1.0)
    assert run_cycle() & cooled_down
