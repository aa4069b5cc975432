"""Measures the cost of a broker's death: one of three Apache Kafka brokers is killed under load.

The agents' producer publishes path delays, and the real sink stores them in the history server. A broker that
leads partitions of the topic ends by SIGKILL in the middle and starts again later. Log and history must hold
every record that the cluster acknowledged, the history exactly once.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._apache_kafka import VERSION, Cluster, NotAvailable, running_cluster
from fabrictime.bench._pipeline import stream_worker
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.history import Server, path_delays, running_server
from schemas import codec, tables
from schemas.kafka.admin import create_topics
from schemas.kafka.bounded_producer import BoundedProducer
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.kafka.settings import as_settings
from schemas.topics import DELAYS

NICS: Final = 10
PATHS: Final = 2
EVERY_S: Final = 0.1
"""Time between two records of a NIC, s."""
LOAD_S, QUICK_S = 60.0, 20.0
FLUSH_S: Final = 60.0
STORE_S: Final = 60.0
"""Longest time until the sink has stored what the log holds, s."""
HEAP_MB: Final = 256
PARTITIONS: Final = 6
"""More than brokers, so that each broker leads some."""
VICTIM: Final = 0
PROPERTIES: Final = "min.insync.replicas=2\n"

Identity = tuple[str, int]
"""NIC and window of a record."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Return the lost records and the duplicates, in about two minutes."""
    keys = ("kafka_broker_killed_lost_acknowledged", "duplicates_in_history")
    try:
        with tempfile.TemporaryDirectory(prefix="fabrictime-brokers-") as name:
            return _measure(Path(name), progress, QUICK_S if quick else LOAD_S)
    except NotAvailable as reason:
        return dict.fromkeys(keys, Missing(str(reason)))


def _measure(folder: Path, progress: Progress, load_s: float) -> dict[str, Value]:
    progress(f"broker: three brokers of Apache Kafka {VERSION} start")
    with running_cluster(folder, PROPERTIES, heap_mb=HEAP_MB) as cluster, running_server() as server:
        create_topics(cluster.bootstrap, partitions=PARTITIONS, replication=3)
        store = {
            "url": server.url,
            "password_file": str(server.directory / "write.token"),
            "retry_max_ms": 500,
        }
        with stream_worker(cluster.bootstrap, folder, stages=("sink",), history=store):
            load = Load(cluster)
            load.run(progress, load_s)
            log = _log(cluster.bootstrap)
            stored = _stored_when_complete(server, load.acknowledged | set(log))
            return figures_of(load.acknowledged, log, stored, load.text())


class Load:
    """Publishes path delays while a broker ends and returns, and counts the acknowledged records."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producer = BoundedProducer(as_settings(cluster.bootstrap), 100_000, 1 << 30)
        self._record = path_delays(time.time_ns())
        self._record["paths"] = self._record["paths"][:PATHS]
        self.acknowledged: set[Identity] = set()
        self.published = 0
        self.longest_gap_s = 0.0
        """Longest time without an acknowledgement, s."""
        self._acknowledged_s = time.monotonic()

    def run(self, progress: Progress, load_s: float) -> None:
        """Publish for `load_s`; kill a broker after a third of it, and start the broker after two thirds."""
        begin_s = time.monotonic()
        events = [
            (load_s / 3, "one of three is killed", self._cluster.kill),
            (load_s * 2 / 3, "it is started again", self._cluster.start),
        ]
        window = 0
        while (passed_s := time.monotonic() - begin_s) < load_s:
            if events and passed_s >= events[0][0]:
                _, text, act = events.pop(0)
                progress(f"broker: {text} after {passed_s:.0f} s of {load_s:.0f} s")
                act(VICTIM)
            if passed_s >= window * EVERY_S:
                self._publish(window)
                window += 1
            self._producer.poll()
            time.sleep(0.005)
        self._producer.close(FLUSH_S)

    def text(self) -> str:
        """Return the number of acknowledged records and the longest pause, as text."""
        return (
            f"{len(self.acknowledged):,} of {self.published:,} acknowledged, "
            f"longest time without an acknowledgement {self.longest_gap_s:.1f} s"
        )

    def _publish(self, window: int) -> None:
        for number in range(NICS):
            nic = f"h{number}/eth0"
            record = {**self._record, "nic": nic, "window": window}
            done = functools.partial(self._take_acknowledgement, (nic, window))
            self._producer.put(DELAYS.name, nic, codec.encode(DELAYS.record, record), done)
            self.published += 1

    def _take_acknowledgement(self, identity: Identity, append_ns: int) -> None:
        now_s = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self._acknowledged_s)
        self._acknowledged_s = now_s
        self.acknowledged.add(identity)


def _log(bootstrap: str) -> Counter[Identity]:
    """Return how often the log holds each record."""
    with TopicReader.open(bootstrap, {DELAYS: BEGINNING}) as reader:
        records = [message.decoded(DELAYS) for message in reader.read_to_end()]
    return Counter((record["nic"], record["window"]) for record in records)


class Stored(NamedTuple):
    """Number of path rows, of samples in these rows, and of samples in the rollup, each by record."""

    rows: dict[Identity, int]
    samples: dict[Identity, int]
    rollup: dict[Identity, int]

    def has(self, identities: set[Identity]) -> bool:
        """Return whether both tables hold all records."""
        return self.rows.keys() >= identities and self.rollup.keys() >= identities


def _stored(client: Any) -> Stored:
    return Stored(
        _counts(client, "count()", tables.DELAYS),
        _counts(client, "sum(count)", tables.DELAYS),
        _counts(client, "sum(count)", tables.DELAYS_1S),
    )


def _counts(client: Any, value: str, table: str) -> dict[Identity, int]:
    query = f"SELECT nic, window, {value} FROM fabrictime.{table} FINAL GROUP BY nic, window"
    return {(nic, int(window)): int(count) for nic, window, count in client.query(query).result_rows}


def _stored_when_complete(server: Server, identities: set[Identity]) -> Stored:
    client = server.client()
    wait_for(lambda: _stored(client).has(identities), STORE_S, poll_s=0.5)
    stored = _stored(client)
    client.close()
    return stored


def figures_of(
    acknowledged: set[Identity], log: Counter[Identity], stored: Stored, text: str
) -> dict[str, Value]:
    """Return the figures; a record counts as lost if log, paths or rollup lack it. `text` is for the note."""
    lacking = {
        "log": acknowledged - log.keys(),
        "history": acknowledged - stored.rows.keys(),
        "rollup": acknowledged - stored.rollup.keys(),
    }
    doubled = [
        identity
        for identity, rows in stored.rows.items()
        if rows > PATHS or stored.rollup.get(identity, 0) > stored.samples[identity]
    ]
    texts = [f"{len(lost)} not in the {place}" for place, lost in lacking.items() if lost]
    repeated = sum(count - 1 for count in log.values())
    return {
        "kafka_broker_killed_lost_acknowledged": Figure(
            float(len(set().union(*lacking.values()))),
            note=", ".join([*texts, text]),
        ),
        "duplicates_in_history": Figure(float(len(doubled)), note=f"{repeated} in the log"),
    }
