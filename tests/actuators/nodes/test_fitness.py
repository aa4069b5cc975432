"""Fitness of hosts: what counts as fit, unfit and unknown."""

import threading
import time

from actuators.nodes.fitness import AuditHistory, Fitness
from fabrictime.testbed.audit.faults import FAULTS
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.agent import AuditAgent
from producers.audit.checks import CHECKS as EVERY
from producers.audit.report import AuditedHost
from producers.audit.settings import AuditSettings
from schemas.records import AuditRun, AuditSeverity, AuditStatus
from tests.actuators.audit_results import CHECKS, result, run_of


def history(*results, run=None):
    found = AuditHistory(run)
    for at_ns, each in enumerate(results, 1):
        found.take(each, at_ns)
    return found


def test_a_complete_run_without_an_error_is_fit():
    assert history(*run_of()).fitness("n1", 0).fitness is Fitness.FIT
    warned = [*run_of()[:2], result(check="pcie.link", status="FAILED", severity=AuditSeverity.WARNING)]
    assert history(*warned).fitness("n1", 0).fitness is Fitness.FIT


def test_an_error_makes_a_host_unfit_with_check_and_value():
    found = history(*run_of(failed=["node.ecc"])).fitness("n1", 0)
    assert found.fitness is Fitness.UNFIT
    assert found.reasons == ("node.ecc: mlx5_0: 'carrier' is down, expected up",)
    assert [each.run for each in found.failures] == ["r1"]


def test_an_error_of_an_older_run_stays_until_its_check_passes():
    partial = result(check="pcie.link", run="r2", checks=1)
    found = history(*run_of(failed=["node.ecc"]), partial)
    assert found.fitness("n1", 0).fitness is Fitness.UNFIT
    found.take(result(check="node.ecc", run="r3", checks=1), 9)
    assert found.fitness("n1", 0).fitness is Fitness.FIT


def test_nothing_incomplete_or_old_is_fit():
    assert history().fitness("n1", 0).reasons == ("no result",)
    assert history(run="r9").fitness("n1", 0).reasons == ("no result of run r9",)
    incomplete = history(*run_of()[:2]).fitness("n1", 0)
    assert (incomplete.fitness, incomplete.reasons) == (Fitness.UNKNOWN, ("run r1: 2 of 3 results",))
    assert history(*run_of()).fitness("n1", 5).reasons == ("no result",)
    skipped = history(*run_of(failed=CHECKS, status=AuditStatus.SKIPPED)).fitness("n1", 0)
    assert skipped.reasons == ("no check passed",)


def test_results_of_the_evaluation_do_not_complete_a_run_and_count_as_errors():
    compared = result(check="fleet.kernel", status="PASSED", checks=1)
    assert history(*run_of()[:2], compared).fitness("n1", 0).fitness is Fitness.UNKNOWN
    assert history(compared).fitness("n1", 0).reasons == ("no result",)
    collective = result(check="collectives.hosts", status="PASSED", checks=1)
    assert history(collective).fitness("n1", 0).reasons == ("no result",)
    wrong = result(check="fabric.cables", status="FAILED", checks=1)
    assert history(*run_of(), wrong).fitness("n1", 0).fitness is Fitness.UNFIT


def test_unknown_checks_count_if_strict():
    found = history(*run_of(failed=["node.ecc"], status=AuditStatus.UNKNOWN))
    assert found.fitness("n1", 0).fitness is Fitness.FIT
    assert found.fitness("n1", 0, strict=True).fitness is Fitness.UNKNOWN


def test_one_run_alone_counts_where_it_is_named():
    results = [*run_of(failed=["node.ecc"]), *run_of(run="r2")]
    assert history(*results, run="r1").fitness("n1", 0).fitness is Fitness.UNFIT
    assert history(*results).fitness("n1", 0).fitness is Fitness.FIT
    assert history(*results).hosts == ["n1"]


def test_a_repeated_result_counts_once():
    found = history(*run_of(failed=["node.ecc"]), *run_of()).fitness("n1", 0)
    assert found.fitness is Fitness.FIT
    assert len(found.outcomes["node.ecc"]) == 1


def answers_of(host):
    """Return the results of a real agent for a recorded host."""
    settings = AuditSettings(every_s=0)
    agent = AuditAgent(settings, {"n1": AuditedHost("n1", "", "")}, lambda name, request: host, EVERY)
    run = AuditRun(run="r1", requested_ns=0, hosts=[], only=[], active=False, limit_s=60)
    agent.on_run("r1", run, round(time.time() * 1000))
    found = []
    while agent.is_busy:
        threading.Event().wait(0.005)
        found += agent.results()
    return [*found, *agent.results()]


def test_the_results_of_an_agent_are_fit_until_a_fault_is_planted():
    answers = answers_of(HEALTHY)
    assert history(*answers).fitness("n1", 0).fitness is Fitness.FIT
    assert history(*answers[:-1]).fitness("n1", 0).fitness is Fitness.UNKNOWN
    faulty = HEALTHY.copy()
    FAULTS["ECC"][1](faulty)
    found = history(*answers_of(faulty)).fitness("n1", 0)
    assert (found.fitness, [each.check for each in found.failures]) == (Fitness.UNFIT, ["node.ecc"])


def test_the_answer_of_an_agent_alone_is_no_passed_check():
    found = history(result(check="agent.answer", checks=1)).fitness("n1", 0)
    assert found.reasons == ("no check passed",)


def test_a_run_of_some_checks_shows_no_fitness_beside_whole_runs():
    """`fabrictime audit --only frontend.ssh` must not open the gate."""
    partial = result(check="pcie.link", run="r2", checks=1)
    found = history(partial)
    assert found.fitness("n1", 0).fitness is Fitness.FIT
    for each in run_of("n2"):
        found.take(each, 9)
    assert found.fitness("n1", 0).reasons == ("run r2: 1 of 3 results",)
    assert found.fitness("n2", 0).fitness is Fitness.FIT


def test_a_host_that_a_later_comparison_does_not_name_has_passed_it():
    odd = result(check="fleet.driver", status="FAILED", checks=1)
    found = history(*run_of(), odd, *run_of(run="r2"))
    assert found.fitness("n1", 0).fitness is Fitness.UNFIT, "run r2 was not evaluated"
    found.take(result("fleet", "fleet.driver", run="r2", checks=1), 9)
    outcomes = found.fitness("n1", 0).outcomes["fleet.driver"]
    assert [(each.run, each.status) for each in outcomes] == [("r2", "PASSED"), ("r1", "FAILED")]
    assert found.fitness("n1", 0).fitness is Fitness.FIT
    found.take(result("fleet", "fleet.driver", run="r3", checks=1), 10)
    assert len(found.fitness("n1", 0).outcomes["fleet.driver"]) == 2, "the host is not in run r3"
