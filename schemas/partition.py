"""Which partition a key goes to, as every client of the contract has it (`partitioner=murmur2_random`).

In: a key, a number of partitions. Out: the partition, for who reads one key's messages alone.
"""

from __future__ import annotations

__all__ = ["murmur2", "partition_of"]


def murmur2(data: bytes) -> int:
    """Return the hash by which Kafka's clients choose partitions, 32 bits (Austin Appleby's MurmurHash2 with
    the seed that they share)."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        value = (value * factor & mask) ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * factor & mask
    value = (value ^ value >> 13) * factor & mask
    return value ^ value >> 15


def partition_of(key: str, partitions: int) -> int:
    """Return the partition that a key goes to."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
