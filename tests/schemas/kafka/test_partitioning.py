"""Partitioning: keys go to the partitions that other Kafka clients compute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kafka.partitioning import murmur2, owns, partition_of


@pytest.mark.parametrize(
    ("data", "signed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_murmur2_equals_the_vectors_of_the_java_client(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


@given(st.binary(max_size=40))
def test_murmur2_equals_that_of_aiokafka(data: bytes) -> None:
    from aiokafka.partitioner import murmur2 as other

    assert murmur2(data) == other(data) & 0xFFFFFFFF


@given(st.text(max_size=20), st.integers(1, 64))
def test_each_key_belongs_to_exactly_one_partition(key: str, partitions: int) -> None:
    number = partition_of(key, partitions)
    assert [n for n in range(partitions) if owns(key, partitions, {n})] == [number]
    assert partition_of(key.encode(), partitions) == number
