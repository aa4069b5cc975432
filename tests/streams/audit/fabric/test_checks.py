"""All checks of the fabric together: valid records, no finding without a fault, and the choice of checks."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fabrictime.testbed.audit.simulated import Simulated, drawn_swaps, railed
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas import codec
from schemas.records import AuditCategory, AuditResult, AuditSeverity, AuditStatus
from streams.audit.fabric.checks import RULES, fabric_results
from streams.audit.results import Scope
from tests.examples import draws

SCOPE = Scope("r1", 1_000, {}, {})
FLEET = railed(64, 8)


def is_error(result: AuditResult) -> bool:
    return result["status"] == AuditStatus.FAILED and result["severity"] == AuditSeverity.ERROR


@pytest.mark.parametrize("plan", [True, False])
@pytest.mark.parametrize("seed", draws(range(3)))
def test_no_fault_no_finding(seed: int, plan: bool) -> None:
    out = fabric_results(Simulated(FLEET, seed=seed, peers=12).records(plan), SCOPE)
    assert [each for each in out if each["status"] == AuditStatus.FAILED] == []
    assert {each["check"] for each in out} == {rule.check for rule in RULES}
    for each in out:
        codec.encode("AuditResult", each)  # type: ignore[arg-type]
        assert each["category"] == AuditCategory.FABRIC


def test_a_swap_is_one_error_of_cables_and_a_warning_of_rails() -> None:
    swaps = drawn_swaps(FLEET, 1, np.random.default_rng(3))
    out = fabric_results(Simulated(FLEET, peers=12, swaps=swaps).records(), SCOPE)
    failed = {each["check"] for each in out if each["status"] == AuditStatus.FAILED}
    assert failed == {"fabric.rails", "fabric.cables"}
    errors = {each["check"] for each in out if is_error(each)}
    assert errors == {"fabric.cables"}
    alone = fabric_results(Simulated(FLEET, peers=12, swaps=swaps).records(), SCOPE, ["fabric.rails"])
    assert any(map(is_error, alone)), "asked for alone, it is the error"
    hosts = {each["host"] for each in out if each["status"] == AuditStatus.FAILED}
    assert hosts == {nic.partition("/")[0] for nic in swaps[0]}
    assert all(each["remedy"].startswith("swap ") for each in out if each["status"] == AuditStatus.FAILED)


def test_only_chosen_checks_run() -> None:
    out = fabric_results(Simulated(FLEET, peers=4).records(), SCOPE, ["fabric.rails"])
    assert {each["check"] for each in out} == {"fabric.rails"}
    assert len(out) == 8


def test_an_empty_fabric_passes_nothing() -> None:
    out = fabric_results(Simulated(FLEET).records(False, nics=(), paths=(), delays=()), SCOPE)
    assert {each["status"] for each in out} <= {AuditStatus.UNKNOWN, AuditStatus.SKIPPED}


def test_1024_nics_are_evaluated_in_time() -> None:
    records = Simulated(Fleet(Shape.of(1024), 1), peers=5, paths=2).records()
    begin = time.process_time()
    out = fabric_results(records, SCOPE)
    assert time.process_time() - begin < 15
    assert [each for each in out if each["status"] == AuditStatus.FAILED] == []
