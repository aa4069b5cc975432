"""Compares the hosts of one SKU with each other: texts with the majority, numbers with the median. Pure.

An odd host is found without a written rule. A group that is split, or too small to have a majority, is
UNKNOWN with the reason; no host of such a group is called odd.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.records import AuditAction, AuditFact, AuditResult, AuditSeverity, AuditStatus
from schemas.units import number_text
from streams.audit.hosts.part_history import PART_FACTS
from streams.audit.results import FLEET, Found, Rule, Scope, latest, results_of
from streams.audit.robust import MIN_VALUES, Spread, odd_ones

MIN_HOSTS: Final = 4
"""Smallest number of hosts of which one can be odd: three agree, and one differs."""
PRESENT_SHARE: Final = 0.75
"""Share of the hosts that must have a device for its absence elsewhere to be a finding."""
NOISE_FLOOR: Final = 0.05
"""Relative deviation up to which a measured figure is never an outlier."""
EXACT_SHARE: Final = 0.95
"""Share of hosts that state exactly one figure from which on it counts as configured, not measured."""
EXACT_FLOOR: Final = 0.001
"""Relative deviation up to which a configured figure is no finding; 191 of 192 processors deviate by more."""
MAX_ODD_SHARE: Final = 0.25
"""Share of deviating hosts above which the fleet has two kinds of hosts, and none is odd."""
FEW_EVENTS: Final = 10.0
"""Value up to which a counter of events deviates by chance, if it is 0 in most of the fleet."""
UNIT_FLOORS: Final = {"celsius": 10.0, "percent": 2.0, "share": 0.02, "ppm": 1.0}
"""Maps unit at the end of a fact's name to the deviation up to which it is never an outlier."""
MAX_KINDS: Final = 3
"""Largest number of different values that the text about a split group quotes."""


@dataclass(slots=True)
class Series:
    """One fact of one SKU, as reported by one check. `values` maps subject to host to value."""

    sku: str
    name: str
    check: AuditResult
    values: dict[str, dict[str, AuditFact]] = field(default_factory=dict)

    @property
    def hosts(self) -> set[str]:
        """Hosts with a value for any subject."""
        return {host for values in self.values.values() for host in values}


def series_of(results: Iterable[AuditResult]) -> list[Series]:
    """Return the facts of the hosts, sorted by SKU, name and check, without the histories of parts.

    Facts of the same name from two checks stay separate, such as all_reduce by NCCL and by RCCL.
    """
    series_by_key: dict[tuple[str, str, str], Series] = {}
    for result in results:
        for fact in result["facts"]:
            if fact["name"] in PART_FACTS:
                continue
            key = result["sku"], fact["name"], result["check"]
            if key not in series_by_key:
                series_by_key[key] = Series(result["sku"], fact["name"], result)
            series_by_key[key].values.setdefault(fact["subject"], {})[result["host"]] = fact
    return [series_by_key[key] for key in sorted(series_by_key)]


def compare(results: Iterable[AuditResult]) -> list[AuditResult]:
    """Return a `fleet.<fact>` result for each odd host, and one per fact for the fleet.

    The fleet's result is PASSED with the usual value, or UNKNOWN if there is none.
    """
    newest_results = latest(results)
    if not newest_results:
        return []
    scope = Scope.of(newest_results)
    ran: dict[tuple[str, str], dict[str, AuditStatus]] = {}
    for result in newest_results:
        ran.setdefault((result["sku"], result["check"]), {})[result["host"]] = AuditStatus(result["status"])
    by_fact: dict[str, list[tuple[Series, list[Found]]]] = {}
    for series in series_of(newest_results):
        findings = list(_evaluate(series, ran[series.sku, series.check["check"]]))
        by_fact.setdefault(series.name, []).append((series, findings))
    out: list[AuditResult] = []
    for parts in by_fact.values():
        skus = sorted({series.sku for series, _ in parts})
        rule = _rule([series for series, _ in parts])
        everything = [finding for _, part in parts for finding in part]
        out += results_of(rule, everything, scope.with_sku(skus[0] if len(skus) == 1 else ""))
    return out


