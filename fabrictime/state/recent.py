"""Reads topics from some time back up to their end, and then what comes; without a group.

In: topics, each with how far back, and the log's address. Out: messages, in each partition's order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.partitioner import murmur2

from schemas.topics import Topic

__all__ = ["Recent", "Taken"]

CONNECT_TIMEOUT_S: Final = 5.0
SILENT_S: Final = 10.0


class Taken(NamedTuple):
    """One message of the log."""

    topic: str
    key: str
    value: bytes | None
    append_ns: int


class Recent:
    """Messages of some topics: `back_s` s back each, None: from the beginning. `key`: only the partitions
    that it belongs to."""

    def __init__(self, bootstrap: str, back_s: Mapping[Topic, float | None], key: str | None = None) -> None:
        """Connect. Raises ValueError where the log or a topic is not there."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        self._bootstrap, self._key = bootstrap, key
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": "fabrictime-recent", "enable.auto.commit": False,
                "enable.partition.eof": True, "log_level": 0, "fetch.wait.max.ms": 50,
                "auto.offset.reset": "latest", "fetch.error.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
            }
        )  # fmt: skip
        whole: list[Any] = []
        timed: list[Any] = []
        try:
            known = self._consumer.list_topics(timeout=CONNECT_TIMEOUT_S).topics
            for topic, back in back_s.items():
                if topic.name not in known or not known[topic.name].partitions:
                    raise ValueError(f"topic {topic.name}: does not exist at {bootstrap}")
                count = len(known[topic.name].partitions)
                numbers = range(count) if key is None else [(murmur2(key.encode()) & 0x7FFFFFFF) % count]
                at = OFFSET_BEGINNING if back is None else round((time.time() - back) * 1000)
                places = [TopicPartition(topic.name, number, at) for number in numbers]
                (whole if back is None else timed).extend(places)
            if timed:
                timed = self._consumer.offsets_for_times(timed, timeout=CONNECT_TIMEOUT_S)
            self._consumer.assign(whole + timed)
        except KafkaException as error:
            self.close()
            raise ValueError(f"log {bootstrap}: {error.args[0].str()}; is `fabrictime up` running?") from None
        except ValueError:
            self.close()
            raise
        self._open = {(each.topic, each.partition) for each in whole + timed}

    def close(self) -> None:
        """Leave the log."""
        self._consumer.close()

    def catch_up(self) -> Iterator[Taken]:
        """Give what there is, up to the end. Raises ValueError where the log stops to answer."""
        heard_s = time.monotonic()
        while self._open:
            for message in self._consumer.consume(1000, 0.1):
                heard_s = time.monotonic()
                taken = self._taken(message)
                if taken is not None:
                    yield taken
            if time.monotonic() - heard_s > SILENT_S:
                raise ValueError(f"log {self._bootstrap}: no answer for {SILENT_S:g} s")

    def follow(self, wait_s: float) -> list[Taken]:
        """Return what comes within `wait_s`."""
        found = (self._taken(message) for message in self._consumer.consume(500, wait_s))
        return [taken for taken in found if taken is not None]

    def _taken(self, message: Any) -> Taken | None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._open.discard((message.topic(), message.partition()))
            return None
        key = (message.key() or b"").decode("utf-8", "replace")
        if self._key is not None and key != self._key:
            return None
        return Taken(message.topic(), key, message.value(), message.timestamp()[1] * 1_000_000)
