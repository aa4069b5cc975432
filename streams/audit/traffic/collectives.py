"""Evaluates a collective over several hosts: bandwidth by setting, slow hosts, uneven settings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from schemas.records import AuditAction, AuditCategory, AuditFact, AuditResult, AuditSeverity, AuditStatus
from streams.audit.results import FLEET, Found, Rule, Scope, results_of
from streams.audit.traffic.bisection import Bisected

FACT: Final = "all_reduce_nodes_gb_per_s"
"""Name of the bandwidth fact, as in the file of machine types."""
MIN_OF_BEST: Final = 0.5
"""Share of the best bandwidth below which a path, and not the choice of queue pairs or shape, is at fault."""
HOSTS: Final = Rule(
    "collectives.hosts",
    "A collective over the hosts has full bandwidth",
    AuditSeverity.ERROR,
    AuditAction.ISOLATE,
    "Take the host out; check its NICs by ib_write_bw, PCIe width and GPU clocks",
    (49,),
)
SETTINGS: Final = Rule(
    "collectives.hosts-settings",
    "The bandwidth over the hosts does not depend on queue pairs and shape",
    AuditSeverity.WARNING,
    AuditAction.MONITOR,
    "Check ECMP, PFC and each NIC; set the best choice for jobs",
    (49,),
)
RULES: Final = (HOSTS, SETTINGS)


def is_low(figures: Mapping[str, float], minimum: float | None) -> bool:
    """Return whether the best setting fails or is below the minimum, GB/s; True without a minimum."""
    return minimum is None or max(figures.values(), default=0.0) < minimum


def collective_results(
    hosts: Sequence[str],
    figures: Mapping[str, float],
    errors: Mapping[str, str],
    minimum: float | None,
    bisected: Bisected | None,
    scope: Scope,
) -> list[AuditResult]:
    """Return the results of all hosts, and the results of the group under the host `FLEET`.

    `figures`: GB/s of each setting over all hosts, 0 if it failed; `errors`: reasons of failures. `minimum`:
    GB/s expected of the machine type, None if unknown. `bisected`: outcome of the search, None if none was
    needed.
    """
    results = [
        *results_of(HOSTS, (*_group(figures, minimum, bisected), *_members(hosts, bisected)), scope),
        *results_of(SETTINGS, _settings(figures, errors), scope),
    ]
    facts = [
        AuditFact(name=FACT, subject=setting, text=f"{value:g}", number=value)
        for setting, value in figures.items()
        if value
    ]
    return [
        {
            **result,
            "category": AuditCategory.COLLECTIVES,
            "facts": facts if result["host"] == FLEET and result["check"] == SETTINGS.check else [],
        }
        for result in results
    ]


def _group(figures: Mapping[str, float], minimum: float | None, bisected: Bisected | None) -> Iterator[Found]:
    best = max(figures.values(), default=0.0)
    expected = minimum
    if expected is None and bisected is not None:
        expected = bisected.minimum
    if not best and not (bisected is not None and bisected.slow):
        yield Found(FLEET, "", AuditStatus.UNKNOWN, "no collective over all hosts ended")
    elif not expected:
        text = f"{best:,.1f} GB/s, with nothing to compare: expected a machine type, or three hosts"
        yield Found(FLEET, "", AuditStatus.UNKNOWN, text)
    else:
        status = AuditStatus.FAILED if best < expected else AuditStatus.PASSED
        yield Found(FLEET, "", status, f"{best:,.1f} GB/s, expected at least {expected:,.1f}")
    for group in bisected.together if bisected is not None else ():
        middle = len(group) // 2
        text = f"slow together, and fast alone: {', '.join(group[:middle])} and {', '.join(group[middle:])}"
        remedy = "Check the links and routes between the two groups: `fabrictime links`"
        yield Found(FLEET, group[0], AuditStatus.FAILED, text, remedy)
    if bisected is not None and not bisected.is_complete:
        text = f"the search ended after {bisected.runs} runs, its limit"
        yield Found(FLEET, "search", AuditStatus.UNKNOWN, text)


def _members(hosts: Sequence[str], bisected: Bisected | None) -> Iterator[Found]:
    for host in hosts:
        if bisected is not None and host in bisected.slow:
            text = f"slow with two partners: below {bisected.minimum:,.1f} GB/s"
            yield Found(host, "", AuditStatus.FAILED, text)
        elif bisected is not None and host in bisected.suspects:
            text = f"in a slow part, and not told apart from the others after {bisected.runs} runs"
            yield Found(host, "", AuditStatus.UNKNOWN, text)
        elif bisected is not None and not bisected.minimum:
            yield Found(host, "", AuditStatus.UNKNOWN, "nothing to compare with")
        else:
            yield Found(host, "", AuditStatus.PASSED, "not slow")


def _settings(figures: Mapping[str, float], errors: Mapping[str, str]) -> Iterator[Found]:
    best = max(figures.values(), default=0.0)
    for setting, value in figures.items():
        if setting in errors:
            yield Found(FLEET, setting, AuditStatus.UNKNOWN, f"{setting}: {errors[setting]}")
        else:
            is_even = value >= MIN_OF_BEST * best
            text = f"{setting}: {value:,.1f} GB/s, the best {best:,.1f}"
            yield Found(FLEET, setting, AuditStatus.PASSED if is_even else AuditStatus.FAILED, text)
