"""Machine types (SKUs): expected values from the data file, detection by facts, and comparison. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError, model_validator

from schemas.records import AuditAction, AuditFact, AuditResult, AuditSeverity, AuditStatus
from schemas.settings_file import read_tables
from streams.audit.compare import rule_name
from streams.audit.results import FLEET, Found, Rule, Scope, latest, results_of

__all__ = ["FILE", "Limit", "Sku", "detect", "load_skus", "sku_results", "with_skus"]

FILE: Final = Path(__file__).with_name("skus.toml")
GPU_NAMES: Final = frozenset({"name", "gpu_model", "series"})
"""Facts that hold the name of a GPU."""


class Limit(BaseModel):
    """The expected value of a fact, and its source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    equal: FiniteFloat | None = None
    minimum: FiniteFloat | None = None
    maximum: FiniteFloat | None = None
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _has_one(self) -> Limit:
        if sum(value is not None for value in (self.equal, self.minimum, self.maximum)) != 1:
            raise ValueError("expected one of equal, minimum and maximum")
        return self

    def allows(self, value: float) -> bool:
        """Return whether a figure is as expected."""
        if self.equal is not None:
            return value == self.equal
        if self.minimum is not None:
            return value >= self.minimum
        return self.maximum is None or value <= self.maximum

    def __str__(self) -> str:
        if self.equal is not None:
            return f"{self.equal:g}"
        return f"at least {self.minimum:g}" if self.minimum is not None else f"at most {self.maximum:g}"


class Sku(BaseModel):
    """A machine type. `gpu`: regular expression that its GPUs' names contain."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: str = Field(min_length=1)
    expected: Mapping[str, Limit]

    @model_validator(mode="after")
    def _has_a_pattern(self) -> Sku:
        try:
            re.compile(self.gpu)
        except re.error as error:
            raise ValueError(f"gpu {self.gpu!r}: {error}") from None
        return self


@cache
def load_skus(path: Path = FILE) -> Mapping[str, Sku]:
    """Return the SKUs of a data file by name. Raises ValueError with one line."""
    try:
        return TypeAdapter(dict[str, Sku]).validate_python(read_tables(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"SKU file {path}: {place}: {' '.join(first['msg'].split())}") from None
    except ValueError as error:
        raise ValueError(f"SKU file {path}: {error}") from None


def detect(facts: Iterable[AuditFact], skus: Mapping[str, Sku]) -> str:
    """Return the SKU that the names of a host's GPUs show, for the larger part; empty if none does."""
    found: Counter[str] = Counter()
    for fact in facts:
        if fact["name"] in GPU_NAMES:
            found.update(name for name, sku in skus.items() if re.search(sku.gpu, fact["text"]))
    return min(found, key=lambda name: (-found[name], name), default="")


def with_skus(results: Iterable[AuditResult], skus: Mapping[str, Sku]) -> list[AuditResult]:
    """Return the results with the SKU of their host, where they state none."""
    kept = list(results)
    facts: dict[str, list[AuditFact]] = defaultdict(list)
    known: dict[str, str] = {}
    for result in kept:
        facts[result["host"]] += result["facts"]
        if result["sku"]:
            known[result["host"]] = result["sku"]
    for host in facts.keys() - known.keys():
        known[host] = detect(facts[host], skus)
    return [result if result["sku"] else {**result, "sku": known[result["host"]]} for result in kept]


def sku_results(results: Iterable[AuditResult], skus: Mapping[str, Sku]) -> list[AuditResult]:
    """Return a `sku.<fact>` result for each host that deviates from its SKU, and one per fact for the fleet.

    Facts without an expectation, and hosts of other types, are left out.
    """
    kept = latest(results)
    if not kept:
        return []
    scope = Scope.of(kept)
    found: dict[str, list[Found]] = defaultdict(list)
    hosts: dict[str, set[str]] = defaultdict(set)
    for result in kept:
        sku = skus.get(result["sku"])
        if sku is None:
            continue
        for fact in result["facts"]:
            limit = sku.expected.get(fact["name"])
            if limit is not None:
                hosts[fact["name"]].add(result["host"])
                found[fact["name"]] += _deviation(result, fact, limit)
    out: list[AuditResult] = []
    for name, deviations in sorted(found.items()):
        right = len(hosts[name] - {each.host for each in deviations})
        text = f"{right} of {len(hosts[name])} hosts have {name} as their SKU"
        deviations.append(Found(FLEET, "", AuditStatus.PASSED, text))
        out += results_of(_rule(name), deviations, scope)
    return out


def _deviation(result: AuditResult, fact: AuditFact, limit: Limit) -> Iterator[Found]:
    host, number = result["host"], fact["number"]
    thing = f"{fact['name']} of {fact['subject']}" if fact["subject"] else fact["name"]
    text = f"{host} has {thing} {fact['text']:.60}, a {result['sku']} {limit} ({limit.source})"
    if number is None:
        yield Found(host, fact["subject"], AuditStatus.UNKNOWN, f"{text}: no figure")
    elif not limit.allows(number):
        yield Found(host, fact["subject"], AuditStatus.FAILED, text)


def _rule(fact: str) -> Rule:
    return Rule(
        f"sku.{rule_name(fact)}",
        f"{fact} is as expected of the SKU",
        AuditSeverity.ERROR,
        AuditAction.REPLACE,
        "Repeat the measurement; then check the part that the finding names, and replace it if it stays",
    )
