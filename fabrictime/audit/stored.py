"""Stores a fleet audit as JSON, and reads runs from such a file or from the topic `fabric.audit`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from fabrictime.audit.collect import Collector
from fabrictime.audit.report import AuditReport, verdict
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.records import AuditResult, AuditRun
from schemas.topics import AUDIT, AUDIT_RUNS

_FIELDS: Final = {
    "run": str,
    "hosts": list,
    "missing": list,
    "started_ns": int,
    "ended_ns": int,
    "nics": dict,
    "results": list,
}


def as_json(report: AuditReport) -> Iterator[str]:
    """Yield the parts of one line of JSON with the verdict, and every result with its findings and facts."""
    code, line = verdict(report)
    head = json.dumps(
        {
            "run": report.run,
            "exit_code": code,
            "verdict": line,
            "started_ns": report.started_ns,
            "ended_ns": report.ended_ns,
            "hosts": report.hosts,
            "missing": report.missing,
            "nics": report.nics,
        }
    )
    yield f'{head.removesuffix("}")}, "results": ['
    encode = json.JSONEncoder().encode
    separator = ""
    for result in report.all_results():
        yield separator + encode(result)
        separator = ", "
    yield "]}"


def from_json(text: str) -> AuditReport:
    """Return the report that `as_json` wrote. Raises ValueError with one line for any other text."""
    report = json.loads(text)
    if not isinstance(report, dict):
        raise ValueError(f"{type(report).__name__}, expected the output of `fabrictime audit --json`")
    for name, kind in _FIELDS.items():
        if not isinstance(report.get(name), kind):
            raise ValueError(f"{name}: missing, expected the output of `fabrictime audit --json`")
    results: dict[str, dict[str, AuditResult]] = {host: {} for host in report["hosts"]}
    for record in report["results"]:
        result = _checked(record)
        results.setdefault(result["host"], {})[result["check"]] = result
    return AuditReport(
        report["run"],
        tuple(results),
        results,
        tuple(report["missing"]),
        report["started_ns"],
        report["ended_ns"],
        {host: tuple(nics) for host, nics in report["nics"].items()},
    )


def _checked(value: Any) -> AuditResult:
    """Return a result from JSON as a record of the schema. Raises ValueError if it is not valid."""
    try:
        return codec.decode(codec.encode(AuditResult, value), AuditResult)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"results: {error}, expected records of AuditResult") from error


def from_log(cluster: KafkaSettings | str, run: str) -> AuditReport:
    """Return a run's report from the log. Raises ValueError for a run without a result, LogUnavailable."""
    registry = cluster.registry() if isinstance(cluster, KafkaSettings) else None
    request: AuditRun | None = None
    results: list[AuditResult] = []
    with TopicReader.open(cluster, {AUDIT_RUNS: BEGINNING, AUDIT: BEGINNING}, key=run) as reader:
        for message, record in reader.decoded(reader.read_to_end(), registry):
            if record is None or record["run"] != run:
                continue
            if message.topic == AUDIT.name:
                results.append(record)
            else:
                request = record
    if not results:
        raise InputError(f"run {run}: no result in {AUDIT.name}, expected a run of the last 30 days")
    return _report(run, request, results)


def _report(run: str, request: AuditRun | None, results: Sequence[AuditResult]) -> AuditReport:
    """Return the report of a run's results. Without the run's request, it has only the hosts with results."""
    first_ns, last_ns = (of(result["checked_ns"] for result in results) for of in (min, max))
    hosts, started_ns = (request["hosts"], request["requested_ns"]) if request else ((), first_ns)
    collector = Collector(run, hosts, started_ns, {})
    for result in results:
        collector.add(result)
    limit_s = request["limit_s"] if request else round((last_ns - first_ns) / 1e9)
    return collector.report(last_ns, limit_s)


def load(name: str, log: Callable[[], KafkaSettings]) -> AuditReport:
    """Return a run's report from a file of `--json`, else from the cluster of `log()`. Raises ValueError."""
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        try:
            return from_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"{name}: {error.strerror}, expected a file of `fabrictime audit --json`"
            ) from error
        except ValueError as error:
            raise InputError(f"{name}: {error}") from error
    return from_log(log(), name)
