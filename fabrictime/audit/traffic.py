"""Runs rounds of traffic between hosts of a fleet: plans the rounds, requests them in sequence, evaluates
them.

Each round is an audit run of its own; the order of its hosts determines the partner of each. A host that does
not answer is left out of later rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from fabrictime.audit.collect import Collector
from fabrictime.audit.fleet import expected_hosts, nics_of, publish, run_name
from fabrictime.audit.report import ANSWER, AuditReport
from producers.audit.load.round_nics import nics_by_host
from producers.audit.load.traffic_plan import FAN_CHECK, MAX_FLOWS, PAIR_CHECK, RING_CHECK
from producers.audit.settings import TrafficSettings
from schemas.ids import host_of, nic_id
from schemas.input_error import InputError
from schemas.kafka.reader import END, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.records import AuditResult, AuditRun, AuditStatus, Nic
from schemas.topics import AUDIT, AUDIT_RUNS
from streams.audit.fabric.leaves import leaves_by_delay, leaves_by_route
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, ORDER, Scope
from streams.audit.traffic.pairs import Round, TrafficLimits, confirming_rounds, traffic_results
from streams.audit.traffic.rounds import (
    across_leaves,
    batched,
    fans,
    order_of,
    pairs_of,
    rings,
    tournament,
    within_leaves,
)

PATTERNS: Final = ("pairs", "one-to-many", "bisection", "ring", "burn")
PASSES: Final = 2
MAX_CONFIRMING: Final = 3
"""Largest number of times that suspected hosts and pairs are measured again, if they are still suspected."""
POLL_S: Final = 0.1
MIN_HOSTS: Final = {"ring": 3}
RECEIVERS: Final = 8
"""Number of receivers that a sender loads at a time, unless `batch` is set."""
START_S: Final = 10.0
"""Time of a round in addition to its traffic: agents have to start a process on each host."""
_CHECKS: Final = {"fan": FAN_CHECK, "ring": RING_CHECK}
"""Check of each kind of round; all other kinds are rounds of pairs."""


class TrafficRequest(NamedTuple):
    """Request of a run. `hosts` are names or patterns, all if empty; `passes` and `batch` are 0 for
    defaults.
    """

    hosts: Sequence[str] = ()
    pattern: str = "pairs"
    passes: int = 0
    batch: int = 0
    """Largest number of pairs, or of receivers of a sender, that are loaded at a time."""


def limits_of(settings: TrafficSettings) -> TrafficLimits:
    """Return the part of the settings that the evaluation uses as limits."""
    return TrafficLimits(**{name: getattr(settings, name) for name in TrafficLimits.__slots__})


def planned(request: TrafficRequest, hosts: Sequence[str], leaf_of: Mapping[str, str]) -> list[Round]:
    """Return the rounds to run, without results. `leaf_of` is the leaf switch by host. Raises ValueError."""
    pattern, passes = request.pattern, request.passes or PASSES
    if pattern not in PATTERNS:
        raise InputError(f"--pattern {pattern}: expected {', '.join(PATTERNS)}")
    min_hosts = MIN_HOSTS.get(pattern, 2)
    if len(hosts) < min_hosts:
        raise InputError(f"{len(hosts)} hosts, expected at least {min_hosts} for {pattern}")
    if pattern == "ring":
        return [Round("ring", order) for order in rings(hosts, passes)]
    if pattern == "one-to-many":
        receivers = min(request.batch or RECEIVERS, MAX_FLOWS)
        return [Round("fan", order) for order in fans(hosts, receivers)[: request.passes or None]]
    if pattern == "bisection":
        return _bisection(hosts, passes, request.batch, leaf_of)
    meetings = tournament(hosts)
    pairings = [
        meetings[number % len(meetings)]
        for number in range(passes if pattern == "burn" else min(passes, len(meetings)))
    ]
    return [
        planned_round
        for pairs in pairings
        for planned_round in _rounds(pattern, pairs, request.batch, leaf_of)
    ]


def _bisection(hosts: Sequence[str], passes: int, batch: int, leaf_of: Mapping[str, str]) -> list[Round]:
    leaves = {leaf_of[host] for host in hosts if host in leaf_of}
    if len(leaves) < 2:
        raise InputError(f"{len(leaves)} leaves known, expected at least 2 by routes or delays of probes")
    rounds = []
    for number in range(passes):
        order = [*hosts[number:], *hosts[:number]]
        rounds += _rounds("within", within_leaves(order, leaf_of), batch, leaf_of)
        rounds += _rounds("across", across_leaves(order, leaf_of), batch, leaf_of)
    return rounds


def _rounds(
    kind: str, pairs: Sequence[tuple[str, str]], batch: int, leaf_of: Mapping[str, str]
) -> list[Round]:
    if not pairs:
        return []
    return [Round(kind, order_of(part)) for part in batched(pairs, batch or len(pairs), leaf_of)]


def without(planned_round: Round, absent: set[str]) -> Round | None:
    """Return a round without the hosts `absent` and their partners; None if no pair is left."""
    if not absent & set(planned_round.hosts):
        return planned_round
    if planned_round.kind in _CHECKS:
        left = [host for host in planned_round.hosts if host not in absent]
        is_useful = (
            planned_round.hosts[0] in left if planned_round.kind == "fan" else len(left) >= MIN_HOSTS["ring"]
        )
        return Round(planned_round.kind, left) if is_useful and len(left) > 1 else None
    pairs = [pair for pair in pairs_of(planned_round.hosts) if not absent & set(pair)]
    return Round(planned_round.kind, order_of(pairs)) if pairs else None


def leaves_of_hosts(fabric: FabricRecords) -> dict[str, str]:
    """Return the leaf switch of each host's first NIC, from routes, or from delays without routes."""
    leaf_of = leaves_by_route(fabric) or leaves_by_delay(fabric)
    leaf_of_host: dict[str, str] = {}
    for nic in sorted(leaf_of):
        leaf_of_host.setdefault(host_of(nic), leaf_of[nic])
    return leaf_of_host


