"""Detects machine types (SKUs) by facts, and compares hosts with the expected values of their SKU. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from schemas.records import AuditAction, AuditFact, AuditResult, AuditSeverity, AuditStatus
from schemas.skus import Limit, Sku
from streams.audit.hosts.compare import rule_name
from streams.audit.results import FLEET, Found, Rule, Scope, latest, results_of

GPU_NAMES: Final = frozenset({"name", "gpu_model", "series"})
"""Facts that hold the name of a GPU."""


def detect(facts: Iterable[AuditFact], skus: Mapping[str, Sku]) -> str:
    """Return the SKU that the names of most of a host's GPUs indicate; empty without a match."""
    counts: Counter[str] = Counter()
    for fact in facts:
        if fact["name"] in GPU_NAMES:
            counts.update(name for name, sku in skus.items() if re.search(sku.gpu, fact["text"]))
    return min(counts, key=lambda name: (-counts[name], name), default="")


def with_skus(results: Iterable[AuditResult], skus: Mapping[str, Sku]) -> list[AuditResult]:
    """Return the results, with the SKU of their host added if they state no SKU."""
    all_results = list(results)
    facts: dict[str, list[AuditFact]] = defaultdict(list)
    sku_by_host: dict[str, str] = {}
    for result in all_results:
        facts[result["host"]] += result["facts"]
        if result["sku"]:
            sku_by_host[result["host"]] = result["sku"]
    for host in facts.keys() - sku_by_host.keys():
        sku_by_host[host] = detect(facts[host], skus)
    return [
        result if result["sku"] else {**result, "sku": sku_by_host[result["host"]]} for result in all_results
    ]


def sku_results(results: Iterable[AuditResult], skus: Mapping[str, Sku]) -> list[AuditResult]:
    """Return a `sku.<fact>` result for each host that deviates from its SKU, and one per fact for the fleet.

    Facts without an expectation, and hosts of other types, are left out. The expectations of a whole host do
    not apply to a virtual machine with some of the host's GPUs.
    """
    newest_results = latest(results)
    if not newest_results:
        return []
    scope = Scope.of(newest_results)
    parts = set(_parts(newest_results, skus))
    findings_by_fact: dict[str, list[Found]] = defaultdict(list)
    hosts: dict[str, set[str]] = defaultdict(set)
    for result in newest_results:
        sku = skus.get(result["sku"])
        if sku is None:
            continue
        for fact in result["facts"]:
            limit = sku.expected.get(fact["name"])
            if limit is not None and not (limit.whole and result["host"] in parts):
                hosts[fact["name"]].add(result["host"])
                findings_by_fact[fact["name"]] += _deviation(result, fact, limit)
    out: list[AuditResult] = []
    for name, deviations in sorted(findings_by_fact.items()):
        right = len(hosts[name] - {deviation.host for deviation in deviations})
        text = f"{right} of {len(hosts[name])} hosts have {name} as their SKU"
        deviations.append(Found(FLEET, "", AuditStatus.PASSED, text))
        out += results_of(_rule(name), deviations, scope)
    return out


def _parts(results: Iterable[AuditResult], skus: Mapping[str, Sku]) -> Iterator[str]:
    """Yield the hosts whose number of GPUs is a proper divisor of their machine type's number."""
    for result in results:
        sku = skus.get(result["sku"])
        for fact in result["facts"] if sku is not None else ():
            if sku is not None and fact["name"] == "gpus" and sku.is_part(fact["number"] or 0):
                yield result["host"]


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