def rule_name(fact: str) -> str:
    """Return a fact's name as part of a check id, without slashes and spaces."""
    plain = "".join("-" if character in "/>" or character.isspace() else character for character in fact)
    return plain[:110] or "unnamed"


def _rule(every: Sequence[Series]) -> Rule:
    """Return the rule of a fact; it is as severe as the most severe check that reports the fact."""
    checks = [series.check for series in every]
    grave = next((check for check in checks if check["severity"] == AuditSeverity.ERROR), checks[0])
    name = every[0].name
    return Rule(
        f"fleet.{rule_name(name)}",
        f"Hosts of one SKU have the same {name}",
        AuditSeverity(grave["severity"]),
        AuditAction(grave["action"]),
        f"Bring the host in line with the fleet. {grave['remedy']}".strip(),
    )


def _evaluate(series: Series, status_of: Mapping[str, AuditStatus]) -> Iterator[Found]:
    hosts = series.hosts
    if len(hosts) == 1:
        yield Found(FLEET, series.sku, AuditStatus.SKIPPED, f"one host has {series.name}: nothing to compare")
        return
    rest: dict[tuple[str, str], AuditFact] = {}
    for subject, values in sorted(series.values.items()):
        if 2 * len(values) > len(hosts):
            yield from _Group(series, {(host, subject): fact for host, fact in values.items()}).evaluate()
            yield from _missing(series, subject, values, status_of)
        else:
            rest.update({(host, subject): fact for host, fact in values.items()})
    if rest:
        # devices without namesakes on other hosts: the reason may be their name, so none is accused
        for finding in _Group(series, rest, MIN_VALUES).evaluate():
            if finding.status is AuditStatus.FAILED:
                yield Found(finding.host, finding.subject, AuditStatus.UNKNOWN, finding.text)
            else:
                yield finding


def _missing(
    series: Series, subject: str, values: Mapping[str, AuditFact], status_of: Mapping[str, AuditStatus]
) -> Iterator[Found]:
    """Yield the hosts that ran the check but lack this subject, if nearly all other hosts have it."""
    if len(values) < MIN_HOSTS - 1 or len(values) < PRESENT_SHARE * len(status_of):
        return
    for host in sorted(status_of.keys() - values.keys()):
        thing = f"{series.name} of {subject}" if subject else series.name
        text = f"{host} has no {thing}; {len(values)} of {len(status_of)} hosts have one"
        status = AuditStatus.FAILED
        if status_of[host] is AuditStatus.UNKNOWN:
            status, text = AuditStatus.UNKNOWN, f"{host}: {thing} could not be read; {text}"
        elif status_of[host] is AuditStatus.SKIPPED and not series.sku:
            status, text = AuditStatus.UNKNOWN, f"{text}; its SKU is unknown, and it may be of another kind"
        yield Found(host, subject, status, text)