def common_links(fabric: FabricRecords) -> dict[tuple[str, str], list[str]]:
    """Return, by (NIC, peer), the links that all traced routes between them share."""
    links_of_pair: dict[tuple[str, str], list[str]] = {}
    for traced in fabric.traced:
        pair = traced.nic, traced.peer
        links = links_of_pair.setdefault(pair, list(traced.links))
        links_of_pair[pair] = [link for link in links if link in traced.links]
    return links_of_pair


def run_traffic(
    cluster: KafkaSettings,
    request: TrafficRequest,
    nics: Sequence[Nic],
    leaf_of: Mapping[str, str],
    settings: TrafficSettings,
    on_progress: Callable[[str], None] = lambda text: None,
) -> tuple[str, int, list[Round]]:
    """Run the rounds. Return the run's name, its start in ns, and the rounds with their results.

    Raises ValueError, LogUnavailable, PublishFailed. After Ctrl-C, it returns the rounds so far.
    """
    hosts = expected_hosts(request.hosts, nics_of(nics))
    started_ns = time.time_ns()
    run, rounds = run_name(started_ns / 1e9, "traffic"), planned(request, hosts, leaf_of)
    done: list[Round] = []
    absent: set[str] = set()
    limit_s = math.ceil(2 * settings.meet_s + settings.seconds + START_S)
    with TopicReader.open(cluster, {AUDIT: END}) as reader:
        try:
            for planned_round in _each_round(rounds, done, limits_of(settings), request.pattern):
                left = without(planned_round, absent)
                if left is not None:
                    label = f"round {len(done) + 1} of {max(len(rounds), len(done) + 1)} ({left.kind})"
                    name = f"{run}-{len(done) + 1:03}"
                    report = _one_round(cluster, reader, name, left, limit_s, label, on_progress)
                    absent |= set(report.missing)
                    done.append(Round(left.kind, left.hosts, list(report.all_results())))
        except KeyboardInterrupt:
            on_progress("ended by Ctrl-C")
    return run, started_ns, done


