"""Computes the partition of a key, as all clients of the contract do (`partitioner=murmur2_random`)."""

from __future__ import annotations

from collections.abc import Container

_MASK = 0xFFFFFFFF
_FACTOR = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 (Austin Appleby) of `data`, with the seed of Kafka's clients."""
    value = (_SEED ^ len(data)) & _MASK
    aligned = len(data) // 4 * 4
    for at in range(0, aligned, 4):
        block = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _MASK
        block = (block ^ block >> 24) * _FACTOR & _MASK
        value = (value * _FACTOR & _MASK) ^ block
    if aligned < len(data):
        value = (value ^ int.from_bytes(data[aligned:], "little")) * _FACTOR & _MASK
    value = (value ^ value >> 13) * _FACTOR & _MASK
    return value ^ value >> 15


def partition_of(key: str | bytes, partitions: int) -> int:
    """Return the number of the partition of a key in a topic that has `partitions` partitions."""
    return (murmur2(key.encode() if isinstance(key, str) else key) & 0x7FFFFFFF) % partitions


def owns(key: str | bytes, partitions: int, numbers: Container[int]) -> bool:
    """Return whether a key's partition, in a topic of `partitions` partitions, is one of `numbers`."""
    return partition_of(key, partitions) in numbers
