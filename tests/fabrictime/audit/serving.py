"""Lets an agent of an audit answer on a log, in a thread, as its service does in a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from producers.audit.agent import AuditAgent
from producers.inventory.nics import LookupReader
from schemas.kafka.publisher import Publisher
from schemas.kafka.settings import KafkaSettings
from schemas.topics import AUDIT, AUDIT_RUNS


@contextmanager
def serving(cluster: KafkaSettings, agent: AuditAgent) -> Iterator[None]:
    """Answer requests from the moment that the log assigns the topic's partitions."""
    publisher, ended, ready = Publisher(cluster), threading.Event(), threading.Event()
    reader = LookupReader(cluster, {AUDIT_RUNS: agent.on_run}, None, from_end=(AUDIT_RUNS,))

    def serve() -> None:
        while not ended.wait(0.02):
            reader.poll()
            if reader._assigned:
                ready.set()
            for record in agent.results():
                publisher.publish(AUDIT, record["run"], record)
        publisher.flush(10)
        reader.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        ended.set()
        thread.join()