class _Group:
    """Values that are compared with each other, as facts by (host, subject)."""

    def __init__(
        self, series: Series, values: Mapping[tuple[str, str], AuditFact], minimum: int = MIN_HOSTS
    ) -> None:
        self._series = series
        self._units = sorted(values)
        self._facts = [values[unit] for unit in self._units]
        self._minimum, self._few = minimum, len(self._units) < minimum
        subjects = {subject for _, subject in self._units}
        self._thing = series.name + (
            f" of {subjects.pop()}" if len(subjects) == 1 and "" not in subjects else ""
        )

    def evaluate(self) -> Iterator[Found]:
        """Yield the findings about odd values, and the outcome for the whole group."""
        figures = [fact["number"] for fact in self._facts]
        if 2 * sum(number is not None for number in figures) > len(figures):
            return self._figures(np.array([math.nan if number is None else number for number in figures]))
        return self._texts()

    def _of_group(self, status: AuditStatus, text: str) -> Found:
        return Found(FLEET, self._series.sku, status, text)

    def _odd(self, at: int, majority: str, agree: int) -> Found:
        host, subject = self._units[at]
        text = (
            f"{host} has {self._thing} {_quoted(self._facts[at])}, the fleet has {majority} "
            f"({agree} of {len(self._units)} hosts)"
        )
        return Found(host, subject, AuditStatus.FAILED, text)

    def _texts(self) -> Iterator[Found]:
        counts = Counter(fact["text"] for fact in self._facts)
        kinds = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        majority, agree = kinds[0]
        if len(kinds) > 1 and (self._few or 2 * agree <= len(self._facts)):
            quoted = ", ".join(f"{count} have {text!r:.60}" for text, count in kinds[:MAX_KINDS])
            reason = f"fewer than {self._minimum} values" if self._few else "no majority"
            yield self._of_group(AuditStatus.UNKNOWN, f"{self._thing} differs, {reason}: {quoted}")
            return
        yield self._of_group(
            AuditStatus.PASSED, f"{agree} of {len(self._facts)} hosts have {self._thing} {majority!r:.80}"
        )
        for at, fact in enumerate(self._facts):
            if fact["text"] != majority:
                yield self._odd(at, repr(majority)[:80], agree)

    def _figures(self, numbers: NDArray[np.float64]) -> Iterator[Found]:
        finite = np.isfinite(numbers)
        for at in np.flatnonzero(~finite).tolist():
            host, subject = self._units[at]
            text = f"{host} has {self._thing} {self._facts[at]['text']!r:.60}, which is no figure"
            yield Found(host, subject, AuditStatus.UNKNOWN, text)
        where = np.flatnonzero(finite)
        if not len(where):
            return
        values = numbers[where]
        spread, is_outlier = odd_ones(values, *self._floors(values))
        unsure = self._few or (len(values) < MIN_VALUES and spread.mad > 0)
        if is_outlier.any() or unsure:
            reason = self._reason_against(values, spread, is_outlier, unsure)
            if reason:
                low, high = (number_text(value, 6) for value in (values.min(), values.max()))
                text = f"{self._thing} from {low} to {high}, {reason}"
                yield self._of_group(AuditStatus.UNKNOWN, text)
                return
        agree = len(values) - int(is_outlier.sum())
        median_text = f"a median of {number_text(spread.median, 6)} with MAD {number_text(spread.mad)}"
        yield self._of_group(
            AuditStatus.PASSED, f"{agree} of {len(values)} hosts have {self._thing} near {median_text}"
        )
        for at in where[is_outlier].tolist():
            yield self._odd(at, median_text, agree)

    def _reason_against(
        self,
        values: NDArray[np.float64],
        spread: Spread,
        is_outlier: NDArray[np.bool_],
        unsure: bool,
    ) -> str:
        """Return the reason why no host can be called odd; empty if a host can be."""
        near = np.abs(values - spread.median) <= NOISE_FLOOR * abs(spread.median)
        if unsure:
            return "" if near.all() else f"{len(values)} values are too few for the odd one"
        if is_outlier.sum() > MAX_ODD_SHARE * len(values):
            return f"{int(is_outlier.sum())} of {len(values)} far from the median: more than one kind of host"
        return ""

    def _floors(self, values: NDArray[np.float64]) -> tuple[float, float]:
        """Return the relative and the absolute deviation up to which a value is no outlier."""
        median = float(np.median(values))
        same = int(np.count_nonzero(values == median))
        exact = same >= min(EXACT_SHARE * len(values), len(values) - 1)
        is_integral = not bool((values % 1).any())
        return deviation_floors(self._series.name, median, is_integral=is_integral, exact=exact)


def deviation_floors(fact: str, median: float, *, is_integral: bool, exact: bool) -> tuple[float, float]:
    """Return the relative and the absolute deviation of a number from its median that are always allowed.

    `is_integral`: its values are whole numbers; `exact`: it is configured rather than measured.
    """
    absolute = UNIT_FLOORS.get(fact.rpartition("_")[2], 0.0)
    if not median and is_integral:
        absolute = max(absolute, FEW_EVENTS)
    return EXACT_FLOOR if exact else NOISE_FLOOR, absolute


def _quoted(fact: AuditFact) -> str:
    return fact["text"][:60] if fact["number"] is not None else repr(fact["text"])[:80]
