"""Answers over time: what replaces a verdict, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.records import ContentionKind, LinkState, Verdict
from streams.diagnosis.answers import Answers
from streams.diagnosis.candidate import Candidate
from tests.streams.diagnosis.scenario import MS, Job, S, World, route
from tests.streams.diagnosis.verdicts.test_progress import running, stop

CROSSED = route(1, 2, 1)[1]


def candidate(verdict: Verdict, subject: str = "", *, decisive: bool = False) -> Candidate:
    return Candidate(verdict, 0.3, subject, f"{verdict} {subject}", "", decisive=decisive)


def answered(
    *offered: Candidate, stopped: tuple[int, int] | None = None, is_clear: bool = False
) -> list[Verdict]:
    """Return the answers if these candidates are the best ones, second by second."""
    answers = Answers()
    return [
        answers.settle(best, [best], stopped, at * S, is_clear=is_clear).verdict
        for at, best in enumerate(offered)
    ]


def settled(answers: Answers, best: Candidate, *others: Candidate, at_s: int = 0) -> Candidate:
    """Return the answer at a time if a candidate is the best one."""
    return answers.settle(best, [best, *others], None, at_s * S, is_clear=False)


def lasting(answers: Answers, *verdicts: Candidate, at_s: int, is_clear: bool = False) -> Candidate | None:
    """Return the verdict at a time that is no matter of a moment."""
    return answers.lasting([*verdicts], at_s * S, is_clear=is_clear)


HEALTHY = candidate(Verdict.HEALTHY)
UNKNOWN = candidate(Verdict.UNKNOWN)
STRAGGLER = candidate(Verdict.STRAGGLER, "h3")
GREY = candidate(Verdict.GREY_LINK, "a<>b")


def test_a_cause_is_named_at_once() -> None:
    assert answered(HEALTHY, STRAGGLER) == [Verdict.HEALTHY, Verdict.STRAGGLER]
    assert answered(UNKNOWN, STRAGGLER) == [Verdict.UNKNOWN, Verdict.STRAGGLER]


def test_evidence_that_comes_and_goes_does_not_change_the_answer() -> None:
    offered = [STRAGGLER, HEALTHY, STRAGGLER, UNKNOWN, HEALTHY, GREY, STRAGGLER, HEALTHY, GREY, STRAGGLER]
    assert set(answered(*offered)) == {Verdict.STRAGGLER}


def test_another_answer_that_lasts_replaces_a_cause() -> None:
    assert answered(STRAGGLER, *[GREY] * 6)[-2:] == [Verdict.STRAGGLER, Verdict.GREY_LINK]
    assert answered(STRAGGLER, *[HEALTHY] * 4)[-2:] == [Verdict.STRAGGLER, Verdict.HEALTHY]


def test_an_answer_without_evidence_is_replaced_although_the_best_cause_alternates() -> None:
    """Two links of one path can be equally likely."""
    contended = [replace(candidate(Verdict.CONTENTION, name), confidence=0.9) for name in ("a>b", "b>c")]
    assert answered(STRAGGLER, *contended * 3)[-2:] == [Verdict.STRAGGLER, Verdict.CONTENTION]
    answers = Answers()
    settled(answers, STRAGGLER)
    for at_s in range(1, 9):
        answer = settled(answers, contended[at_s % 2], STRAGGLER, at_s=at_s)
        assert answer == STRAGGLER, "it is still possible"


def test_an_answer_without_evidence_is_over_although_the_job_is_slow_now_and_then() -> None:
    answers = answered(STRAGGLER, *[UNKNOWN, HEALTHY] * 6)
    assert answers.index(Verdict.UNKNOWN) == 11


def test_a_rival_of_two_moments_replaces_no_queue() -> None:
    """Between the moments another link of the same queue is the best."""
    named, other = queued(Verdict.CONTENTION, "a>b", 0.75), queued(Verdict.CONTENTION, "b>c", 0.76)
    answers = Answers()
    settled(answers, named)
    offered = [STRAGGLER, *[other] * 9, STRAGGLER]
    answered_links = [settled(answers, best, named, at_s=at_s).subject for at_s, best in enumerate(offered)]
    assert set(answered_links) == {"a>b"}


def test_a_clock_that_steps_back_starts_the_waits_again() -> None:
    answers = Answers()
    settled(answers, STRAGGLER, at_s=1000)
    later = [settled(answers, HEALTHY, at_s=at_s).verdict for at_s in (1001, 901, 903, 904)]
    assert later == [Verdict.STRAGGLER] * 3 + [Verdict.HEALTHY]
    slow = passing(queued(Verdict.SLOW_FLOW, "h1/n0 to h2/n0"))
    named = [lasting(answers, slow, at_s=at_s) for at_s in (1000, 1004, 900, 904, 905)]
    assert named == [None] * 4 + [slow]


def test_a_healthy_job_that_is_a_little_slow_for_a_moment_is_healthy() -> None:
    answers = answered(HEALTHY, *[UNKNOWN] * 12)
    assert answers.index(Verdict.UNKNOWN) == 11
    assert answered(HEALTHY, UNKNOWN, is_clear=True)[-1] == Verdict.UNKNOWN


def test_a_job_that_is_still_slow_keeps_its_cause_for_longer() -> None:
    answers = answered(STRAGGLER, *[UNKNOWN] * 12)
    assert answers.index(Verdict.UNKNOWN) == 11


def test_a_cause_that_stops_the_job_is_named_at_once() -> None:
    dead = candidate(Verdict.DEAD_RANK, "h5", decisive=True)
    assert answered(STRAGGLER, dead)[-1] == Verdict.DEAD_RANK


def test_the_cause_of_a_slow_flow_is_named_at_once() -> None:
    pair = {("h1/n0", "h2/n0")}
    slow = replace(candidate(Verdict.SLOW_FLOW, "h1/n0 to h2/n0"), pairs=pair)
    contended = replace(candidate(Verdict.CONTENTION, "a>b"), pairs=pair)
    assert answered(slow, contended)[-1] == Verdict.CONTENTION


def queued(verdict: Verdict, link: str, confidence: float = 0.9, loss: float = 0.3) -> Candidate:
    pairs = {("h1/n0", "h2/n0")}
    return replace(candidate(verdict, link), pairs=pairs, confidence=confidence, loss_share=loss)


@pytest.mark.parametrize("verdict", [Verdict.CONTENTION, Verdict.FEW_QUEUE_PAIRS])
@pytest.mark.parametrize(
    ("lead", "loss", "link"), [(0.05, 0.3, "a>b"), (0.2, 0.3, "b>c"), (0.05, 0.0, "b>c")]
)
def test_a_queue_keeps_the_link_that_was_named(verdict: Verdict, lead: float, loss: float, link: str) -> None:
    """Two links of one path show the same queue in turn; a lead, or no cost at the first, replaces it."""
    answers = Answers()
    named, other = queued(verdict, "a>b", 0.75, loss), queued(verdict, "b>c", 0.75 + lead)
    settled(answers, named)
    later = [settled(answers, other, named, at_s=at_s) for at_s in range(1, 30)]
    assert later[-1].subject == link


@pytest.mark.parametrize(("job", "link"), [("serve", "a>b"), ("other", "b>c")])
def test_a_job_that_two_pairs_meet_at_two_links_is_one_cause(job: str, link: str) -> None:
    named = replace(queued(Verdict.CONTENTION, "a>b"), jobs=["serve"])
    other = replace(queued(Verdict.CONTENTION, "b>c"), jobs=[job], pairs={("h3/n0", "h4/n0")})
    answers = Answers()
    settled(answers, named)
    later = [settled(answers, other, named, at_s=at_s) for at_s in range(1, 30)]
    assert later[-1].subject == link


def passing(verdict: Candidate) -> Candidate:
    return replace(verdict, may_pass=True)


def test_a_cause_of_a_moment_is_not_named() -> None:
    answers, slow = Answers(), passing(queued(Verdict.SLOW_FLOW, "h1/n0 to h2/n0"))
    settled(answers, HEALTHY)
    assert [lasting(answers, slow, at_s=at_s) for at_s in range(1, 8)] == [None] * 5 + [slow] * 2
    assert lasting(answers, STRAGGLER, at_s=8) is STRAGGLER, "a cause of its own is named at once"
    assert lasting(answers, slow, at_s=9) is None, "it was over meanwhile"
    assert lasting(answers, slow, STRAGGLER, at_s=10) is STRAGGLER
    assert lasting(answers, slow, at_s=11, is_clear=True) is slow, "the job is clearly slow"
    assert lasting(answers, at_s=12) is None
    assert lasting(answers, slow, at_s=300) is None, "it was over meanwhile"


def test_causes_of_a_moment_each_are_not_named() -> None:
    answers, slow = Answers(), passing(queued(Verdict.SLOW_FLOW, ""))
    settled(answers, HEALTHY)
    flows = [replace(slow, pairs={(f"h{at_s}/n0", "h9/n0")}) for at_s in range(1, 30)]
    assert not any(lasting(answers, flow, at_s=at_s) for at_s, flow in enumerate(flows))


def test_a_straggler_of_messages_must_last() -> None:
    answers, late = Answers(), passing(STRAGGLER)
    settled(answers, HEALTHY)
    assert [lasting(answers, late, at_s=at_s) for at_s in range(1, 7)] == [None] * 5 + [late]
    assert lasting(answers, replace(late, subject="h4"), at_s=7) is None


def test_a_cause_lasts_also_while_another_one_leads_for_a_moment() -> None:
    answers, late = Answers(), passing(STRAGGLER)
    slow = passing(queued(Verdict.SLOW_FLOW, "h1/n0 to h2/n0"))
    settled(answers, HEALTHY)
    offered = [[late], [slow, late], *[[late, slow], [slow, late]] * 2]
    assert [lasting(answers, *two, at_s=at_s) for at_s, two in enumerate(offered)][-1] is late


def test_a_cause_that_follows_another_one_settles() -> None:
    answers = Answers()
    settled(answers, STRAGGLER)
    slow = passing(candidate(Verdict.SLOW_FLOW, "x"))
    assert lasting(answers, slow, at_s=1) is slow
    assert settled(answers, slow, at_s=1) is STRAGGLER


def test_a_cause_is_kept_while_the_operation_that_it_stopped_still_runs() -> None:
    answers = Answers()
    dead = candidate(Verdict.DEAD_LINK, "a<>b", decisive=True)
    hang = candidate(Verdict.HANG, "h5", decisive=True)
    answers.settle(dead, [dead], (1, 7), 0, is_clear=True)
    later = [answers.settle(hang, [hang], (1, 7), at * S, is_clear=True) for at in range(1, 40)]
    assert {answer.verdict for answer in later} == {Verdict.DEAD_LINK}
    assert "the operation that it stopped still runs" in later[-1].text
    assert later[-1].text.count("still runs") == 1
    other = answers.settle(hang, [hang], (1, 8), 41 * S, is_clear=True)
    assert other.verdict == Verdict.HANG, "another operation"


def test_a_rank_that_dies_in_a_stopped_operation_is_named() -> None:
    dead = candidate(Verdict.DEAD_LINK, "a<>b", decisive=True)
    killed = candidate(Verdict.DEAD_RANK, "h5", decisive=True)
    assert answered(dead, killed, stopped=(1, 7))[-1] == Verdict.DEAD_RANK


# ------------------------------------------------------------------------------------------- whole jobs


def test_a_dead_link_that_healed_is_named_while_its_victim_backs_off() -> None:
    world = World(Job())
    world.learn()
    world.health(CROSSED, LinkState.DOWN, world.job.at_ns)
    begin_ns = world.job.at_ns
    assert stop(world, set())["verdict"] == Verdict.DEAD_LINK
    world.health(CROSSED, LinkState.UP, world.job.at_ns, seq=2)
    end_ns = world.job.at_ns + 7 * S
    batches = [
        world.job.batch(rank, [running(world, rank, begin_ns + rank)], world.job.at_ns, end_ns)
        for rank in range(world.job.ranks)
    ]
    found = world.diagnose(batches, end_ns - S, end_ns)
    assert (found["verdict"], found["blames_network"]) == (Verdict.DEAD_LINK, True)
    assert "the operation that it stopped still runs" in found["text"]


def test_a_job_that_stood_still_does_not_compute_longer() -> None:
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    stop(world, set())
    end_ns = begin_ns + 20 * S
    ended = [running(world, rank, begin_ns + rank, end_ns=end_ns) for rank in range(8)]
    world.job.at_ns, world.job.seq = end_ns, world.job.seq + 1
    batches = [world.job.batch(rank, [ended[rank]], begin_ns + 11 * S, end_ns) for rank in range(8)]
    begin_ns = world.job.at_ns - 4 * S
    found = world.diagnose([*batches, *world.job.run(S)], begin_ns, world.job.at_ns)
    assert found["verdict"] != Verdict.HEALTHY, found["text"]


def test_a_large_ratio_is_not_healthy() -> None:
    world = World(Job())
    world.learn()
    world.job.compute = lambda rank, at: 200.0 * MS
    found = world.step(3 * S)
    assert found["verdict"] == Verdict.UNKNOWN
    assert "times the baseline" in found["text"]


def test_more_bytes_are_not_called_computing() -> None:
    world = World(Job(queue_pairs=False))
    world.learn(8)
    world.job.bucket_bytes *= 3
    world.job.network = lambda rank, at: 12.0 * MS
    found = [world.step() for _ in range(5)]
    assert not any(answer["blames_network"] for answer in found)
    assert {answer["verdict"] for answer in found} == {Verdict.HEALTHY}
    assert not any("compute longer" in answer["text"] for answer in found)
    assert any("3.0 times the bytes" in answer["text"] for answer in found)


class Uneven(Job):
    """A job whose ranks may send different amounts: once it has grown, rank 2 sends five times as much."""

    has_grown = False

    def _operation(self, rank: int, *times: Any) -> dict[str, Any]:
        row = super()._operation(rank, *times) | {"function": "ALL_TO_ALL"}
        return row | {"bytes": 5 * row["bytes"]} if self.has_grown and rank == 2 else row


def test_a_collective_is_as_slow_as_its_largest_sender_makes_it() -> None:
    """The mean grows 1.5 times only, and the job takes 2.5 times as long."""
    job = Uneven(queue_pairs=False)
    world = World(job)
    world.learn(8)
    job.has_grown = True
    job.network = lambda rank, at: 40.0 * MS
    answers = [world.step() for _ in range(5)]
    assert {answer["verdict"] for answer in answers} == {Verdict.HEALTHY}
    assert any("1.5 times the bytes of the baseline, at one rank 5.0 times" in one["text"] for one in answers)


def test_a_job_as_fast_as_its_baseline_has_no_cause() -> None:
    world = World(Job())
    world.learn()
    world.health(CROSSED, LinkState.GREY, world.job.at_ns, loss_rate=0.05)
    world.job.network = lambda rank, at: 4.1 * MS
    assert {world.step()["verdict"] for _ in range(5)} == {Verdict.HEALTHY}


def test_a_short_collision_is_a_possible_cause_that_names_the_other_job() -> None:
    world = World(Job(queue_pairs=False, compute=lambda rank, at: 4.0 * MS))
    world.learn()
    world.job.network = lambda rank, at: 12.0 * MS
    opened_ns = world.job.at_ns + 100 * MS
    closed = {"closed_ns": opened_ns + 60 * MS, "state": "CLOSED"}
    world.contend(CROSSED, opened_ns, own=1, kind=ContentionKind.COLLISION, **closed)
    found = world.step()
    named = [other for other in found["alternatives"] if other["verdict"] == Verdict.CONTENTION]
    assert named, found["text"]
    assert "job other" in named[0]["text"]


@pytest.mark.parametrize(
    ("is_clear", "is_seen", "kept_s"), [(True, True, 11), (True, False, 4), (False, True, 4)]
)
def test_a_clearly_slow_job_keeps_a_cause_that_is_still_seen(
    is_clear: bool, is_seen: bool, kept_s: int
) -> None:
    answers = Answers()
    ranked = [HEALTHY, GREY] if is_seen else [HEALTHY]
    answers.settle(GREY, [GREY], None, 0, is_clear=is_clear)
    verdicts = [
        answers.settle(HEALTHY, ranked, None, at_s * S, is_clear=is_clear).verdict for at_s in range(1, 20)
    ]
    assert verdicts.index(Verdict.HEALTHY) + 1 == kept_s
