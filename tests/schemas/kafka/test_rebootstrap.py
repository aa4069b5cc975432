"""Clients of aiokafka follow a log that moves to another address."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from schemas.kafka import BEGINNING
from schemas.kafka.async_reader import AsyncTopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.topics import LINK_HEALTH
from tests.embedded_log import EmbeddedLog

TOPIC = LINK_HEALTH.name


async def test_reader_group_and_producer_follow_a_log_at_another_address(tmp_path: Path) -> None:
    with EmbeddedLog(tmp_path / "log", auto_create_topics=True, partitions=1) as log:
        port = log.port
        cluster = KafkaSettings(bootstrap=f"127.0.0.1:{port},127.0.0.2:{port}")
        options = cluster.aiokafka_options()
        group = {"group_id": "g", "auto_offset_reset": "earliest", "session_timeout_ms": 3000}
        member = AIOKafkaConsumer(TOPIC, **options, **group, heartbeat_interval_ms=200)
        producer = AIOKafkaProducer(**options)
        async with AsyncTopicReader(cluster) as reader, asyncio.timeout(60):
            await producer.start()
            await producer.send_and_wait(TOPIC, b"before", b"k")
            await reader.assign({LINK_HEALTH: BEGINNING})
            await member.start()
            assert [message.value for message in await reader.poll(10)] == [b"before"]
            assert (await member.getone()).value == b"before"
            await member.commit()
            await asyncio.to_thread(log.move, "127.0.0.2")
            await producer.send_and_wait(TOPIC, b"after", b"k")
            values: list[bytes | None] = []
            while not values:
                values += [message.value for message in await reader.poll(1)]
            assert values == [b"after"]
            assert (await member.getone()).value == b"after"
            assert await reader.partition_counts([TOPIC]) == {TOPIC: 1}
        await member.stop()
        await producer.stop()