def _each_round(
    rounds: Sequence[Round], done: Sequence[Round], limits: TrafficLimits, pattern: str
) -> Iterable[Round]:
    yield from rounds
    if pattern in ("pairs", "burn"):
        for _ in range(MAX_CONFIRMING):
            for pairs in confirming_rounds(done, limits):
                yield Round(pattern, order_of(pairs))


def _one_round(
    cluster: KafkaSettings,
    reader: TopicReader,
    name: str,
    planned_round: Round,
    limit_s: int,
    label: str,
    on_progress: Callable[[str], None],
) -> AuditReport:
    """Request a round, wait at most `limit_s` seconds until it ends, and return its report."""
    check = _CHECKS.get(planned_round.kind, PAIR_CHECK)
    now_ns = time.time_ns()
    request = AuditRun(
        run=name,
        requested_ns=now_ns,
        hosts=list(planned_round.hosts),
        only=[check],
        active=True,
        limit_s=limit_s,
    )
    publish(cluster, AUDIT_RUNS, [request])
    collector = Collector(name, planned_round.hosts, now_ns, {})
    end_s = time.monotonic() + limit_s
    while not collector.is_done and time.monotonic() < end_s:
        for message, record in reader.decoded(reader.poll(POLL_S, at_once=True), cluster.registry()):
            if message.topic == AUDIT.name and record is not None:
                collector.add(record)
        progress = collector.progress
        on_progress(f"{label}: {progress.complete} of {progress.hosts} hosts")
    return collector.report(time.time_ns(), limit_s)


def merged(
    run: str, started_ns: int, ended_ns: int, rounds: Sequence[Round], nics: Sequence[Nic]
) -> AuditReport:
    """Return one report of all rounds, named `run`, with the worst result of each host and check."""
    results: dict[str, dict[str, AuditResult]] = {}
    for result in (result for traffic in rounds for result in traffic.results):
        of_host = results.setdefault(result["host"], {})
        decisive = of_host.get(result["check"])
        if decisive is None or _rank(result) < _rank(decisive):
            of_host[result["check"]] = result
    for of_host in results.values():
        for check, result in of_host.items():
            of_host[check] = {**result, "run": run, "checks": len(of_host)}
    hosts = tuple(sorted({host for traffic in rounds for host in traffic.hosts}))
    missing = tuple(host for host in hosts if results.get(host, {}).keys() <= {ANSWER})
    known_nics = nics_of(nics)
    return AuditReport(
        run, hosts, results, missing, started_ns, ended_ns, {host: known_nics.get(host, ()) for host in hosts}
    )


def _rank(result: AuditResult) -> int:
    return ORDER.index(AuditStatus(result["status"]))


def evaluated_traffic(
    report: AuditReport, rounds: Sequence[Round], fabric: FabricRecords, limits: TrafficLimits
) -> AuditReport:
    """Return the report with the results of the evaluation of its traffic added."""
    answered = {result["host"]: result for of_round in rounds for result in of_round.results}
    scope = Scope(
        report.run,
        report.ended_ns,
        {host: result["sku"] for host, result in answered.items()},
        {host: result["shard"] for host, result in answered.items()},
    )
    nics = {
        host: [nic_id(host, nic.device) for nic in of_host]
        for host, of_host in nics_by_host(fabric.nics).items()
    }
    results = traffic_results(rounds, scope, limits, common_links(fabric), nics)
    return report.with_results(results)


def heat_maps(report: AuditReport) -> list[str]:
    """Return the lines of the heat maps of the traffic rings, as text."""
    result = report.results.get(FLEET, {}).get("fabric.stragglers")
    return [
        f"{finding['subject']}: {finding['text']}"
        for finding in islice(result["findings"] if result else (), 16)
    ]
