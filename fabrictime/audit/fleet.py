"""Audits a fleet: requests a run by a message on the log, and collects the results of its hosts.

The expected hosts are the hosts of the inventory. A run ends when each of them has delivered its results, or
`GRACE_S` after the run's limit. At the limit, agents publish their remaining checks as UNKNOWN.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from fabrictime.audit.collect import Collector, Progress
from fabrictime.audit.report import AuditReport
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.publisher import Publisher
from schemas.kafka.reader import BEGINNING, END, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.records import AuditRun, Nic
from schemas.topics import AUDIT, AUDIT_RUNS, INVENTORY, Topic

GRACE_S: Final = 5.0
PUBLISH_S: Final = 10.0
POLL_S: Final = 0.1
STALE_S: Final = 24 * 3600.0
"""A NIC has left the fleet if its announcement is this much older than the newest of all."""
_PATTERN: Final = frozenset("*?[")


class Request(NamedTuple):
    """Request of a run. `hosts` are names or patterns, `only` categories and ids; each means all if empty."""

    hosts: Sequence[str] = ()
    only: Sequence[str] = ()
    active: bool = False
    limit_s: int = 120


def run_name(now_s: float, kind: str = "audit") -> str:
    """Return a unique name for a run."""
    return f"{kind}-{datetime.fromtimestamp(now_s, tz=UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def living(announced: Mapping[str, tuple[Nic, int]]) -> list[Nic]:
    """Return the NICs of the fleet, sorted. `announced` is (record, append time in ns) by NIC.

    NICs that have stopped are left out, and NICs with an announcement a day older than the newest one.
    """
    newest_ns = max((at_ns for _, at_ns in announced.values()), default=0)
    return [
        record
        for _, (record, at_ns) in sorted(announced.items())
        if (record["probe_port"] or record["ud"] is not None) and newest_ns - at_ns <= STALE_S * 1e9
    ]


def nics_of(nics: Iterable[Nic]) -> dict[str, tuple[str, ...]]:
    """Return the names of the NICs by host."""
    nics_by_host: dict[str, list[str]] = {}
    for nic in nics:
        nics_by_host.setdefault(nic["host"], []).append(nic["nic"])
    return {host: tuple(names) for host, names in nics_by_host.items()}


def read_nics(cluster: KafkaSettings) -> list[Nic]:
    """Return the fleet's NICs from the inventory topic. Raises LogUnavailable."""
    announced: dict[str, tuple[Nic, int]] = {}
    with TopicReader.open(cluster, {INVENTORY: BEGINNING}) as reader:
        for message, record in reader.decoded(reader.read_to_end(), cluster.registry()):
            announced.pop(message.key, None)
            if record is not None:
                announced[message.key] = record, message.append_ns
    return living(announced)


def expected_hosts(patterns: Iterable[str], hosts: Iterable[str]) -> list[str]:
    """Return the hosts that the names and patterns select; all `hosts` if there is no pattern.

    A name that is not in `hosts` is returned too: this host must answer. Raises ValueError for a pattern that
    selects no host, and for an empty inventory.
    """
    names, hosts = list(patterns), sorted(hosts)
    if not names and not hosts:
        raise InputError("no host in the inventory, expected at least one: is an agent running?")
    expected: set[str] = set() if names else set(hosts)
    for name in names:
        matching = [host for host in hosts if fnmatchcase(host, name)]
        if not matching and _PATTERN & set(name):
            raise InputError(f"--hosts {name}: no such host, expected one of {', '.join(hosts[:8])}")
        expected |= set(matching or [name])
    return sorted(expected)


def audit_fleet(
    cluster: KafkaSettings,
    request: Request,
    nics: Iterable[Nic],
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> AuditReport:
    """Run an audit and return its report. Raises ValueError, LogUnavailable, PublishFailed.

    Ctrl-C ends the wait for results: the report then has the results so far.
    """
    nics_by_host = nics_of(nics)
    hosts = expected_hosts(request.hosts, nics_by_host)
    started_ns = time.time_ns()
    run = AuditRun(
        run=run_name(started_ns / 1e9),
        requested_ns=started_ns,
        hosts=hosts if request.hosts else [],
        only=list(request.only),
        active=request.active,
        limit_s=request.limit_s,
    )
    collector = Collector(run["run"], hosts, started_ns, {host: nics_by_host.get(host, ()) for host in hosts})
    limit_s: float = request.limit_s
    with TopicReader.open(cluster, {AUDIT: END}) as reader:
        publish(cluster, AUDIT_RUNS, [run])
        try:
            _collect(reader, cluster.registry(), collector, limit_s + GRACE_S, on_progress)
        except KeyboardInterrupt:
            limit_s = round((time.time_ns() - started_ns) / 1e9)
    return collector.report(time.time_ns(), limit_s)


def publish(cluster: KafkaSettings, topic: Topic, records: Iterable[Mapping[str, Any]]) -> None:
    """Publish records of a run, and wait until Kafka confirms them. Raises ValueError, PublishFailed."""
    publisher = Publisher(cluster, cluster.registry())
    for record in records:
        publisher.publish(topic, record["run"], record)
    publisher.flush(PUBLISH_S)


def _collect(
    reader: TopicReader,
    registry: codec.Registry | None,
    collector: Collector,
    limit_s: float,
    on_progress: Callable[[Progress], None],
) -> None:
    end_s = time.monotonic() + limit_s
    on_progress(collector.progress)
    while not collector.is_done and time.monotonic() < end_s:
        messages = reader.poll(POLL_S, at_once=True)
        for message, record in reader.decoded(messages, registry):
            if message.topic == AUDIT.name and record is not None:
                collector.add(record)
        if messages:
            on_progress(collector.progress)
