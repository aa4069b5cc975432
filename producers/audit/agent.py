"""The audit agent of one or several hosts: runs the checks of requests and of its own schedule.

`AuditAgent` accepts requests, keeps the schedule, and yields records; it does not use Kafka itself. Each run
of a host has a thread, at most `hosts_at_once` at a time. Results beyond the run's time limit are UNKNOWN.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import zlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

from producers.audit.base import Check, Result, category_name, stated
from producers.audit.host.base import Host, Unreadable
from producers.audit.load.traffic_plan import PLANS
from producers.audit.report import AGENT, AuditedHost, result_record
from producers.audit.runner import run_checks, unknown
from producers.audit.settings import AuditSettings
from schemas.records import AuditCategory, AuditResult, AuditRun, AuditStatus
from schemas.unexpected import DATA_ERRORS

_log = logging.getLogger(__name__)

MAX_RUNS: Final = 1000
"""Number of runs whose names are kept, so that a repeated request is not answered twice."""
MAX_RUN_NAME: Final = 128
MAX_WAITING: Final = 64
"""Limit of the unfinished runs of one host; further requests are refused."""
_CATEGORIES: Final = frozenset(category_name(category) for category in AuditCategory)

OpenHost = Callable[[str, AuditRun | None], Host]
"""Returns a new `Host` for a host's name and a request, which is None for a scheduled run. Each run has its
own `Host`, so that it runs all commands again. A round of traffic gets its partners from the request."""


class Choice(NamedTuple):
    """Checks of a run: those that are run, those left out because they are active, and unknown names."""

    checks: list[Check]
    inactive: list[Check]
    unknown: list[str]


def chosen(checks: Mapping[str, Check], only: Sequence[str], *, active: bool) -> Choice:
    """Return the checks whose category or id is in `only`; all checks if `only` is empty.

    A category without checks is known as well: the evaluation computes `fabric`.
    """
    names = frozenset(only)
    requested = [
        check
        for check in checks.values()
        if not names or check.check_id in names or category_name(check.category) in names
    ]
    return Choice(
        [check for check in requested if active or not check.active],
        [check for check in requested if check.active and not active and check.check_id in names],
        [name for name in only if name not in checks and name not in _CATEGORIES],
    )


class _Run(NamedTuple):
    """A run of one host."""

    name: str
    host: AuditedHost
    choice: Choice
    until_s: float
    """Time by time.monotonic at which the run ends."""
    request: AuditRun | None
    """None for a scheduled run."""

    @property
    def is_traffic(self) -> bool:
        """Whether the run is a round of traffic between hosts; all hosts of a round begin together."""
        return self.request is not None and is_round(self.request)


def is_round(request: AuditRun) -> bool:
    """Return whether a request is a round of traffic: active, for one traffic check, and for named hosts."""
    return bool(
        request["active"] and request["hosts"] and len(request["only"]) == 1 and request["only"][0] in PLANS
    )


class AuditAgent:
    """Runs the checks of hosts. Not thread-safe: call its methods from one thread."""

    def __init__(
        self,
        settings: AuditSettings,
        hosts: Mapping[str, AuditedHost],
        open_host: OpenHost,
        checks: Mapping[str, Check],
    ) -> None:
        self._settings, self._hosts = settings, dict(hosts)
        self._open_host, self._checks = open_host, checks
        self._waiting: queue.SimpleQueue[_Run] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[AuditResult] = queue.SimpleQueue()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._loaded: set[str] = set()
        """Hosts with a round of traffic under way: a second one would double the load."""
        self._hanging: defaultdict[str, set[str]] = defaultdict(set)
        self._threads = 0
        self._lock = threading.Lock()
        self._unfinished: Counter[str] = Counter()
        now_s, spread_s = time.monotonic(), settings.first_run_s
        self._due_s = {
            host: now_s + spread_s * (zlib.crc32(host.encode()) / 2**32)
            for host in self._hosts
            if settings.every_s
        }
        self.runs = 0
        """Runs of hosts that were begun."""

    @property
    def is_busy(self) -> bool:
        """Whether any run has not ended."""
        return self._unfinished.total() > 0

    def on_run(self, name: str, record: AuditRun | None, append_ms: int) -> None:
        """Begin a requested run for this agent's hosts. Ignores a request that is repeated or too old."""
        if record is None or record["run"] in self._seen:
            return
        self._seen[record["run"]] = None
        while len(self._seen) > MAX_RUNS:
            self._seen.popitem(last=False)
        age_s = time.time() - append_ms / 1000
        if age_s > record["limit_s"]:
            limit_s = record["limit_s"]
            _log.warning("run %s is %.0f s old, its limit is %d s: not begun", name, age_s, limit_s)
            return
        choice = chosen(self._checks, record["only"], active=record["active"])
        until_s = time.monotonic() + record["limit_s"]
        for host in self._hosts:
            if not record["hosts"] or host in record["hosts"]:
                self._begin(record["run"], host, choice, until_s, record)

    def begin_due(self) -> None:
        """Begin the scheduled runs that are due."""
        now_s = time.monotonic()
        for host, due_s in self._due_s.items():
            if now_s >= due_s:
                self._due_s[host] = max(due_s + self._settings.every_s, now_s)
                stamp = f"-{time.time_ns()}"
                choice = chosen(self._checks, (), active=False)
                name = f"{host[: MAX_RUN_NAME - len(stamp)]}{stamp}"
                self._begin(name, host, choice, now_s + self._settings.scheduled_limit_s)

    def results(self) -> Iterator[AuditResult]:
        """Yield the results that have come since the last call."""
        while True:
            try:
                yield self._done.get_nowait()
            except queue.Empty:
                return

    def _begin(
        self, name: str, host: str, choice: Choice, until_s: float, request: AuditRun | None = None
    ) -> None:
        run = _Run(name, self._hosts[host], choice, until_s, request)
        if self._unfinished[host] >= MAX_WAITING:
            _log.warning("run %s of %s: refused, %d runs of this host wait", name, host, MAX_WAITING)
            return
        self.runs += 1
        with self._lock:
            if run.is_traffic and host in self._loaded:
                for result in _refused(run):
                    self._done.put(result)
                return
            self._unfinished[host] += 1
            if run.is_traffic:
                self._loaded.add(host)
            if not run.is_traffic:
                self._waiting.put(run)
                if self._threads >= self._settings.hosts_at_once:
                    return
                self._threads += 1
        if run.is_traffic:  # partners wait for each other, so that a limit on hosts would stop all of them
            threading.Thread(target=self._finish, args=(run,), name="audit traffic", daemon=True).start()
        else:
            threading.Thread(target=self._work, name="audit run", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._waiting.empty():
                    self._threads -= 1
                    return
                run = self._waiting.get()
            self._finish(run)

    def _finish(self, run: _Run) -> None:
        try:
            for result in _results(run, self._open_host, self._hanging[run.host.host]):
                self._done.put(result)
        except (*DATA_ERRORS, OSError, Unreadable):  # costs this run of this host, not the thread
            _log.exception("run %s of %s", run.name, run.host.host)
        finally:
            with self._lock:
                self._unfinished[run.host.host] -= 1
                if run.is_traffic:
                    self._loaded.discard(run.host.host)


def _refused(run: _Run) -> Iterator[AuditResult]:
    """Yield the results of a round that the agent refuses: another one is under way."""
    results = [_own_result(run.choice)]
    results += [unknown(check, "another round of traffic is under way") for check in run.choice.checks]
    for result in results:
        yield result_record(result, run.name, run.host, checked_ns=time.time_ns(), checks=len(results))


def _results(run: _Run, open_host: OpenHost, hanging: set[str]) -> Iterator[AuditResult]:
    """Yield the agent's own result, then the result of each check when the check ends."""
    checks, inactive, _ = run.choice
    count = 1 + len(checks) + len(inactive)

    def record(result: Result) -> AuditResult:
        return result_record(result, run.name, run.host, checked_ns=time.time_ns(), checks=count)

    yield record(_own_result(run.choice))
    for check in inactive:
        yield record(Result(check, AuditStatus.SKIPPED, "puts load on the host: runs with --active only", ()))
    for result in run_checks(checks, open_host(run.host.host, run.request), run.until_s, hanging):
        yield record(result)


def _own_result(choice: Choice) -> Result:
    finding = stated("fabrictime_version", _version())
    if choice.unknown:
        text = f"fabrictime {_version()} has no check {', '.join(choice.unknown)}"
        return Result(AGENT, AuditStatus.UNKNOWN, text, (finding,))
    text = f"fabrictime {_version()}, {len(choice.checks)} checks"
    return Result(AGENT, AuditStatus.PASSED, text, (finding,))


@cache
def _version() -> str:
    try:
        return version("fabrictime")
    except PackageNotFoundError:
        return "unknown"
