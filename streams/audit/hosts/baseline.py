"""Learns baselines, the expected values by SKU, from one or several runs, and compares runs with them. Pure.

A baseline is a TOML file that a person can edit. It has a table per SKU, fact and device, with the allowed
texts, or with a median, its MAD and optionally a tolerance.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import Field, FiniteFloat, ValidationError, model_validator

from schemas.input_error import InputError
from schemas.records import AuditAction, AuditFact, AuditResult, AuditSeverity, AuditStatus
from schemas.strict_model import StrictModel
from schemas.units import number_text
from streams.audit.hosts.compare import NOISE_FLOOR, deviation_floors, rule_name, series_of
from streams.audit.hosts.part_history import PART_FACTS
from streams.audit.results import FLEET, Found, Rule, Scope, latest, results_of
from streams.audit.robust import SIGMAS_OF_MAD, Z_THRESHOLD, Spread

ANY: Final = "*"
"""Subject of an expected value that applies to all devices."""
MIN_TEXT_SHARE: Final = 0.1
"""Share of the hosts that must have a text for it to be learned: hosts with a rarer text may be faulty."""
MAX_TEXTS: Final = 64


class BaselineError(InputError):
    """Raised if a baseline is invalid; the message is one line with the place and the reason."""


class Expected(StrictModel):
    """Expected values of one fact of one SKU. Either `texts` or `median` is set."""

    sku: str = Field(default="", max_length=256, description="machine type; empty: hosts of unknown type")
    fact: str = Field(min_length=1, max_length=256, description="name of the value, with its unit")
    subject: str = Field(default=ANY, max_length=256, description="device; *: every device of the host")
    texts: tuple[str, ...] = Field(default=(), max_length=MAX_TEXTS, description="allowed texts")
    median: FiniteFloat | None = Field(default=None, description="expected figure")
    mad: FiniteFloat = Field(default=0.0, ge=0, description="median absolute deviation of the figures")
    tolerance: FiniteFloat | None = Field(
        default=None, ge=0, description="allowed deviation from the median; not set: by MAD and noise floor"
    )
    values: int = Field(default=1, ge=1, description="values that this was learned from")
    devices: int | None = Field(default=None, ge=0, description="devices of a host; not set: any number")

    @model_validator(mode="after")
    def _has_one_kind(self) -> Expected:
        if bool(self.texts) == (self.median is not None):
            raise ValueError("expected either texts or median")
        return self

    def allows(self, fact: AuditFact) -> bool | None:
        """Return whether a value is as expected; None if a number is expected and the value is none."""
        if self.median is None:
            return fact["text"] in self.texts
        if fact["number"] is None:
            return None
        return abs(fact["number"] - self.median) <= self.largest_deviation * (1 + 1e-12)

    @property
    def largest_deviation(self) -> float:
        """Largest allowed deviation from the median, in the fact's unit."""
        median = self.median or 0.0
        if self.tolerance is not None:
            return self.tolerance
        is_integral = median % 1 == 0
        exact = self.mad == 0 and (self.values >= 4 or (is_integral and abs(median) < 10_000))
        relative, absolute = deviation_floors(self.fact, median, is_integral=is_integral, exact=exact)
        return max(Z_THRESHOLD * self.mad / SIGMAS_OF_MAD, relative * abs(median), absolute)

    def __str__(self) -> str:
        if self.median is None:
            return " or ".join(repr(text)[:60] for text in self.texts[:3])
        return f"{number_text(self.median, 6)} +- {number_text(self.largest_deviation)}"


class Baseline(StrictModel):
    """The content of a baseline file."""

    version: Literal[1] = 1
    runs: tuple[str, ...] = Field(default=(), description="runs that it was saved or learned from")
    golden: str = Field(default="", description="host that it was saved from; empty: the fleet's majority")
    expected: tuple[Expected, ...] = ()

    @model_validator(mode="after")
    def _has_no_duplicates(self) -> Baseline:
        keys = Counter((row.sku, row.fact, row.subject) for row in self.expected)
        for (sku, fact, subject), count in keys.items():
            if count > 1:
                raise ValueError(f"{fact} of {subject} and SKU {sku!r} is listed twice")
        return self


def parse(tables: Mapping[str, Any], where: str) -> Baseline:
    """Return the baseline from a file's tables. Raises BaselineError, whose message begins with `where`."""
    try:
        return Baseline.model_validate(tables)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(f"{part + 1}" if isinstance(part, int) else part for part in first["loc"])
        reason = " ".join(f"{place}: {first['msg']}".split()).removeprefix(": ")
        raise BaselineError(f"{where}: {reason:.300}") from None


