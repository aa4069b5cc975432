"""Evaluates an audit: compares hosts with each other, SKU and baseline; checks the fabric's topics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fabrictime.audit.report import ANSWER, AuditReport
from producers.audit.base import category_name
from producers.audit.checks import CHECKS
from schemas.input_error import InputError
from schemas.records import AuditCategory, AuditResult
from schemas.settings_file import BadFile, read_tables
from schemas.skus import load_skus
from streams.audit.fabric.checks import fabric_results
from streams.audit.fabric.records import FabricRecords
from streams.audit.hosts.baseline import Baseline, BaselineError, compare_with, parse, to_toml
from streams.audit.hosts.compare import compare
from streams.audit.hosts.skus import sku_results, with_skus
from streams.audit.results import Scope

COMPUTED: Final = ("fleet.", "fabric.", "baseline.", "sku.")
"""Prefixes of the ids of results that are computed, from the hosts' results and from other topics."""
_CATEGORIES: Final = tuple(
    category_name(category) for category in AuditCategory if category is not AuditCategory.OTHER
)


def for_agents(only: Sequence[str]) -> list[str]:
    """Return the names in `only` to request from agents; an empty list requests all checks.

    If `only` names a computed result, it needs the facts of all checks. Raises ValueError for an unknown
    name.
    """
    for name in only:
        if name not in CHECKS and name not in _CATEGORIES and not name.startswith(COMPUTED):
            raise InputError(f"--only {name}: expected {', '.join(_CATEGORIES)}, or an id from --list")
    return [] if any(name.startswith(COMPUTED) for name in only) else list(only)


def is_wanted(result: AuditResult, only: Sequence[str]) -> bool:
    """Return whether `only` is empty or has the result's check or category, or the check is `ANSWER`."""
    names = (result["check"], category_name(result["category"]))
    return not only or result["check"] == ANSWER or any(name in only for name in names)


def evaluated(
    report: AuditReport,
    only: Sequence[str] = (),
    fabric: FabricRecords | None = None,
    baseline: Baseline | None = None,
) -> AuditReport:
    """Return the report with the results of the evaluation added, limited to the checks in `only`.

    Hosts are compared with each other, with their SKU and with `baseline`. `fabric` holds records of other
    topics for the checks of the fabric.
    """
    skus = load_skus()
    results = with_skus(
        (result for result in report.all_results() if result["host"] not in report.missing), skus
    )
    computed = compare(results) + sku_results(results, skus)
    if baseline is not None:
        computed += compare_with(baseline, results)
    if fabric is not None:
        is_whole = category_name(AuditCategory.FABRIC) in only
        checks = [] if is_whole else [name for name in only if name.startswith("fabric.")]
        computed += fabric_results(fabric, _scope(report, fabric, results), checks)
    return report.with_results(computed).limited_to(lambda result: is_wanted(result, only))


def _scope(report: AuditReport, fabric: FabricRecords, results: Sequence[AuditResult]) -> Scope:
    """Return the run, time, SKUs and shards for the fabric's results, which need no result of a host."""
    skus, shards = (
        {result["host"]: result["sku"] for result in results},
        {n["host"]: n["shard"] for n in fabric.nics},
    )
    return Scope(report.run, report.ended_ns, skus, shards)


def load_baseline(path: Path) -> Baseline:
    """Return the baseline in a TOML or JSON file. Raises BaselineError with a text of one line."""
    where = f"baseline {path}"
    try:
        return parse(read_tables(path), where)
    except BadFile as error:
        raise BaselineError(f"{where}: {error}") from None


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline as a TOML file, completely or not at all. Raises BaselineError."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(to_toml(baseline), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise BaselineError(f"baseline {path}: {error.strerror}, expected a file to write") from None
