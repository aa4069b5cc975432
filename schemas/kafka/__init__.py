"""The Kafka clients of fabrictime: all services and commands read and write the log through this package.

- `settings`: `KafkaSettings`, the address and security of a cluster, as options of either client library.
- `reader`: `TopicReader`, a consumer without a group, on confluent-kafka. It starts at the beginning, the
  end, a time or a number of messages before the end. It reads up to the end, and then new messages.
- `async_reader`: `AsyncTopicReader`, a consumer on aiokafka for code that runs in an event loop.
- `oauth`: tokens of an OAuth server for aiokafka.
- `publisher`: `Publisher`, which encodes and sends records with the contract's partitioner.
- `partitioning`: the partition of a key, as all clients of the contract compute it.

A typical use:

    with TopicReader(settings, {LINK_HEALTH: BEGINNING, FLOWS: back(30.0)}) as reader:
        reader.connect()
        for message in reader.read_to_end():
            record = codec.decode(message.value, LinkHealth, registry)
        while running:
            for message in reader.poll(0.05):
                ...
"""

from __future__ import annotations

from schemas.kafka.partitioning import murmur2, owns, partition_of
from schemas.kafka.settings import KafkaSettings
from schemas.kafka.start import BEGINNING, END, Start, back, committed, since, tail

__all__ = [
    "BEGINNING",
    "END",
    "KafkaSettings",
    "Start",
    "back",
    "committed",
    "murmur2",
    "owns",
    "partition_of",
    "since",
    "tail",
]
