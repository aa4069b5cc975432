"""Sends a simulated fleet's evidence to a real log in real time, and reads the workers' link health.

It needs a log's address and a `ProbedFleet`. It publishes `LinkEvent` and `PathMaps` messages and collects
the resulting `LinkHealth` records. For benches and tests with real workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fabrictime.bench.detect.link_evidence import ProbedFleet
from producers.sim.traces import KnownPath, path_records
from schemas import codec
from schemas.kafka.producer import load_producer
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.records import LinkEvent, LinkHealth, LinkState
from schemas.topics import LINK_HEALTH, LINKS, PATHS, R, Topic

SLICE_NS: Final = 5_000_000


class LiveLinks:
    """Sends a fleet's evidence to a log in real time; each call of `run` advances time."""

    def __init__(self, bootstrap: str, probes: ProbedFleet) -> None:
        self.probes = probes
        self.records: list[tuple[int, int, LinkHealth | None, str]] = []
        """(append time, offset, record, key) of everything in fabric.link-health so far."""
        self._producer = load_producer(bootstrap, {"linger.ms": 0, "log_level": 0})
        self._reader = TopicReader.open(bootstrap, {LINK_HEALTH: BEGINNING}, fetch_wait_ms=10)

    def publish_paths(self) -> None:
        """Publish the links of all paths; each end publishes its own directions."""
        book = self.probes.book
        paths = (KnownPath(*at, links, book.reverse(*at)) for at, links in book.requests())
        for record in path_records(paths):
            self._send(PATHS, f"{record['nic']}>{record['peer']}", record)
        self._producer.flush(20)

    def _send(self, topic: Topic[R], key: str, record: R) -> None:
        self._producer.produce(topic.name, codec.encode(topic.type, record), key)
        self._producer.poll(0)

    def send_event(self, event: LinkEvent) -> None:
        """Send one `LinkEvent` of the fleet."""
        self._send(LINKS, event["shard"], event)

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Advance the fleet's time by `seconds`, in real time, or more slowly on a busy machine.

        Stops early once `until` is true. Returns whether it became true, or True without an `until`.
        """
        begin_s, begin_ns = time.monotonic(), self.probes.now_ns
        while self.probes.now_ns - begin_ns < seconds * 1e9:
            behind_ns = begin_ns + int((time.monotonic() - begin_s) * 1e9) - self.probes.now_ns
            if behind_ns < SLICE_NS:
                time.sleep((SLICE_NS - behind_ns) / 1e9)
                continue
            for _, event in self.probes.run(SLICE_NS):
                self.send_event(event)
            self._read()
            if until is not None and until():
                return True
        return until is None

    def _read(self) -> None:
        for message, record in self._reader.decoded(self._reader.poll(0)):
            self.records.append((message.append_ns, message.offset, record, message.key))

    def last(self, subject: str) -> LinkHealth | None:
        """Return the newest record of a subject."""
        return next((r for _, _, r, key in reversed(self.records) if key == subject), None)

    def state(self, subject: str) -> LinkState | None:
        """Return a subject's state, or None if it has no record."""
        record = self.last(subject)
        return None if record is None else record["state"]

    def subjects_ever(self, state: str) -> set[str]:
        """Return the subjects that were in `state` at any time."""
        return {key for _, _, r, key in self.records if r is not None and r["state"] == state}

    def close(self) -> None:
        """Close the connections to the log."""
        self._producer.flush(5)
        self._reader.close()
