"""The auditor of one host, or of several hosts whose namespaces this process may enter.

It reads new requests from `fabric.audit.runs` without a consumer group. It publishes an `AuditResult` to
`fabric.audit` as each check ends. It also runs the passive checks on a schedule.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from producers.audit.agent import AuditAgent, is_round
from producers.audit.checks import CHECKS
from producers.audit.findings import FailedChecks
from producers.audit.host.base import Missing
from producers.audit.host.live import LiveHost
from producers.audit.load.round_nics import RoundNics
from producers.audit.load.traffic_plan import TrafficRound
from producers.audit.report import AuditedHost
from producers.audit.settings import AuditSettings
from producers.inventory.nics import LookupReader
from producers.settings import NicSettings
from schemas import codec
from schemas.kafka.bounded_producer import BoundedProducer
from schemas.process_part import Part, own_process
from schemas.records import AuditRun
from schemas.service_notifier import ServiceNotifier
from schemas.stop_request import StopRequest
from schemas.topics import AUDIT, AUDIT_RUNS

_log = logging.getLogger(__name__)

_CLOSE_S: Final = 2.0
_IDLE_S: Final = 0.25
_BUSY_S: Final = 0.05
_STATUS_S: Final = 5.0


def audited_hosts(nics: Sequence[NicSettings], sku: str) -> dict[str, AuditedHost]:
    """Return the hosts of some NICs, by name. A host has the shard of its first NIC."""
    return {nic.host: AuditedHost(nic.host, nic.shard, sku) for nic in reversed(nics)}


def open_host(
    nics: Sequence[NicSettings],
    host: str,
    settings: AuditSettings | None = None,
    request: AuditRun | None = None,
    peers: RoundNics | None = None,
) -> LiveHost:
    """Return the interface to a host, in the network namespace of its first NIC.

    A request may be a round of traffic only with `settings` and `peers`, the NICs of the inventory.
    """
    own = [nic for nic in nics if nic.host == host]

    def find_round() -> TrafficRound:
        if request is None or settings is None or peers is None or not is_round(request):
            raise Missing("only `fabrictime audit traffic` sends load between hosts")
        order = tuple(request["hosts"])
        return TrafficRound(request["run"], host, order, peers.of(order), settings.traffic)

    devices = tuple(nic.device for nic in own)
    return LiveHost(netns=own[0].netns, nics=devices, settings=settings, find_round=find_round)


def main(settings: AuditSettings, nics: Sequence[NicSettings], part: Part | None = None) -> int:
    """Audit until the stop request. Returns the exit code, 0 if stopped."""
    stop, supervisor = part or own_process()
    registry = settings.kafka.registry()
    peers = RoundNics(settings.kafka)

    def open_one(host: str, request: AuditRun | None) -> LiveHost:
        return open_host(nics, host, settings, request, peers)

    agent = AuditAgent(settings, audited_hosts(nics, settings.sku), open_one, CHECKS)
    producer = BoundedProducer(
        settings.kafka, settings.queue_messages, settings.queue_bytes, settings.compression
    )
    reader = LookupReader(settings.kafka, {AUDIT_RUNS: agent.on_run}, registry, from_end=(AUDIT_RUNS,))
    supervisor.notify("READY=1")
    try:
        _run(agent, reader, producer, registry, supervisor, stop)
    finally:
        supervisor.notify("STOPPING=1")
        left = producer.close(_CLOSE_S)
        reader.close()
        if left:
            _log.warning("auditor: %d results could not be sent before the end", left)
    return 0


def _run(
    agent: AuditAgent,
    reader: LookupReader,
    producer: BoundedProducer,
    registry: codec.Registry | None,
    supervisor: ServiceNotifier,
    stop: StopRequest,
) -> None:
    left_s = 0.0
    failed_checks = FailedChecks()
    while not stop.is_set():
        reader.poll()
        agent.begin_due()
        for record in agent.results():
            failed_checks.take(record)
            producer.put(AUDIT.name, record["run"], codec.encode(AUDIT.type, record, registry))
        producer.poll()
        pause_s = _BUSY_S if agent.is_busy or producer.waiting else _IDLE_S
        left_s -= pause_s
        if left_s <= 0:
            left_s = _STATUS_S
            supervisor.notify(
                f"STATUS={agent.runs} runs, {reader.rejected} requests refused, {producer.status}"
            )
        stop.wait(pause_s)
