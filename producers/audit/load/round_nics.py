"""Finds the NICs of the hosts in a round of traffic, from the inventory topic.

The topic is read on request only: a large fleet announces hundreds of NICs a second, too many to follow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from producers.audit.host.base import Unreadable
from producers.audit.load.traffic_plan import RoundNic
from schemas.ids import host_of
from schemas.kafka.reader import BEGINNING, LogUnavailable, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.records import Nic
from schemas.topics import INVENTORY

FRESH_S: Final = 60.0
"""Rounds share one reading up to this age: a pattern begins a round every few seconds."""


def nics_by_host(announced: Iterable[Nic]) -> dict[str, tuple[RoundNic, ...]]:
    """Return, by host, the NICs that answer probes: one NIC per address, as devices may share an address."""
    nics: dict[str, dict[str, RoundNic]] = {}
    for nic in sorted(announced, key=lambda record: (not record["probe_port"], record["nic"])):
        if nic["addresses"] and (nic["probe_port"] or nic["ud"] is not None):
            address = nic["addresses"][0]
            entry = RoundNic(nic["rail"] or 0, nic["device"], address)
            nics.setdefault(nic["host"], {}).setdefault(address, entry)
    return {host: tuple(sorted(of_host.values())) for host, of_host in nics.items()}


class RoundNics:
    """The NICs of hosts, as of their newest announcements. Threads of several hosts share one reading."""

    def __init__(self, cluster: KafkaSettings) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._asked: frozenset[str] = frozenset()
        self._found: dict[str, tuple[RoundNic, ...]] = {}
        self._read_s = float("-inf")

    def of(self, hosts: Collection[str]) -> Mapping[str, tuple[RoundNic, ...]]:
        """Return the NICs of `hosts`, or of more. Raises Unreadable if Kafka does not answer."""
        with self._lock:
            if time.monotonic() - self._read_s > FRESH_S or not self._asked.issuperset(hosts):
                try:
                    self._found = nics_by_host(self._newest(hosts))
                except LogUnavailable as error:
                    raise Unreadable(str(error)) from error
                self._asked, self._read_s = frozenset(hosts), time.monotonic()
            return self._found

    def _newest(self, hosts: Collection[str]) -> list[Nic]:
        records: dict[str, Nic] = {}
        with TopicReader.open(self._cluster, {INVENTORY: BEGINNING}) as reader:
            messages = (message for message in reader.read_to_end() if host_of(message.key) in hosts)
            for message, record in reader.decoded(messages, self._cluster.registry()):
                records.pop(message.key, None)
                if record is not None:
                    records[message.key] = record
        return list(records.values())
