"""The agent: choice of checks, requests, schedule and limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.agent import MAX_WAITING, AuditAgent, chosen, is_round
from producers.audit.base import Check, Finding, passed
from producers.audit.checks import CHECKS
from producers.audit.host.base import Host, Unreadable
from producers.audit.load.traffic_plan import PAIR_CHECK
from producers.audit.report import AuditedHost
from producers.audit.settings import AuditSettings
from schemas.records import AuditResult, AuditRun, AuditStatus

HOSTS = {name: AuditedHost(name, "fabric", "") for name in ("h1", "h2", "h3")}
FEW: Mapping[str, Check] = {each: CHECKS[each] for each in ("node.uptime", "node.memory", "backend.mtu")}
LOAD = replace(CHECKS["backend.mtu"], check_id="backend.load", active=True)


def run_of(name: str = "r1", **changes: object) -> AuditRun:
    run = AuditRun(run=name, requested_ns=time.time_ns(), hosts=[], only=[], active=False, limit_s=60)
    return AuditRun(**{**run, **changes})  # type: ignore[typeddict-item]


def agent_of(checks: Mapping[str, Check] = FEW, **settings: float) -> AuditAgent:
    return AuditAgent(
        AuditSettings(**{"every_s": 0, **settings}), HOSTS, lambda host, request: HEALTHY, checks
    )


def ask(agent: AuditAgent, run: AuditRun, age_s: float = 0) -> None:
    agent.on_run(run["run"], run, round((time.time() - age_s) * 1000))


def collected(agent: AuditAgent) -> list[AuditResult]:
    """Return all results of the runs that were begun."""
    found: list[AuditResult] = []
    end_s = time.monotonic() + 30
    while agent.is_busy and time.monotonic() < end_s:
        found += agent.results()
        threading.Event().wait(0.005)
    assert not agent.is_busy
    return found + list(agent.results())


def by_host(results: list[AuditResult]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in results:
        found.setdefault(each["host"], set()).add(each["check"])
    return found


def test_categories_and_ids_choose_checks() -> None:
    checks = {**FEW, LOAD.check_id: LOAD}
    assert [c.check_id for c in chosen(checks, (), active=False).checks] == list(FEW)
    assert [c.check_id for c in chosen(checks, (), active=True).checks] == list(checks)
    assert chosen(checks, ["node"], active=True).checks == [FEW["node.uptime"], FEW["node.memory"]]
    assert chosen(checks, ["backend"], active=False) == ([FEW["backend.mtu"]], [], [])
    assert chosen(checks, ["backend.load"], active=False) == ([], [LOAD], [])
    assert chosen(checks, ["fabric", "node.none"], active=False) == ([], [], ["node.none"])


def test_every_host_answers_a_request_with_the_announced_number_of_results() -> None:
    agent = agent_of()
    ask(agent, run_of())
    results = collected(agent)
    assert by_host(results) == {host: {*FEW, "agent.answer"} for host in HOSTS}
    assert {each["checks"] for each in results} == {4}
    assert {each["run"] for each in results} == {"r1"}
    assert {each["status"] for each in results} == {AuditStatus.PASSED}


def test_a_request_for_some_hosts_and_checks() -> None:
    agent = agent_of({**FEW, LOAD.check_id: LOAD})
    ask(agent, run_of(hosts=["h2", "h9"], only=["node.uptime", "backend.load", "gpu.none"]))
    results = {each["check"]: each for each in collected(agent)}
    assert set(results) == {"node.uptime", "backend.load", "agent.answer"}
    assert {each["host"] for each in results.values()} == {"h2"}
    assert results["backend.load"]["status"] is AuditStatus.SKIPPED
    assert results["agent.answer"]["status"] is AuditStatus.UNKNOWN
    assert results["agent.answer"]["text"].endswith("has no check gpu.none")
    assert results["agent.answer"]["checks"] == 3


def test_a_repeated_or_late_request_is_not_answered() -> None:
    agent = agent_of()
    ask(agent, run_of())
    ask(agent, run_of())
    assert len(collected(agent)) == 3 * 4
    ask(agent, run_of(), age_s=1)
    ask(agent, run_of("r2", limit_s=10), age_s=11)
    agent.on_run("r1", None, 0)
    assert agent.runs == 3
    assert collected(agent) == []


def test_hosts_wait_for_each_other_and_are_unknown_after_the_limit() -> None:
    ended = threading.Event()
    at_once: list[int] = []
    running: list[str] = []

    def hang(host: Host) -> Iterator[Finding]:
        running.append("x")
        at_once.append(len(running))
        ended.wait(60)
        yield passed("late")

    check = replace(FEW["node.uptime"], find=hang, limit_s=100.0)
    agent = agent_of({check.check_id: check}, hosts_at_once=2)
    ask(agent, run_of(limit_s=1))
    results = [each for each in collected(agent) if each["check"] == check.check_id]
    ended.set()
    assert max(at_once) == 2
    assert {each["host"] for each in results} == set(HOSTS)
    assert {each["text"] for each in results} == {"the run's time limit was reached"}
    assert {each["status"] for each in results} == {AuditStatus.UNKNOWN}


def test_partners_of_a_round_of_traffic_do_not_wait_for_each_other() -> None:
    """All hosts of a round meet, though only one may run other checks at a time."""
    met = threading.Barrier(len(HOSTS))

    def meet(host: Host) -> Iterator[Finding]:
        met.wait(20)
        yield passed("met")

    check = replace(CHECKS[PAIR_CHECK], find=meet)
    agent = agent_of({PAIR_CHECK: check}, hosts_at_once=1)
    request = run_of(hosts=list(HOSTS), only=[PAIR_CHECK], active=True)
    assert is_round(request)
    ask(agent, request)
    results = [each for each in collected(agent) if each["check"] == PAIR_CHECK]
    assert {each["text"] for each in results} == {"met"}


def test_a_host_has_one_round_of_traffic_at_a_time() -> None:
    release = threading.Event()

    def load(host: Host) -> Iterator[Finding]:
        release.wait(20)
        yield passed("done")

    agent = agent_of({PAIR_CHECK: replace(CHECKS[PAIR_CHECK], find=load)})
    for name in ("r1", "r2"):
        ask(agent, run_of(name, hosts=["h1", "h2"], only=[PAIR_CHECK], active=True))
    early = {(each["run"], each["text"]) for each in agent.results() if each["check"] == PAIR_CHECK}
    assert early == {("r2", "another round of traffic is under way")}
    release.set()
    assert {each["text"] for each in collected(agent) if each["check"] == PAIR_CHECK} == {"done"}
    ask(agent, run_of("r3", hosts=["h1", "h2"], only=[PAIR_CHECK], active=True))
    assert {each["status"] for each in collected(agent)} == {AuditStatus.PASSED}
    assert not is_round(run_of(hosts=["h1"], only=[PAIR_CHECK, PAIR_CHECK], active=True))


def test_scheduled_runs_of_each_host_have_names_of_their_own() -> None:
    agent = agent_of({**FEW, LOAD.check_id: LOAD}, every_s=3600, first_run_s=0)
    agent.begin_due()
    agent.begin_due()
    results = collected(agent)
    assert by_host(results) == {host: {*FEW, "agent.answer"} for host in HOSTS}
    runs = {each["run"] for each in results}
    assert len(runs) == 3
    for each in results:
        host, _, stamp = each["run"].rpartition("-")
        assert host == each["host"]
        assert abs(int(stamp) - time.time_ns()) < 60e9


@pytest.mark.parametrize(("every_s", "first_run_s"), [(0, 0), (3600, 86_400)])
def test_without_a_schedule_or_before_its_time_nothing_runs(every_s: float, first_run_s: float) -> None:
    agent = agent_of(every_s=every_s, first_run_s=first_run_s)
    agent.begin_due()
    assert agent.runs == 0


def test_the_first_runs_are_spread() -> None:
    hosts = {f"h{n}": AuditedHost(f"h{n}", "fabric", "") for n in range(200)}
    settings = AuditSettings(every_s=3600, first_run_s=60)
    agent = AuditAgent(settings, hosts, lambda host, request: HEALTHY, {})
    agent.begin_due()
    assert agent.runs < 20


def test_a_host_that_cannot_be_opened_ends_no_thread() -> None:
    def refuse(host: str, request: AuditRun | None) -> Host:
        if host != "h3":
            raise Unreadable("no such namespace")
        return HEALTHY

    agent = AuditAgent(AuditSettings(every_s=0, hosts_at_once=1), HOSTS, refuse, FEW)
    ask(agent, run_of())
    assert by_host(collected(agent)) == {"h1": {"agent.answer"}, "h2": {"agent.answer"}} | {
        "h3": {*FEW, "agent.answer"}
    }


def test_a_flood_of_requests_is_refused() -> None:
    release = threading.Event()

    def hold(host: str, request: AuditRun | None) -> Host:
        release.wait(60)
        return HEALTHY

    agent = AuditAgent(AuditSettings(every_s=0, hosts_at_once=1), HOSTS, hold, FEW)
    for number in range(3 * MAX_WAITING):
        ask(agent, run_of(f"r{number}", hosts=["h1"]))
    assert agent.runs == MAX_WAITING
    release.set()
    assert len({each["run"] for each in collected(agent)}) == MAX_WAITING
