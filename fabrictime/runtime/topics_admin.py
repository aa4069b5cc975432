"""Creates the topics of the settings."""

from __future__ import annotations

from fabrictime.runtime.config import Config
from schemas.kafka.admin import create_topics


def create(config: Config) -> list[str]:
    """Create or check the topics of the settings. Returns one line per topic. Raises TopicsError."""
    return create_topics(
        config.kafka,
        partitions=config.log.partitions,
        replication=config.up.topic_replication,
        retention_hours=config.log.retention_hours,
    )
