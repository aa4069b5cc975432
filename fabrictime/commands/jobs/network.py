"""Reads the state of the network during a job from the log of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.options import log_if_any
from fabrictime.postmortem import network
from fabrictime.postmortem.network import Event, NetworkReport
from fabrictime.postmortem.observations import Observations
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.reader import BEGINNING, Start, TopicReader, since
from schemas.records import LinkState
from schemas.topics import ALERTS, CONTENTION, LINK_HEALTH, TOPICS, Topic

if TYPE_CHECKING:
    from fabrictime.runtime.config import Config
    from schemas.kafka.settings import KafkaSettings

_OPEN_NS: Final = 3_600_000_000_000
"""Longest time that a contention window stays open without an update, as the reader assumes, ns."""


def network_report(settings: Config, out: Observations) -> NetworkReport:
    """Return the network's events at a job's hosts during the job, or the reason why it was not compared."""
    cluster = log_if_any(settings)
    if isinstance(cluster, str):
        return _not_compared(cluster)
    interval, hosts = network.interval_of(out), network.hosts_of(out)
    if interval is None:
        return _not_compared("the files state no time of the system clock")
    if not hosts:
        return _not_compared("the files name no host: logs of NCCL_DEBUG=INFO or Slurm's accounting do")
    try:
        events = list(_events(cluster, interval))
    except InputError as error:
        return _not_compared(str(error))
    return network.report(events, hosts, interval)


def _not_compared(reason: str) -> NetworkReport:
    return NetworkReport((), 0, reason)


def _events(cluster: KafkaSettings, interval: network.Interval) -> Iterator[Event]:
    """Yield an event for each alert, contention window and unhealthy link in its newest state."""
    alerts: dict[str, Any] = {}
    windows: dict[str, Any] = {}
    links: dict[str, Any] = {}
    starts: dict[Topic[Any], Start] = {
        ALERTS: BEGINNING,
        LINK_HEALTH: BEGINNING,
        CONTENTION: since(max(0, interval.from_ns - _OPEN_NS)),
    }
    registry = cluster.registry()
    with TopicReader.open(cluster, starts) as reader:
        for message in reader.read_to_end():
            if message.value is None:
                continue
            try:
                record = message.decoded(TOPICS[message.topic], registry)
            except codec.BadRecord:
                continue  # an unreadable record counts as missing
            if message.topic == ALERTS.name:
                alerts[record["alert_id"]] = record
            elif message.topic == CONTENTION.name:
                windows[record["window_id"]] = record
            else:
                links[record["subject"]] = record
    yield from map(network.alert_event, alerts.values())
    yield from map(network.contention_event, windows.values())
    troubled = (record for record in links.values() if record["state"] != LinkState.UP)
    yield from map(network.health_event, troubled)
