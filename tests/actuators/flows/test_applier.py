"""Decisions of one host: applied once, in order, in time, under the present config; each with its report."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.journal import Journal
from schemas import codec
from schemas.messages import decode_message
from schemas.topics import DECISIONS
from tests.actuators.flow_host import (
    EVERY,
    FLOW,
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


def test_a_decision_is_applied_and_reported_once():
    host = Host()
    host.flows.slow = True
    host.it.take(decision(), "token")
    host.now_ns, host.clock_ns = 20, 7
    host.flows.answer()
    assert host.reports == [
        {
            "host": "h1",
            "decision_id": "s0/1/0",
            "shard": "s0",
            "epoch": 1,
            "seq": 0,
            "at_ns": 20,
            "flow_id": FLOW,
            "action": "REROUTE",
            "outcome": "APPLIED",
            "from_path": 50_000,
            "to_path": 50_001,
            "rate_bps": None,
            "how": "SOCKET",
            "took_ns": 7,
            "config_version": 1,
            "detail": "",
        }
    ]
    assert host.take(decision()) == "DUPLICATE"
    assert host.flows.moves == [(KEY, 50_001)]


@pytest.mark.parametrize(
    ("given", "now_ns", "records", "outcome"),
    [
        (decision(flow_id="h1/b/qp:eth1:9:1"), 0, None, "NO_FLOW"),
        (decision(), S, None, "EXPIRED"),
        (decision(config_version=2), 0, None, "OLD_CONFIG"),
        (decision(), 0, config(allowed_actions=["RESTORE"]), "NOT_ALLOWED"),
        (decision(), 0, config(mode="OBSERVE"), "OBSERVED"),
        (decision(), 0, config(mode="UNKNOWN"), "OBSERVED"),
        (decision(config_version=2), 0, config() | config("h1", "OBSERVE"), "OBSERVED"),
        (decision(config_version=2), 0, config(mode="OBSERVE") | config("h1", "ACT"), "APPLIED"),
        (decision(config_version=0), 0, {}, "OBSERVED"),
        (decision(to_path=666), 0, None, "FAILED"),
        (decision(to_path=70_000), 0, None, "FAILED"),
        (decision(to_path=None), 0, None, "FAILED"),
        (decision(action="PACE"), 0, config(allowed_actions=["PACE"]), "FAILED"),
        (decision(), 0, config(max_actions_per_s=0), "LIMITED"),
    ],
)
def test_a_refused_decision_is_reported_and_has_no_effect(given, now_ns, records, outcome):
    host = Host(records=records)
    host.now_ns = now_ns
    assert host.take(given) == outcome
    assert bool(host.flows.moves) == (outcome == "APPLIED")
    assert host.take(given) == ("DUPLICATE" if outcome == "APPLIED" else outcome)


def test_older_decisions_of_a_flow_are_stale_and_so_is_a_worker_that_lost_its_shard():
    host = Host(Flows(**{"qp:eth1:2:1": 40_000}))
    assert host.take(decision(5, epoch=2)) == "APPLIED"
    assert host.take(decision(4, epoch=2, to_path=50_002)) == "STALE"
    assert host.take(decision(9, epoch=1, to_path=50_003)) == "STALE"
    assert host.take(decision(9, epoch=1, flow_id=OTHER)) == "STALE", "another flow, an older epoch"
    assert host.take(decision(4, epoch=2, flow_id=OTHER)) == "APPLIED", "another flow, its own order"
    assert host.flows.moves == [(KEY, 50_001), ("qp:eth1:2:1", 50_001)]


def test_a_flow_of_another_boot_or_host_is_no_flow():
    host = Host(boot="b")
    assert host.take(decision(flow_id=f"h1/c/{KEY}")) == "NO_FLOW"
    assert host.take(decision(1, flow_id=f"h2/b/{KEY}")) == "NO_FLOW"
    assert host.take(decision(2)) == "APPLIED"


def test_wrong_keys_are_refused():
    with pytest.raises(codec.BadRecord, match="expected 'h1'"):
        decode_message(DECISIONS, b"h2", codec.encode(DECISIONS.record, decision()))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=30))
def test_the_newest_decision_wins_in_any_order_and_with_duplicates(execute):
    host = Host()
    newest, done = (-1, -1), []
    for epoch, seq in execute:
        outcome = host.take(decision(seq, epoch, to_path=100 * epoch + seq))
        assert outcome == (
            "APPLIED" if (epoch, seq) > newest else "DUPLICATE" if (epoch, seq) == newest else "STALE"
        )
        if (epoch, seq) > newest:
            newest = (epoch, seq)
            done.append((KEY, 100 * epoch + seq))
    assert host.flows.moves == done


def test_no_more_actions_than_allowed_within_any_second():
    host = Host(records=config(max_actions_per_s=2))
    assert [host.take(decision(seq, to_path=51_000 + seq)) for seq in range(3)] == [
        "APPLIED",
        "APPLIED",
        "LIMITED",
    ]
    host.clock_ns = S
    assert host.take(decision(3, to_path=51_003)) == "APPLIED"


def test_release_ends_leases_and_keeps_moves():
    host = Host(records=all_allowed())
    host.take(decision(0))
    host.take(pace(1, 20_000_000))
    host.it.release("the actuator ends")
    assert host.flows.rates == {KEY: 0}
    assert host.flows.paths[KEY] == 50_001
    assert host.outcomes[-1] == ("s0/1/1", "REVERTED")


def test_an_order_to_revert_undoes_earlier_actions_even_in_observe():
    host = Host(Flows(**{"qp:eth1:2:1": 40_000}), records=all_allowed())
    host.now_ns = 10
    host.take(decision(0, to_path=50_001))
    host.take(decision(1, to_path=50_002))
    host.take(pace(2, 20_000_000))
    host.take(decision(3, to_path=50_009, flow_id=OTHER))
    host.flows.done.clear()
    host.it.take_config(config(mode="OBSERVE", version=2, revert_before_ns=20))
    assert host.flows.paths == {KEY: 50_000, "qp:eth1:2:1": 40_000}
    assert host.flows.rates == {KEY: 0}
    assert {each for each in host.outcomes if each[1] == "REVERTED"} == {
        ("s0/1/1", "REVERTED"),
        ("s0/1/2", "REVERTED"),
        ("s0/1/3", "REVERTED"),
    }
    assert (host.it.in_force, host.it.reverting) == (0, 0)
    host.flows.done.clear()
    host.it.take_config(config(mode="OBSERVE", version=3, revert_before_ns=20))
    assert not host.flows.done, "once"


def after_a_kill(journal, flows, tmp_path, **more):
    """The next process, with the journal on disk."""
    again = Journal(tmp_path / "journal.jsonl")
    return Host(flows, store=again, states=again.states, **more)


def test_killed_before_the_answer_the_move_is_reported_once_with_its_true_path(tmp_path):
    flows, journal = Flows(), Journal(tmp_path / "journal.jsonl")
    host = Host(flows, store=journal)
    flows.slow = True
    host.take(decision())
    assert not host.reports
    flows.paths[KEY] = 50_001  # its endpoint moved it; the answer was lost
    host = after_a_kill(journal, flows, tmp_path)
    host.now_ns = 5 * S  # late, but it was done in time
    assert host.take(decision()) == "APPLIED"
    assert (host.reports[-1]["from_path"], host.reports[-1]["to_path"]) == (50_000, 50_001)
    assert not flows.moves
    assert host.take(decision()) == "DUPLICATE"


def test_killed_before_the_move_it_is_applied_after_restart_or_expires(tmp_path):
    for late, outcome in ((0, "APPLIED"), (5 * S, "EXPIRED")):
        flows, journal = Flows(), Journal(tmp_path / "journal.jsonl")
        host = Host(flows, store=journal)
        flows.slow = True
        host.take(decision(epoch=2 + late))
        flows.slow = False
        host = after_a_kill(journal, flows, tmp_path)
        host.now_ns = late
        assert host.take(decision(epoch=2 + late)) == outcome
        assert len(flows.moves) == (outcome == "APPLIED")


def test_killed_before_reporting_the_same_report_is_published_after_restart(tmp_path):
    flows, journal = Flows(), Journal(tmp_path / "journal.jsonl")
    host = Host(flows, store=journal)
    host.take(decision())
    host = after_a_kill(journal, flows, tmp_path)
    assert host.take(decision()) == "APPLIED"
    assert (host.reports[-1]["from_path"], host.reports[-1]["how"]) == (50_000, "SOCKET")
    assert host.take(decision()) == "DUPLICATE"
    assert len(flows.moves) == 1


def test_killed_after_the_log_had_the_report_it_is_a_duplicate_and_fences_hold(tmp_path):
    flows, journal = Flows(), Journal(tmp_path / "journal.jsonl")
    host = Host(flows, store=journal)
    host.take(decision(5, epoch=3))
    host.it.published(host.reports[-1])
    host = after_a_kill(journal, flows, tmp_path)
    assert host.take(decision(5, epoch=3)) == "DUPLICATE"
    assert host.take(decision(4, epoch=3, to_path=50_004)) == "STALE"
    assert host.take(decision(9, epoch=2, flow_id=OTHER)) == "STALE"
    assert len(flows.moves) == 1


def test_killed_with_a_lease_in_force_the_lease_still_ends_in_time(tmp_path):
    flows, journal = Flows(), Journal(tmp_path / "journal.jsonl")
    host = Host(flows, all_allowed(), store=journal)
    host.take(pace(0, 20_000_000))
    host = after_a_kill(journal, flows, tmp_path, records=all_allowed())
    host.it.tick()
    assert flows.rates == {KEY: 20_000_000}
    host.now_ns = S
    host.it.tick()
    assert (flows.rates, host.outcomes) == ({KEY: 0}, [("s0/1/0", "ENDED")])


def test_an_order_to_revert_during_downtime_undoes_a_former_process_actions(tmp_path):
    flows, journal = Flows(), Journal(tmp_path / "journal.jsonl")
    Host(flows, store=journal).take(decision())
    host = after_a_kill(journal, flows, tmp_path, records=config(mode="OBSERVE", revert_before_ns=20))
    assert flows.paths[KEY] == 50_000
    assert host.outcomes == [("s0/1/0", "REVERTED")]


def test_decisions_wait_for_endpoints_to_reconnect_after_a_start():
    flows = Flows()
    path = flows.paths.pop(KEY)
    host = Host(flows)
    host.it.settled = False
    host.take(decision())
    host.take(decision(1, flow_id=OTHER))
    assert not host.reports
    flows.paths[KEY] = path
    host.it.seen(KEY)
    assert host.outcomes == [("s0/1/0", "APPLIED")]
    host.it.settle()
    assert host.outcomes[1:] == [("s0/1/1", "NO_FLOW")]


def test_a_local_repair_obeys_the_limits_and_policy_comes_first():
    host = Host(records=config(max_actions_per_s=1))
    assert host.it.repair(FLOW, 50_005, "path 50000 is dead")
    assert host.reports[-1]["outcome"] == "LOCAL_REPAIR"
    assert host.reports[-1]["to_path"] == 50_005
    assert re.fullmatch(r"h1/local-repair/\d+/1", host.reports[-1]["decision_id"])
    host.clock_ns = 1
    assert not host.it.repair(FLOW, 50_006, ""), "one a second"
    host.clock_ns = S
    assert host.take(decision(0, to_path=50_002)) == "APPLIED"
    for records in (config(mode="OBSERVE"), config(allowed_actions=["PACE"])):
        host = Host(records=records)
        assert not host.it.repair(FLOW, 50_005, "")
        assert not host.flows.moves


OTHERS = [f"h1/b/qp:eth1:{n}:1" for n in range(10)]


def many(**more):
    return Host(Flows(**{flow.split("/", 2)[2]: 50_000 for flow in OTHERS}), **more)


def test_local_repairs_move_no_more_than_the_share_of_flows_per_minute():
    host = many(records=config(max_moved_share=0.3))
    moved = [host.it.repair(flow, 50_005, "path 50000 is dead", None, 10) for flow in OTHERS]
    assert sum(moved) == 3
    limited = [report for report in host.reports if report["outcome"] == "LIMITED"]
    assert len(limited) == 7
    assert limited[0]["detail"].startswith("max_moved_share: 3 of 10 flows")
    assert not host.it.repair(OTHERS[9], 50_005, "", None, 10)
    assert len(host.reports) == 10, "told once, not with every look"
    host.clock_ns += 61 * S
    assert host.it.repair(OTHERS[9], 50_005, "", None, 10)
    host = many(records=config(max_moved_share=0.0))
    assert not host.it.repair(OTHERS[0], 50_005, "", None, 10)


def test_moves_by_decisions_count_towards_the_share():
    host = many(records=config(max_moved_share=0.2))
    for seq, flow in enumerate(OTHERS[:2]):
        assert host.take(decision(seq, flow_id=flow)) == "APPLIED"
    assert not host.it.repair(OTHERS[2], 50_005, "", None, 10)
    assert host.it.repair(OTHERS[1], 50_005, "", None, 10), "it was moved already"


def test_a_protected_job_is_never_moved_by_local_repair():
    host = Host(records=config(protected_jobs=["j7"]))
    assert not host.it.repair(FLOW, 50_005, "path 50000 is dead", "j7")
    assert host.reports[-1]["outcome"] == "LIMITED"
    assert host.reports[-1]["detail"].startswith("job j7 is protected")
    assert host.it.repair(FLOW, 50_005, "path 50000 is dead", "j8")


@pytest.mark.parametrize("done", [True, False])
def test_killed_during_a_local_repair_it_is_reported_once_and_can_be_reverted(tmp_path, done):
    flows, journal = Flows(), Journal(tmp_path / "journal.jsonl")
    flows.slow = True
    host = Host(flows, store=journal, states=journal.states)
    assert host.it.repair(FLOW, 50_005, "path 50000 is dead")
    if done:
        flows.paths[KEY] = 50_005
    flows.slow, flows.open = False, []
    host = after_a_kill(journal, flows, tmp_path)
    host.it.seen(KEY)
    host.it.seen(KEY)
    assert [report["outcome"] for report in host.reports] == ["LOCAL_REPAIR" if done else "FAILED"]
    assert (host.reports[0]["from_path"], host.reports[0]["to_path"]) == (50_000, 50_005 if done else 50_000)
    assert host.it.in_force == done
    host.it.published(host.reports[0])
    host.now_ns = S
    host.it.take_config(config(version=2, mode="OBSERVE", revert_before_ns=S))
    assert flows.paths[KEY] == 50_000


def test_a_published_local_repair_is_not_reported_twice_and_can_be_reverted_after_a_restart(tmp_path):
    flows, journal = Flows(), Journal(tmp_path / "journal.jsonl")
    host = Host(flows, store=journal, states=journal.states)
    host.it.repair(FLOW, 50_005, "path 50000 is dead")
    published = host.reports[-1]
    again = after_a_kill(journal, flows, tmp_path)
    again.it.seen(KEY)
    assert again.outcomes == [(published["decision_id"], "LOCAL_REPAIR")], (
        "the log had not said that it has it"
    )
    again.it.published(again.reports[0])
    again = after_a_kill(Journal(tmp_path / "journal.jsonl"), flows, tmp_path)
    again.it.seen(KEY)
    assert again.reports == []
    again.now_ns = S
    again.it.take_config(config(version=2, revert_before_ns=S))
    assert flows.paths[KEY] == 50_000


def test_rate_changes_of_one_flow_within_a_second_count_once():
    host = Host(records=config(max_actions_per_s=2, allowed_actions=EVERY))
    for seq in range(20):
        assert host.take(pace(seq, 10**9 + seq)) == "APPLIED"
    assert host.take(decision(20)) == "APPLIED", "room is left to lead it off a dead path"
    assert host.take(decision(0, flow_id=OTHER)) != "APPLIED"


def test_an_epoch_seen_only_in_fallbacks_fences_off_older_decisions():
    host = Host()
    host.it.see_epoch("s0", 7)
    assert host.take(decision(0, epoch=6)) == "STALE"
    assert host.take(decision(0, epoch=7)) == "APPLIED"
