"""Published rows: a record is published when its content changes, and again now and then."""

from __future__ import annotations

import random
from typing import Any

from producers.trace.published_rows import (
    MIN_RECORD_GAP_S,
    REPUBLISH_S,
    SILENT_REPUBLISH_S,
    PublishedRows,
)
from tests.records import make_part


def row(path: int, since_ns: int = 1) -> Any:
    return make_part("FlowRoutes", "FlowRoute", path=path, since_ns=since_ns)


def test_only_another_content_is_published() -> None:
    published, rng = PublishedRows[Any](dirty=True, moved=True), random.Random(1)
    assert published.replace([row(1)], 10.0, rng)
    assert (published.dirty, published.moved, published.next_s) == (False, False, 10.0 + MIN_RECORD_GAP_S)
    assert not published.replace([row(1, since_ns=9)], 20.0, rng), "the time of a change is no content"
    assert published.replace([row(1), row(2)], 30.0, rng)
    assert not published.replace([], 40.0, rng)


def test_an_unchanged_record_is_old_after_some_time_that_differs_between_pairs() -> None:
    assert not PublishedRows[Any]().is_old(1e9), "nothing was published"
    rng, ends = random.Random(2), set()
    for _ in range(20):
        published = PublishedRows[Any]()
        published.replace([row(1)], 0.0, rng)
        assert not published.is_old(REPUBLISH_S)
        assert published.is_old(1.25 * REPUBLISH_S + 1)
        ends.add(published.jitter_s)
    assert len(ends) == 20


def test_the_record_of_a_pair_that_loses_every_probe_is_soon_old() -> None:
    published = PublishedRows[Any]()
    assert not published.is_old(1e9, silent=True), "nothing was published"
    published.replace([row(1)], 0.0, random.Random(3))
    assert not published.is_old(SILENT_REPUBLISH_S, silent=True)
    assert published.is_old(SILENT_REPUBLISH_S + 1, silent=True)
    assert not published.is_old(SILENT_REPUBLISH_S + 1)
