"""Creates the topics that the settings describe."""

from __future__ import annotations

from fabrictime.runtime.config import Config
from schemas.kafka.admin import create_topics
from schemas.kafka.settings import KafkaSettings


def create(cluster: KafkaSettings, config: Config) -> list[str]:
    """Create the topics of the settings, or check existing ones. Returns a line each. Raises TopicsError."""
    return create_topics(
        cluster,
        partitions=config.log.partitions,
        replication=config.up.topic_replication,
        retention_hours=config.log.retention_hours,
    )
