"""Measures the evaluation of fleets with planted faults: hosts with a deviating value, and swapped cables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._parts import side_by_side
from fabrictime.bench.audit._results import fleet_results
from fabrictime.testbed.audit.simulated import Simulated, drawn_swaps
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.records import AuditFact, AuditResult, AuditStatus
from schemas.topology import nic_end
from streams.audit.fabric.cabling import swap_text
from streams.audit.fabric.checks import fabric_results
from streams.audit.hosts.compare import compare, rule_name
from streams.audit.results import Scope

HOSTS: Final = 64
DRAWS, QUICK_DRAWS = 200, 20
NICS: Final = 1024
MAX_SWAPS: Final = 4
REPEATS, QUICK_REPEATS = 4, 1
ODD_FACTOR, ODD_STEP = 2.0, 25.0
"""A planted odd figure is the usual one times ODD_FACTOR, plus ODD_STEP."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or half of one with `quick`."""
    draws = QUICK_DRAWS if quick else DRAWS
    progress(f"fleet: {draws} fleets of {HOSTS} hosts with an odd one")
    outcomes = list(side_by_side(_odd_one, range(draws)))
    hits, false = sum(is_hit for is_hit, _ in outcomes), sum(false for _, false in outcomes)
    progress(f"fleet: swapped cables of {NICS:,} NICs")
    repeats = QUICK_REPEATS if quick else REPEATS
    cases = [(seed, swaps) for seed in range(repeats) for swaps in range(MAX_SWAPS + 1)]
    right = list(side_by_side(_swaps_named_right, cases))
    return {
        "odd_one_out_found": Figure(hits / draws, note=f"{draws} fleets of {HOSTS} hosts"),
        "false_outliers": Figure(false, note=f"{draws} fleets with one odd host"),
        "miswired_rails_named_right": Figure(
            sum(right) / len(right), note=f"{len(right)} fleets with 0 to {MAX_SWAPS} swaps"
        ),
    }


def _odd_one(seed: int) -> tuple[bool, int]:
    """Plant one deviating value in a fleet; return whether it was found, and the number of other findings."""
    chance = np.random.default_rng(seed)
    results = fleet_results(HOSTS, chance)
    stated = [at for at, result in enumerate(results) if result["facts"]]
    at = int(chance.choice(stated))
    number = int(chance.integers(len(results[at]["facts"])))
    results[at] = made_odd(results[at], number)
    fact = results[at]["facts"][number]
    return outcome(compare(results), results[at]["host"], fact)


def made_odd(result: AuditResult, number: int) -> AuditResult:
    """Return a copy of a result in which one fact has a value that no other host has."""
    facts = list(result["facts"])
    fact = facts[number]
    if fact["number"] is None:
        facts[number] = {**fact, "text": f"{fact['text']}-odd"}
    else:
        value = fact["number"] * ODD_FACTOR + ODD_STEP
        facts[number] = {**fact, "text": f"{value:g}", "number": value}
    return {**result, "facts": facts}


def outcome(results: Sequence[AuditResult], host: str, fact: AuditFact) -> tuple[bool, int]:
    """Return whether the deviating value was found at its subject, and the number of other findings."""
    findings = [
        (result["host"], result["check"], finding["subject"])
        for result in results
        for finding in result["findings"]
        if finding["status"] == AuditStatus.FAILED
    ]
    planted = (host, f"fleet.{rule_name(fact['name'])}", fact["subject"])
    return planted in findings, sum(finding != planted for finding in findings)


def _swaps_named_right(case: tuple[int, int]) -> bool:
    """Swap cables of a fleet; return whether exactly the swapped NICs fail, each with the right remedy."""
    seed, count = case
    fleet = Fleet(Shape.of(NICS), 1)
    swaps = drawn_swaps(fleet, count, np.random.default_rng(100 * seed + count))
    fabric = Simulated(fleet, seed=seed, peers=2, paths=1, swaps=swaps).records(plan=False, delays=())
    results = fabric_results(fabric, Scope("bench", 1, {}, {}), ["fabric.rails"])
    got = {
        f"{result['host']}/{finding['subject']}": result["remedy"]
        for result in results
        for finding in result["findings"]
        if finding["status"] == AuditStatus.FAILED
    }
    return got == _expected(fleet, swaps)


def _expected(fleet: Fleet, swaps: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the expected remedy of each swapped NIC: to exchange the cables of two leaf ports."""

    def port(nic: str) -> str:
        return fleet.link_ids[2 * fleet.nic_index[nic]].split(">")[1]

    return {
        nic: swap_text(*(nic_end(port(end).replace(":", "/")) for end in pair))
        for pair in swaps
        for nic in pair
    }
