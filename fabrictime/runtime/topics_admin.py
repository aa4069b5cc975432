"""Creates the topics that the settings describe, and publishes the schemas of this version."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from fabrictime.runtime.config import Config
from schemas import codec
from schemas.kafka.admin import create_topics
from schemas.kafka.publisher import Publisher
from schemas.kafka.reader import TopicMissing
from schemas.kafka.schema_log import read_schemas
from schemas.kafka.settings import KafkaSettings
from schemas.topics import SCHEMAS

FLUSH_S: Final = 10.0
APPEAR_S: Final = 10.0
"""Time within which a broker knows a topic that was just created."""
RETRY_S: Final = 0.1


def create(cluster: KafkaSettings, config: Config) -> list[str]:
    """Create the topics that the settings describe, or check existing ones; publish missing schemas.

    Returns one line per topic. Raises TopicsError, or another ValueError if the log does not answer.
    """
    replication = config.up.topic_replication
    lines = create_topics(
        cluster,
        partitions=config.log.partitions,
        replication=replication,
        retention_hours=config.log.retention_hours,
    )
    return [*lines, publish_schemas(cluster, replication)]


def publish_schemas(cluster: KafkaSettings | str, replication: int = 1) -> str:
    """Publish the schemas of this version that `fabric.schemas` lacks, and return a line of text.

    Raises TopicsError, LogUnavailable or PublishFailed.
    """
    create_topics(cluster, replication=replication, topics={SCHEMAS.name: SCHEMAS})
    present = _read_schemas(cluster)
    missing = {key: schema for key, schema in codec.released_schemas().items() if key not in present}
    publisher = Publisher(cluster)
    for fingerprint, schema in missing.items():
        publisher.send(SCHEMAS.name, fingerprint.hex(), json.dumps(schema, separators=(",", ":")).encode())
    publisher.flush(FLUSH_S)
    return f"{SCHEMAS.name}: is there, {len(missing)} schemas published"


def _read_schemas(cluster: KafkaSettings | str) -> Mapping[bytes, Mapping[str, Any]]:
    """Return the schemas on the log; retry, as a broker may not know the new topic at once."""
    end_s = time.monotonic() + APPEAR_S
    while True:
        try:
            return read_schemas(cluster)
        except TopicMissing:
            if time.monotonic() >= end_s:
                raise
        time.sleep(RETRY_S)
