"""Policy of node actions: drains, resumes, circuit breaker, hysteresis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.nodes import policy
from actuators.nodes.caps import NodeRules
from actuators.nodes.fitness import AuditHistory
from actuators.nodes.policy import Fleet, NodeState, NodeStep, is_ours, is_same_drain, reason_of
from schemas.records import AuditStatus, FlowAction
from tests.actuators.audit_results import CHECKS, result, run_of

HALF = NodeRules(max_out_share=0.5)


def plan(states, fitness, rules, host_by_node=None, **fleet):
    return policy.plan(states, fitness, Fleet(lambda node: rules, host_by_node or {}, **fleet))


def fitness_of(*runs):
    history = AuditHistory()
    for at_ns, each in enumerate((one for run in runs for one in run), 1):
        history.take(each, at_ns)
    return {host: history.fitness(host, 0) for host in history.hosts}


def nodes(count, **drained):
    names = [f"n{number}" for number in range(1, count + 1)]
    return [NodeState(name, name in drained, drained.get(name, ""), "IDLE") for name in names]


def drain_reason(run="r1", failed=("node.ecc",)):
    return reason_of(fitness_of(run_of(run=run, failed=failed))["n1"].failures)


def test_an_unfit_node_is_drained_with_run_check_and_value():
    (step,) = plan(nodes(4), fitness_of(run_of(failed=["node.ecc"]), run_of("n2")), HALF)
    assert (step.node, step.action, step.obstacle) == ("n1", FlowAction.DRAIN, "")
    assert step.text == "fabrictime: run=r1 checks=node.ecc: mlx5_0:  carrier  is down, expected up"
    assert step.decision_id == "drain n1 r1"
    assert is_ours(step.text)


def test_a_clean_run_resumes_our_drain_alone():
    steps = plan(
        nodes(3, n1=drain_reason(), n2="kaputt, Anna"),
        fitness_of(run_of(run="r2"), run_of("n2", "r2")),
        HALF,
    )
    assert [(step.node, step.action, step.obstacle) for step in steps] == [("n1", FlowAction.RESUME, "")]
    assert steps[0].text == "node.ecc passed in run r2; drained by run r1"


def test_the_run_that_drained_does_not_resume():
    (step,) = plan(nodes(3, n1=drain_reason()), fitness_of(run_of(failed=["node.ecc"])), HALF)
    assert step.obstacle.startswith("node.ecc passed in 0 runs since run r1, expected 1; unfit: node.ecc")


@pytest.mark.parametrize("status", [AuditStatus.UNKNOWN, AuditStatus.SKIPPED])
def test_a_check_that_no_longer_answers_does_not_resume(status):
    steps = plan(
        nodes(3, n1=drain_reason()), fitness_of(run_of(run="r2", failed=["node.ecc"], status=status)), HALF
    )
    assert steps[0].obstacle == "node.ecc passed in 0 runs since run r1, expected 1"


def test_another_error_does_not_resume():
    steps = plan(nodes(3, n1=drain_reason()), fitness_of(run_of(run="r2", failed=["pcie.link"])), HALF)
    assert steps[0].obstacle.startswith("unfit: pcie.link")
    assert len(steps) == 1, "a node that is drained is not drained again"


def test_a_node_that_another_drained_stays_as_it_is():
    (step,) = plan(nodes(3, n1="Anna: new riser"), fitness_of(run_of(failed=["node.ecc"])), HALF)
    assert (step.action, step.obstacle) == (FlowAction.DRAIN, "already out: Anna: new riser")
    assert not step.is_limited


def test_a_reason_of_ours_that_was_edited_is_left_to_people():
    (step,) = plan(nodes(3, n1="fabrictime: ask Anna"), fitness_of(run_of(run="r2")), HALF)
    assert step.obstacle == "fabrictime: ask Anna: expected fabrictime: run=RUN checks=CHECKS: TEXT"


def test_the_breaker_counts_nodes_that_others_drained_and_takes_the_worst_first():
    unfit = [run_of(f"n{number}", failed=["node.ecc"]) for number in (2, 3)]
    steps = plan(
        nodes(8, n1="Anna"),
        fitness_of(*unfit, run_of("n4", failed=["node.ecc", "pcie.link"])),
        NodeRules(0.25),
    )
    assert [(step.node, bool(step.obstacle)) for step in steps] == [("n4", False), ("n2", True), ("n3", True)]
    assert steps[1].is_limited
    expected = "circuit breaker: 2 of 8 nodes are out, at most 2 may be (max_out_share 0.25)"
    assert steps[1].obstacle == f"{expected}: waits until one returns"


def test_a_minimum_of_nodes_stays_in():
    fitness = fitness_of(run_of(failed=["node.ecc"]))
    (step,) = plan(nodes(2), fitness, NodeRules(0.5, min_in=2))
    assert step.obstacle == "2 of 2 nodes are in, at least 2 must stay (min_in): waits until one returns"
    assert plan(nodes(4), fitness, NodeRules(0.0))[0].is_limited


def test_a_resume_frees_nothing_in_the_same_pass():
    fitness = fitness_of(run_of(run="r2"), run_of("n2", "r2", failed=["node.ecc"]))
    steps = plan(nodes(4, n1=drain_reason()), fitness, NodeRules(0.25))
    assert [(step.action, step.is_limited) for step in steps] == [
        (FlowAction.RESUME, False),
        (FlowAction.DRAIN, True),
    ]


def test_hysteresis_in_both_directions():
    twice = NodeRules(0.5, failed_runs=2, clean_runs=2)
    once = run_of(failed=["node.ecc"])
    again = run_of(run="r2", failed=["node.ecc"])
    assert plan(nodes(4), fitness_of(once), twice) == []
    assert plan(nodes(4), fitness_of(once, run_of(run="r0"), again), twice) == []
    assert len(plan(nodes(4), fitness_of(once, again), twice)) == 1
    drained = nodes(4, n1=drain_reason("r2"))
    (step,) = plan(drained, fitness_of(again, run_of(run="r3")), twice)
    assert step.obstacle == "node.ecc passed in 1 runs since run r2, expected 2"
    (step,) = plan(drained, fitness_of(again, run_of(run="r3"), run_of(run="r4")), twice)
    assert not step.obstacle


def test_unknown_neither_drains_nor_resumes():
    assert plan(nodes(4), fitness_of(run_of()[:1]), HALF) == []
    incomplete = [result(check="node.ecc", run="r2")]
    (step,) = plan(nodes(4, n1=drain_reason()), fitness_of(incomplete), HALF)
    assert step.obstacle == "unknown: run r2: 1 of 3 results"


def test_hosts_that_are_named_otherwise():
    (step,) = plan(nodes(4), fitness_of(run_of("gpu-1.dc", failed=["node.ecc"])), HALF, {"n2": "gpu-1.dc"})
    assert (step.node, step.host) == ("n2", "gpu-1.dc")


def test_a_long_reason_names_its_first_check_and_is_still_ours():
    long = [
        result(check=f"backend.{'x' * 90}{number}", status="FAILED", text="y" * 500) for number in range(9)
    ]
    text = reason_of(fitness_of(long)["n1"].failures)
    assert len(text) <= 300
    assert is_same_drain(text, text)
    assert not is_same_drain(text, drain_reason())


@given(
    out=st.dictionaries(st.integers(1, 20), st.sampled_from(["", "Anna", "down"]), max_size=20),
    unfit=st.sets(st.integers(1, 20)),
    share=st.floats(0, 0.5),
    min_in=st.integers(1, 20),
)
def test_no_more_are_out_than_the_limits_allow(out, unfit, share, min_in):
    states = [NodeState(f"n{number}", number in out, out.get(number, "")) for number in range(1, 21)]
    fitness = fitness_of(*(run_of(f"n{number}", failed=CHECKS[:1]) for number in unfit))
    drains = [step for step in plan(states, fitness, NodeRules(share, min_in)) if not step.obstacle]
    assert not {int(step.node[1:]) for step in drains} & set(out)
    if drains:
        assert len(out) + len(drains) <= share * 20 + 1e-9
        assert 20 - len(out) - len(drains) >= min_in


def test_the_identity_of_an_action_keeps_long_names_apart():
    one, two = (
        NodeStep("n" * 253, "h1", FlowAction.DRAIN, f"{'r' * 127}{number}", "").decision_id
        for number in range(2)
    )
    assert one != two
    assert len(one) == len(two) == 256


@pytest.mark.parametrize(("count", "share"), [(0, 0.5), (1, 0.5), (2, 0.5), (2, 1.0), (1, 1.0), (9, 0.1)])
def test_the_breaker_keeps_the_last_node_and_a_share_below_one(count, share):
    unfit = fitness_of(*(run_of(f"n{number}", failed=["node.ecc"]) for number in range(1, count + 1)))
    steps = plan(nodes(count), unfit, NodeRules(max_out_share=share))
    drained = sum(not step.obstacle for step in steps)
    assert drained == min(int(share * count), max(count - 1, 0))
    assert all(step.is_limited for step in steps if step.obstacle)


def test_a_drain_by_a_comparison_ends_after_a_run_that_does_not_name_the_host():
    odd = [*run_of(), result(check="fleet.driver", status=AuditStatus.FAILED, checks=1)]
    reason = reason_of(fitness_of(odd)["n1"].failures)
    clean = [*run_of(run="r2"), result("fleet", "fleet.driver", run="r2", checks=1)]
    (step,) = plan(nodes(4, n1=reason), fitness_of(odd, clean), HALF)
    assert (step.action, step.obstacle) == (FlowAction.RESUME, "")
