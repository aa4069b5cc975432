"""Commands on flows: leases that end in time, reverts, and results that are unknown."""

from __future__ import annotations

from actuators.effectors.base import Answer
from tests.actuators.flow_host import (
    EVERY,
    KEY,
    OTHER,
    Flows,
    Host,
    S,
    all_allowed,
    config,
    decision,
    pace,
)


def test_an_endpoint_gets_only_commands_that_it_supports():
    host = Host(records=all_allowed())
    host.flows.verbs = frozenset()
    assert host.take(decision()) == "FAILED"
    assert host.take(pace(1, 10**6)) == "FAILED"
    assert not host.flows.done


def test_one_command_at_a_time_per_flow_and_a_slow_endpoint_delays_no_other():
    host = Host(Flows(**{"qp:eth1:2:1": 40_000}))
    host.flows.slow = True
    host.take(decision(0, to_path=50_001))
    host.take(decision(1, to_path=50_002))
    host.take(decision(2, to_path=50_003, flow_id=OTHER))
    assert [(key, value) for key, _, value, _ in host.flows.open] == [(KEY, 50_001), ("qp:eth1:2:1", 50_003)]
    host.flows.answer()
    host.flows.answer()
    host.flows.answer()
    assert [(each["decision_id"], each["from_path"], each["to_path"]) for each in host.reports] == [
        ("s0/1/0", 50_000, 50_001),
        ("s0/1/2", 40_000, 50_003),
        ("s0/1/1", 50_001, 50_002),
    ]


def test_a_pace_ends_unless_it_is_renewed():
    host = Host(records=all_allowed())
    assert host.take(pace(0, 20_000_000, expires_at_ns=S)) == "APPLIED"
    assert host.reports[-1]["rate_bps"] == 20_000_000
    host.now_ns = S // 2
    host.take(pace(1, 10_000_000, expires_at_ns=2 * S))
    host.now_ns = S
    host.it.tick()
    assert host.flows.rates == {KEY: 10_000_000}, "renewed"
    assert host.it.due_ns() == 2 * S
    host.now_ns = 2 * S
    host.it.tick()
    assert host.flows.rates == {KEY: 0}
    assert host.outcomes[-1] == ("s0/1/1", "ENDED")
    assert host.it.due_ns() is None
    host.it.tick()
    assert len(host.reports) == 3


def test_unpace_ends_the_pace_and_keeps_the_slice():
    host = Host(records=all_allowed())
    host.take(pace(0, 50_000_000, action="SLICE"))
    host.take(pace(1, 20_000_000))
    assert host.flows.rates == {KEY: 20_000_000}
    assert host.take(pace(2, None, action="UNPACE")) == "APPLIED"
    assert host.flows.rates == {KEY: 50_000_000}
    assert host.reports[-1]["rate_bps"] == 50_000_000
    host.now_ns = S
    host.it.tick()
    assert host.flows.rates == {KEY: 0}


def test_a_lease_of_a_disconnected_endpoint_ends_after_it_returns():
    host = Host(records=all_allowed())
    host.take(pace(0, 20_000_000))
    path = host.flows.paths.pop(KEY)
    host.now_ns = S
    host.it.tick()
    assert host.flows.rates == {KEY: 20_000_000}
    host.flows.paths[KEY] = path
    host.it.seen(KEY)
    host.it.tick()
    assert (host.flows.rates, host.outcomes[-1]) == ({KEY: 0}, ("s0/1/0", "ENDED"))


def test_a_flow_that_ended_has_nothing_in_force():
    host = Host(records=all_allowed())
    host.take(pace(0, 20_000_000))
    host.take(decision(1))
    assert host.it.in_force == 2
    del host.flows.paths[KEY]
    host.it.gone(KEY)
    assert host.it.in_force == 0
    assert host.it.due_ns() is None


def test_a_refused_rate_is_not_in_force_and_an_unanswered_one_may_be():
    host = Host(records=all_allowed())
    host.take(pace(0, 666))
    assert (host.it.in_force, host.reports[-1]["rate_bps"]) == (0, None)
    host.flows.slow = True
    host.take(pace(1, 10_000_000))
    host.flows.open.pop()[3](Answer(error="no answer within 200 ms", maybe_done=True))
    assert host.outcomes[-1] == ("s0/1/1", "FAILED")
    assert host.it.in_force == 1
    host.flows.slow, host.now_ns = False, S
    host.it.tick()
    assert host.flows.rates == {KEY: 0}


def test_later_actions_and_the_endpoints_own_moves_are_not_reverted():
    host = Host(Flows(**{"qp:eth1:2:1": 40_000}))
    host.take(decision(0, to_path=50_001))
    host.flows.paths[KEY] = 50_777
    host.now_ns = 30
    host.take(decision(1, to_path=50_009, flow_id=OTHER))
    host.it.take_config(config(version=2, revert_before_ns=20))
    assert host.flows.paths == {KEY: 50_777, "qp:eth1:2:1": 50_009}
    assert host.it.in_force == 1


def test_a_flow_back_on_its_first_path_has_nothing_to_revert():
    host = Host()
    host.take(decision(0, to_path=50_001))
    host.take(decision(1, to_path=50_000, action="RESTORE"))
    assert host.it.in_force == 0


def test_a_lease_that_could_not_be_ended_is_retried():
    host = Host(records=config(allowed_actions=EVERY))
    host.take(pace(0, 10**9))
    execute, refuse = host.flows.execute, True

    def refused(key, verb, value, answer):
        if refuse:
            answer(Answer(error="not now"))
        else:
            execute(key, verb, value, answer)

    host.flows.execute = refused
    host.now_ns = S
    host.it.tick()
    assert host.reports[-1]["outcome"] == "FAILED"
    assert host.it.due_ns() == 2 * S
    refuse = False
    host.now_ns = 2 * S
    host.it.tick()
    assert host.reports[-1]["outcome"] == "ENDED"
    assert host.flows.rates[KEY] == 0
    assert host.it.in_force == 0
