"""Collects the results of one run into an `AuditReport`. It reads neither a clock nor Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from fabrictime.audit.report import ANSWER, AuditReport
from producers.audit.base import Result
from producers.audit.report import AGENT, AuditedHost, result_record
from schemas.records import AuditResult, AuditStatus
from streams.audit.results import FLEET


class Progress(NamedTuple):
    """Progress of a run: numbers of complete and expected hosts, of received and announced results."""

    complete: int
    hosts: int
    results: int
    announced: int


class Collector:
    """Collects one run's results in any order, also duplicates, and results of hosts that are not expected.

    Each result announces the number of results that its host publishes. A host is complete when it has
    delivered this number, each of a different check; if its announcements differ, the largest counts.
    """

    def __init__(
        self, run: str, expected: Iterable[str], started_ns: int, nics: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Collect the results of `run`. `nics` holds the names of each host's NICs, for the report."""
        self.run, self.expected = run, frozenset(expected)
        self._started_ns, self._nics = started_ns, dict(nics)
        self._results: dict[str, dict[str, AuditResult]] = {}
        self._announced: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._rows: dict[tuple[Any, ...], Any] = {}
        self._lists: dict[tuple[int, ...], list[Any]] = {}
        self.repeated = 0
        """Results that replaced an earlier one of the same host and check."""

    def add(self, result: AuditResult) -> bool:
        """Add a result of this run. Return whether it is the first result for its host and check."""
        if result["run"] != self.run:
            return False
        host, check = result["host"], result["check"]
        of_host = self._results.setdefault(host, {})
        self._announced[host] = max(self._announced.get(host, 0), result["checks"])
        earlier = of_host.get(check)
        if earlier is not None:
            self.repeated += 1
            if result["checked_ns"] < earlier["checked_ns"]:
                return False
        of_host[check] = self._shared(result)
        return earlier is None

    def _shared(self, result: AuditResult) -> AuditResult:
        """Return the result with texts, findings and facts replaced by equal objects of other hosts'
        results.
        """
        shared = self._with_shared_texts(result)
        shared["findings"] = self._shared_rows(result["findings"])
        shared["facts"] = self._shared_rows(result["facts"])
        return cast(AuditResult, shared)

    def _with_shared_texts(self, record: Mapping[str, Any]) -> dict[str, Any]:
        one = self._texts.setdefault
        return {key: one(value, value) if isinstance(value, str) else value for key, value in record.items()}

    def _shared_rows(self, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        shared = []
        for row in rows:
            key = tuple(row.values())
            if key not in self._rows:
                self._rows[key] = self._with_shared_texts(row)
            shared.append(self._rows[key])
        return self._lists.setdefault(tuple(map(id, shared)), shared)

    def is_complete(self, host: str) -> bool:
        """Return whether a host has delivered all of its results."""
        return len(self._results.get(host, ())) >= self._announced.get(host, 1)

    @property
    def is_done(self) -> bool:
        """Whether every expected host, and every other host with a result, is complete."""
        return all(map(self.is_complete, self._hosts()))

    @property
    def progress(self) -> Progress:
        """The present numbers of hosts and results."""
        hosts = self._hosts()
        return Progress(
            sum(map(self.is_complete, hosts)),
            len(hosts),
            sum(map(len, self._results.values())),
            sum(self._announced.values()),
        )

    def report(self, ended_ns: int, limit_s: float) -> AuditReport:
        """Return the report. A host with missing results has an UNKNOWN result with the reason."""
        hosts = tuple(sorted(self._hosts()))
        results = {host: dict(self._results.get(host, {})) for host in {*hosts, *self._results}}
        for host in hosts:
            if not self.is_complete(host):
                results[host][ANSWER] = self._unanswered(host, ended_ns, limit_s)
        missing = tuple(host for host in hosts if host not in self._results)
        return AuditReport(self.run, hosts, results, missing, self._started_ns, ended_ns, self._nics)

    def _hosts(self) -> set[str]:
        """Return the hosts that are expected or have a result, without the name for fleet-wide results."""
        return {*self.expected, *self._results} - {FLEET}

    def _unanswered(self, host: str, ended_ns: int, limit_s: float) -> AuditResult:
        results = self._results.get(host, {})
        if results:
            text = f"{len(results)} of {self._announced[host]} results within {limit_s:g} s"
        else:
            text = f"did not answer within {limit_s:g} s"
        first = next(iter(results.values()), None)
        audited_host = AuditedHost(host, first["shard"] if first else "", first["sku"] if first else "")
        result = Result(AGENT, AuditStatus.UNKNOWN, text, ())
        return result_record(result, self.run, audited_host, checked_ns=ended_ns, checks=1)
