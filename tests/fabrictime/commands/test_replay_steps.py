"""Replays by steps: which differences count, and which outputs died with their worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fabrictime.commands.replay_reader import Span
from fabrictime.commands.replay_run import Replay
from fabrictime.commands.replay_steps import UNRECORDED_NS, _compared, _gaps
from schemas import codec
from schemas.topics import CLOCK_FITS
from tests.records import make

S = 1_000_000_000
RUN = Replay("localhost:1", Span(0, 100 * S))


def fits(window: int, lag: int = 0, samples: int = 5) -> tuple[str, str, bytes | None]:
    record = make("ClockFits", shard="fabric", window=window, lag_messages=lag, samples=samples)
    return CLOCK_FITS.name, "fabric", codec.encode(CLOCK_FITS.type, record)


def test_equal_outputs_and_local_facts_are_no_difference() -> None:
    published = [(fits(1), 1 * S), (fits(2, lag=9), 2 * S)]
    assert _compared(RUN, published, [(fits(1), 1 * S), (fits(2, lag=-1), 2 * S)], []) == ([], 0)


def test_an_output_that_differs_is_named_with_its_fields() -> None:
    differences, unrecorded = _compared(RUN, [(fits(1), S)], [(fits(1, samples=6), S)], [])
    assert unrecorded == 0
    assert [dict(each.fields) for each in differences] == [{"samples": (5, 6)}]


def test_an_output_without_steps_counts_only_between_two_owners() -> None:
    published = [(fits(1), 10 * S), (fits(2), 20 * S)]
    differences, unrecorded = _compared(RUN, published, [], [(9 * S, 12 * S)])
    assert (len(differences), unrecorded) == (1, 1)


def runner(partition: int, begin_s: int, last_s: int) -> Any:
    return SimpleNamespace(
        begin_ns=begin_s * S, last_ns=last_s * S, epoch=SimpleNamespace(partition=partition)
    )


def test_a_gap_lasts_until_the_next_owner_begins() -> None:
    runners = [runner(0, 0, 10), runner(0, 17, 30), runner(1, 0, 30)]
    end_ns = 30 * S + UNRECORDED_NS
    assert _gaps(runners) == [(10 * S, 17 * S), (30 * S, end_ns), (30 * S, end_ns)]
