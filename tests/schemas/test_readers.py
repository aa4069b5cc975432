"""Native readers give exactly what the general way gives, or leave the bytes to it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from native.core import avro
from schemas import codec, readers
from schemas.codec import BadRecord
from schemas.topics import TOPICS
from tests.examples import examples

RECORDS = sorted({topic.record for topic in TOPICS.values()})


@pytest.fixture(autouse=True)
def maker_restored() -> Iterator[None]:
    before = codec._reader_maker
    yield
    codec.use_readers(before)


def outcome(message: bytes, name: str) -> str:
    """Return the decoded record, or the refusal."""
    try:
        return repr(codec.decode(message, name))
    except BadRecord as error:
        return f"{error.reason}: {error}"


def same_outcome(message: bytes, name: str) -> str:
    """Assert that both ways give the same record or refusal; return it."""
    codec.use_readers(None)
    general = outcome(message, name)
    codec.use_readers(avro)
    assert outcome(message, name) == general
    return general


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_of_ours_has_a_reader_that_gives_the_same(name, any_value):
    codec.use_readers(avro)

    @given(any_value(codec.raw_schema(name)))
    @settings(
        max_examples=examples(20),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    def is_same(record):
        message = codec.encode(name, record)
        assert same_outcome(message, name) == repr(codec.decode(message, name))
        value, end = codec._current(name).read(message, codec.HEADER_BYTES)
        assert (repr(value), end) == (repr(codec.decode(message, name)), len(message))

    is_same()


@pytest.mark.parametrize("name", RECORDS)
def test_mutated_bytes_give_the_same_record_or_refusal(name, honest):
    chance = random.Random(name)
    message = codec.encode(name, honest(name))
    for _ in range(examples(200)):
        mutated = bytearray(message)
        for _ in range(chance.randint(1, 3)):
            mutated[chance.randrange(codec.HEADER_BYTES, len(mutated))] = chance.choice(
                [0, 1, 2, 127, 128, 255, chance.randrange(256)]
            )
        same_outcome(bytes(mutated[: chance.choice([None, len(mutated) - 1])]), name)


@given(st.binary(max_size=100), st.sampled_from(RECORDS))
@settings(max_examples=examples(300))
def test_random_bytes_give_the_same_record_or_refusal(data, name):
    same_outcome(codec.header(name) + data, name)


@pytest.mark.parametrize("name", RECORDS)
def test_the_first_fields_are_read_alone(name, honest):
    message = codec.encode(name, honest(name))
    last = codec.raw_schema(name)["fields"][1]["name"]
    codec.use_readers(None)
    general = codec.decode_head_at(message, codec.HEADER_BYTES, name, last)
    codec.use_readers(avro)
    assert codec.decode_head_at(message, codec.HEADER_BYTES, name, last) == general


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "map", "values": "long"},
        {"type": "fixed", "name": "Four", "size": 4},
        ["null", "long", "string"],
        ["long", "string"],
        {"type": "array", "items": {"type": "int", "symbols": ["A", "B"]}},
        "Outer",
    ],
)
def test_other_types_have_no_reader(kind):
    schema = {"type": "record", "name": "Outer", "fields": [{"name": "value", "type": kind}]}
    assert readers.reader_of(schema, avro) is None


def test_a_limit_that_is_no_double_has_no_reader():
    field = {"name": "value", "type": "double", "max": 2**53 + 1}
    assert readers.reader_of({"type": "record", "name": "Outer", "fields": [field]}, avro) is None
