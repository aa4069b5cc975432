"""Start: positions at which a reader begins."""

from __future__ import annotations

import time

from schemas.kafka.start import BEGINNING, END, Start, back, since, tail


def test_the_beginning_has_neither_time_nor_count() -> None:
    assert Start(None, None) == BEGINNING
    assert tail(0) == END
    assert BEGINNING != END


def test_a_time_counts_back_from_now() -> None:
    before_ns = time.time_ns()
    start = back(2.5)
    after_ns = time.time_ns()
    assert start.since_ns is not None
    assert before_ns <= start.since_ns + 2_500_000_000 <= after_ns
    assert since(7) == Start(since_ns=7)
