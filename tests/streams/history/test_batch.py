"""Deduplication tokens of batches."""

from schemas import topics
from streams.history import batch

DELAYS = topics.DELAYS.name
APPEND_NS = 1_800_000_000_000_000_000


def test_a_token_identifies_exactly_its_messages():
    places = [batch.Place(0, offset, APPEND_NS) for offset in range(5)]
    token = batch.token("t", places)
    assert token == batch.token("t", places[::-1])
    assert token != batch.token("t", places[1:])
    assert token != batch.token("t", [batch.Place(0, offset, APPEND_NS + 1) for offset in range(5)])