def to_toml(baseline: Baseline) -> str:
    """Return the text of a baseline file, which has one table per expected value."""
    lines = ["# Expected values of an audit. texts: allowed; tolerance: allowed deviation from the median."]
    head = baseline.model_dump(exclude={"expected"})
    lines += [f"{name} = {_toml_value(value)}" for name, value in head.items() if value not in ("", ())]
    for expected in baseline.expected:
        lines += ["", "[[expected]]"]
        row = expected.model_dump(exclude_defaults=True)
        lines += [f"{name} = {_toml_value(value)}" for name, value in row.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    """Return a value in TOML syntax. TOML's basic strings have JSON's escapes, and must also escape DEL."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)


def save(results: Iterable[AuditResult], golden: str = "") -> Baseline:
    """Return a run's baseline: the values of the host `golden`, or by default of the fleet's majority.

    Texts without a majority are left out. Raises BaselineError if there is nothing to save.
    """
    newest_results = latest(result for result in results if not golden or result["host"] == golden)
    expected_rows = list(_expected(newest_results, _majority))
    if not expected_rows:
        of = f"host {golden}" if golden else "the run"
        raise BaselineError(f"no value of {of} can be saved: expected results with facts")
    return Baseline(runs=_runs(newest_results), golden=golden, expected=tuple(expected_rows))


def learn(runs: Iterable[Iterable[AuditResult]]) -> Baseline:
    """Return the baseline from several runs: median and MAD of numbers, and all usual texts.

    Raises BaselineError if there is nothing to learn.
    """
    newest_results = [result for run in runs for result in latest(run)]
    expected_rows = list(_expected(newest_results, _usual))
    if not expected_rows:
        raise BaselineError("no value can be learned: expected results with facts")
    return Baseline(runs=_runs(newest_results), expected=tuple(expected_rows))


def _runs(results: Iterable[AuditResult]) -> tuple[str, ...]:
    return tuple(sorted({result["run"] for result in results}))


def _majority(texts: Sequence[str]) -> tuple[str, ...]:
    text, count = Counter(texts).most_common(1)[0]
    return (text,) if 2 * count > len(texts) else ()


def _usual(texts: Sequence[str]) -> tuple[str, ...]:
    counts = Counter(texts)
    frequent_texts = sorted(text for text, count in counts.items() if count >= MIN_TEXT_SHARE * len(texts))
    return tuple(frequent_texts) if len(frequent_texts) <= MAX_TEXTS else ()


def _expected(results: Iterable[AuditResult], choose: Any) -> Iterator[Expected]:
    """Yield the expected values of all facts; devices with equal ones share an entry."""
    values: dict[tuple[str, str], dict[str, list[AuditFact]]] = defaultdict(lambda: defaultdict(list))
    devices: dict[tuple[str, str], Counter[tuple[str, str]]] = defaultdict(Counter)
    for result in results:
        for fact in result["facts"]:
            if not fact["name"] or fact["name"] in PART_FACTS:
                continue
            key = result["sku"], fact["name"]
            values[key][fact["subject"]].append(fact)
            devices[key][result["run"], result["host"]] += 1
    for key, by_subject in sorted(values.items()):
        rows = [_of_subject(key, subject, facts, choose) for subject, facts in sorted(by_subject.items())]
        complete_rows = [row for row in rows if row is not None]
        every = _of_subject(key, ANY, [fact for facts in by_subject.values() for fact in facts], choose)
        if every is not None and len(complete_rows) == len(rows) and _is_one(complete_rows):
            majority = Counter(devices[key].values()).most_common(1)[0][0]
            yield every.model_copy(update={"devices": majority if "" not in by_subject else None})
        else:
            yield from complete_rows


def _of_subject(
    key: tuple[str, str], subject: str, facts: Sequence[AuditFact], choose: Any
) -> Expected | None:
    numbers = [fact["number"] for fact in facts if fact["number"] is not None]
    if 2 * len(numbers) > len(facts):
        spread = Spread.of(numbers)
        return Expected(
            sku=key[0],
            fact=key[1],
            subject=subject,
            median=spread.median,
            mad=spread.mad,
            values=len(numbers),
        )
    texts = choose([fact["text"] for fact in facts])
    if not texts:
        return None
    return Expected(sku=key[0], fact=key[1], subject=subject, texts=texts, values=len(facts))


def _is_one(rows: Sequence[Expected]) -> bool:
    """Return whether one expectation can stand for all devices."""
    if len({row.texts for row in rows}) > 1:
        return False
    medians = [row.median for row in rows if row.median is not None]
    if not medians:
        return True
    if all(row.mad == 0 for row in rows):
        return len(set(medians)) == 1
    return max(medians) - min(medians) <= NOISE_FLOOR * abs(medians[0])


def compare_with(baseline: Baseline, results: Iterable[AuditResult]) -> list[AuditResult]:
    """Return a `baseline.<fact>` result for each host that deviates, and one per fact for the fleet.

    The result is UNKNOWN for hosts of a SKU without a baseline, and for a number that cannot be read.
    """
    newest_results = latest(results)
    if not newest_results:
        return []
    scope = Scope.of(newest_results)
    rows: dict[tuple[str, str], dict[str, Expected]] = defaultdict(dict)
    for row in baseline.expected:
        rows[row.sku, row.fact][row.subject] = row
    out = results_of(_SKUS, _unknown_skus(baseline, scope), scope)
    by_fact: dict[str, list[Found]] = defaultdict(list)
    for (sku, name), values in _values(newest_results).items():
        expected = rows.get((sku, name))
        if expected:
            by_fact[name] += _deviations(name, sku, values, expected)
    for fact, deviations in sorted(by_fact.items()):
        out += results_of(_rule(fact), deviations, scope)
    return out


def _values(results: Iterable[AuditResult]) -> dict[tuple[str, str], dict[str, dict[str, AuditFact]]]:
    """Return the facts by (SKU, name), then by subject and host. Equal facts of several checks are merged."""
    facts_by_series: dict[tuple[str, str], dict[str, dict[str, AuditFact]]] = {}
    for series in series_of(results):
        by_subject = facts_by_series.setdefault((series.sku, series.name), {})
        for subject, of_hosts in series.values.items():
            by_subject.setdefault(subject, {}).update(of_hosts)
    return facts_by_series


_SKUS: Final = Rule(
    "baseline.skus",
    "Every SKU has a baseline",
    AuditSeverity.WARNING,
    AuditAction.MONITOR,
    "Save or learn a baseline from hosts of this SKU: `fabrictime audit baseline save`",
)


def _rule(fact: str) -> Rule:
    return Rule(
        f"baseline.{rule_name(fact)}",
        f"{fact} is as in the baseline",
        AuditSeverity.ERROR,
        AuditAction.MONITOR,
        "Bring the host in line with the baseline, or save a new one after an intended change",
    )


def _unknown_skus(baseline: Baseline, scope: Scope) -> Iterator[Found]:
    skus = {row.sku for row in baseline.expected}
    hosts = Counter(scope.skus.values())
    for sku in sorted(hosts.keys() - skus):
        text = f"{hosts[sku]} hosts of SKU {sku or 'unknown'!r}: the baseline has none of this kind"
        yield Found(FLEET, sku, AuditStatus.UNKNOWN, text)


def _deviations(
    name: str, sku: str, values: Mapping[str, Mapping[str, AuditFact]], expected: Mapping[str, Expected]
) -> Iterator[Found]:
    hosts = sorted({host for by_host in values.values() for host in by_host})
    wrong: set[str] = set()
    for subject, of_hosts in sorted(values.items()):
        row = expected.get(subject, expected.get(ANY))
        if row is None:
            continue
        for host, fact in sorted(of_hosts.items()):
            allowed = row.allows(fact)
            if not allowed:
                wrong.add(host)
                status = AuditStatus.UNKNOWN if allowed is None else AuditStatus.FAILED
                thing = f"{name} of {subject}" if subject else name
                text = f"{host} has {thing} {fact['text']!r:.80}, the baseline {row}"
                yield Found(host, subject, status, text)
    for host, text in _counts(name, values, expected, hosts):
        wrong.add(host)
        yield Found(host, "", AuditStatus.FAILED, text)
    text = f"{len(hosts) - len(wrong)} of {len(hosts)} hosts have {name} as in the baseline"
    yield Found(FLEET, sku, AuditStatus.PASSED, text)


def _counts(
    name: str,
    values: Mapping[str, Mapping[str, AuditFact]],
    expected: Mapping[str, Expected],
    hosts: Sequence[str],
) -> Iterator[tuple[str, str]]:
    """Yield (host, text of a finding) for the hosts that have fewer devices than the baseline."""
    every = expected.get(ANY)
    if every is not None and every.devices is not None:
        for host in hosts:
            count = sum(host in of_hosts for of_hosts in values.values())
            if count < every.devices:
                yield host, f"{host} has {name} of {count} devices, the baseline of {every.devices}"
    for subject in sorted(expected.keys() - {ANY}):
        for host in sorted(set(hosts) - values.get(subject, {}).keys()):
            yield host, f"{host} has no {name} of {subject or 'the host'}, the baseline has one"
