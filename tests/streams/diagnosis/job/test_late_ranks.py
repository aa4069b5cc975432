"""Pauses of single ranks that are farther apart than the short window."""

from __future__ import annotations

import pytest

from schemas.records import Diagnosis, Verdict
from streams.diagnosis.job.late_ranks import LateRanks, Pause
from tests.streams.diagnosis.scenario import MS, Job, S, World, evaluate

WINDOW_NS = 5 * S


def seconds(world: World, count: int) -> list[Diagnosis]:
    """Evaluate the last five seconds after each second, as the service does."""
    answers = []
    for _ in range(count):
        begin_ns = world.job.at_ns
        for batch in world.job.run():
            world.view.take(batch, world.job.at_ns)
        world._report(begin_ns, world.job.at_ns)
        world.view.forget(world.job.at_ns)
        answers.append(evaluate(world.view, world.network, world.job.at_ns - WINDOW_NS, world.job.at_ns))
    return answers


@pytest.mark.parametrize(("pause_ms", "every"), [(1_500, 100), (4_000, 190)])
def test_a_rank_that_pauses_now_and_then_is_a_straggler_without_a_break(pause_ms: int, every: int) -> None:
    world = World(Job(ranks=4, compute=lambda r, a: 60 * MS, queue_pairs=False))
    seconds(world, 8)
    world.job.compute = lambda r, a: (60 + (pause_ms if r == 3 and a % every == 0 else 0)) * MS
    answers = seconds(world, 60)[35:]
    assert {(answer["verdict"], answer["subject"]) for answer in answers} == {(Verdict.STRAGGLER, "h3")}
    last = answers[-1]
    assert last["end_ns"] - last["since_ns"] >= 20 * S, "the alert needs ten seconds of one verdict"
    assert not any(answer["blames_network"] for answer in answers)


def test_the_text_of_a_rank_that_pauses_has_its_length_and_frequency() -> None:
    world = World(Job(ranks=4, compute=lambda r, a: 60 * MS, queue_pairs=False))
    seconds(world, 8)
    world.job.compute = lambda r, a: (60 + (1_500 if r == 3 and a % 100 == 0 else 0)) * MS
    texts = [answer["text"] for answer in seconds(world, 30)]
    assert any("pauses: up to 750 ms" in text and "times in" in text for text in texts), texts[-1]


def pauses(*at_s: float, host: str = "h3", late_ms: int = 1_500) -> list[Pause]:
    return [Pause(1, int(10 * at), host, 3, int(at * S), late_ms * MS) for at in at_s]


def test_a_single_pause_is_no_habit() -> None:
    late = LateRanks()
    late.note(pauses(3.0), 0, 5 * S)
    assert late.worst(5 * S) is None


def test_a_pause_seen_in_two_intervals_counts_once() -> None:
    late = LateRanks()
    for end_s in (5, 6, 7):
        late.note(pauses(3.0, 4.5), 0, end_s * S)
    worst = late.worst(7 * S)
    assert worst is not None
    assert (worst.count, worst.lost) == (2, pytest.approx(3 / 7))


def test_a_rank_with_an_overdue_pause_is_cured() -> None:
    late = LateRanks()
    late.note(pauses(3.0, 10.5, 18.0), 0, 20 * S)
    assert late.worst(28 * S) is not None
    assert late.worst(30 * S) is None


def test_pauses_of_the_last_minute_count() -> None:
    late = LateRanks()
    late.note(pauses(1.0, 30.0), 0, 31 * S)
    late.note([], 60 * S, 65 * S)
    assert late.worst(65 * S) is None


def test_pauses_of_all_hosts_are_no_single_host_s_fault() -> None:
    late = LateRanks()
    late.note([*pauses(1.0, 2.0, 3.0), *pauses(1.5, 2.5, 3.5, host="h1")], 0, 5 * S)
    worst = late.worst(5 * S)
    assert worst is not None
    assert worst.part == pytest.approx(0.5)
