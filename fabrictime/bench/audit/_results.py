"""Makes audit results of fleets from a recorded host, for the parts of the bench."""

from __future__ import annotations

from typing import Final

import numpy as np

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.report import AuditedHost, result_record
from schemas.records import AuditFact, AuditResult

RUN: Final = "bench"
NOISE: Final = 0.01
"""Relative standard deviation between hosts of measured figures."""


def host_results(sku: str = "recorded") -> list[AuditResult]:
    """Return the results of the recorded host."""
    host, count = AuditedHost("h1", "bench", sku), len(CHECKS)
    return [
        result_record(run_check(check, HEALTHY), RUN, host, checked_ns=1, checks=count)
        for check in CHECKS.values()
    ]


def fleet_results(hosts: int, chance: np.random.Generator) -> list[AuditResult]:
    """Return the results of `hosts` equal hosts; figures that are not integers get some noise."""
    one = host_results()
    return [
        {**result, "host": f"h{number + 1}", "facts": [_noisy(fact, chance) for fact in result["facts"]]}
        for number in range(hosts)
        for result in one
    ]


def _noisy(fact: AuditFact, chance: np.random.Generator) -> AuditFact:
    if fact["number"] is None or fact["number"].is_integer():
        return fact
    value = fact["number"] * (1 + NOISE * float(chance.standard_normal()))
    return {**fact, "text": f"{value:g}", "number": value}
