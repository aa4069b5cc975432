"""Defines the interface of the probe transports, and holds the parts that all probers share.

A transport sends probes and answers the probes of other NICs: UDP (`udp.py`) or RDMA datagrams (`rdma/`). The
shared parts choose the peers, announce the NIC in the inventory and publish the probe batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from producers.inventory.nics import PeerTable
from producers.probe.peers import choose_peers, hashes_of
from schemas import codec
from schemas.kafka.bounded_producer import BoundedProducer, Delivered
from schemas.kafka.settings import KafkaSettings
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES
from schemas.records import Nic
from schemas.service_notifier import ServiceNotifier
from schemas.topics import INVENTORY, PROBES

_log = logging.getLogger(__name__)

Contact = TypeVar("Contact")

CLOSE_S = 2.0
"""Time allowed for sending the queued messages when a prober stops."""
STATUS_S = 5.0
"""Interval of the status line."""
REFUSED_COUNTERS = ("malformed", "bad_mac", "wrong_nic", "stale_time")
"""Counters of packets that were not accepted."""


class ProbeTransport(Protocol):
    """Sends one NIC's probes, and answers the probes of other NICs."""

    @property
    def name(self) -> str:
        """Id of the NIC that probes."""

    def record(self) -> Nic:
        """Return the NIC's announcement for the inventory, as of now."""

    def update_peers(self, table: PeerTable, extra: frozenset[str] = frozenset()) -> int:
        """Choose peers among the living NICs and a few more from `extra`; return the number of peers."""

    def counters(self) -> Mapping[str, float]:
        """Return, by name, the transport's counters of packets and samples."""


class PublishSettings(Protocol):
    """The settings that a publisher needs; the settings of both the UDP and the RDMA prober contain them."""

    @property
    def kafka(self) -> KafkaSettings:
        """Kafka cluster and schema registry to publish to."""

    @property
    def silent_s(self) -> float:
        """Time without an announcement, s, after which a peer is dropped."""

    @property
    def queue_messages(self) -> int:
        """Maximum number of messages in the producer's queue."""

    @property
    def queue_bytes(self) -> int:
        """Maximum total size of the messages in the producer's queue, bytes."""

    @property
    def compression(self) -> str:
        """Kafka's compression codec for published messages."""


def select_peers(
    nic: str, contacts: Mapping[str, Contact], count: int, seed: int, extra: Iterable[str] = ()
) -> dict[str, Contact]:
    """Choose `count` peers of `nic` among `contacts`, and up to `count` more from `extra`."""
    others = {name: contact for name, contact in contacts.items() if name != nic}
    names = sorted(others)
    peers = choose_peers(nic, names, count, seed, hashes_of(names, seed))
    more = [name for name in sorted(set(extra) & others.keys()) if name not in peers]
    return {name: others[name] for name in peers + more[:count]}


class ProbeMetrics:
    """Provides one transport's counters as metrics until `close`. `peers` returns the number of its peers."""

    def __init__(self, transport: ProbeTransport, peers: Callable[[], int]) -> None:
        self._transport, self._peers = transport, peers
        SOURCES.add(self.samples)

    def samples(self) -> Iterator[Sample]:
        """Yield the transport's counters as metrics."""
        counters, nic = self._transport.counters(), (self._transport.name,)
        sent, lost = counters.get("requests_sent", 0), counters.get("lost", 0)
        yield Sample("fabrictime_nics", 1)
        yield Sample("fabrictime_probe_peers", self._peers())
        yield Sample("fabrictime_probes_sent_total", sent)
        yield Sample("fabrictime_probes_lost_total", lost)
        yield Sample("fabrictime_probes_answered_total", counters.get("replies_sent", 0))
        refused = sum(counters.get(name, 0) for name in REFUSED_COUNTERS)
        yield Sample("fabrictime_probe_packets_refused_total", refused)
        yield Sample("fabrictime_probe_rate_ratio", counters.get("throttle", 1.0))
        yield Sample("fabrictime_nic_probes_sent_total", sent, nic)
        yield Sample("fabrictime_nic_probes_lost_total", lost, nic)
        yield Sample("fabrictime_nic_probe_peers", self._peers(), nic)

    def close(self) -> None:
        """Read the counters for the last time; call this before closing the transport."""
        SOURCES.remove(self.samples)


class ProbePublisher:
    """Publishes a prober's announcements and batches to Kafka, and its status to the service manager."""

    def __init__(self, settings: PublishSettings) -> None:
        self.kafka = settings.kafka
        self.registry = settings.kafka.registry()
        self.peers = PeerTable(settings.silent_s)
        self.producer = BoundedProducer(
            self.kafka, settings.queue_messages, settings.queue_bytes, settings.compression
        )
        self.supervisor = ServiceNotifier()
        self._batch_header = codec.header(PROBES.record, self.registry)

    def announce(self, record: Nic, delivered: Delivered | None = None) -> None:
        """Publish a NIC's announcement; `delivered` receives the announcement's log append time, ns."""
        self.producer.put(
            INVENTORY.name,
            record["nic"],
            codec.encode(INVENTORY.type, record, self.registry),
            delivered,
        )

    def publish_batch(self, nic: str, batch: bytes) -> None:
        """Publish an encoded `ProbeBatch` of the NIC `nic`."""
        self.producer.put(PROBES.name, nic, self._batch_header + batch)

    def report_status(self, transport: ProbeTransport, peers: int, details: str = "") -> None:
        """Send the status line to the service manager. `details`: text for the line that ends with ", "."""
        counters = transport.counters()
        refused = sum(counters.get(name, 0) for name in REFUSED_COUNTERS)
        self.supervisor.notify(
            f"STATUS={peers} peers, {details}{counters.get('samples', 0):.0f} samples, "
            f"{counters.get('lost', 0):.0f} lost, {refused:.0f} refused, {self.producer.status}"
        )

    def close(self, name: str) -> None:
        """Send the waiting messages and close the Kafka producer. `name`: the NIC, for the log."""
        left = self.producer.close(CLOSE_S)
        if left:
            _log.warning("%s: %d messages could not be sent before the end", name, left)
