"""Explains operations that do not end while no rank is known to be dead: STALLED and HANG.

A checkpoint, an evaluation or a compilation looks like a hang to the other ranks: they wait. So a hang needs
evidence, or a time beyond the pauses of programs. STALLED names the rank and states the evidence that would
decide between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schemas.records import DiagnosisEvidence, RankCondition, Verdict
from schemas.topics import COLLECTIVES
from schemas.units import delay_text
from streams.diagnosis.base import Candidate, Case, observation
from streams.diagnosis.case import Stuck
from streams.diagnosis.job.ranks import Rank
from streams.diagnosis.record import activity_text, operation_text, pause_text, ranks_text
from streams.diagnosis.symptoms import Symptom, Symptoms
from streams.diagnosis.verdicts.progress import (
    reported_states,
    state_evidence,
    stop,
    stuck_evidence,
)
from streams.diagnosis.verdicts.surroundings import surroundings
from streams.runtime.units import NS_PER_S

SILENT_NS: Final = 12 * NS_PER_S
"""Time without a record from which on a rank reports nothing: idle processes report each 10 s."""


def hang(case: Case) -> Iterator[Candidate]:
    """Explain an operation that does not end by the rank that did not begin it."""
    stuck = case.stuck
    if stuck is None or not stuck.hangs or (stuck.is_circle and stuck.is_collective):
        return
    unresponsive = dict(reported_states(case, (RankCondition.UNRESPONSIVE, RankCondition.MISSING)))
    late = _late(stuck) or [rank for rank in unresponsive if rank not in stuck.began]
    evidence = _evidence(case, stuck, late, unresponsive)
    if late:
        yield _late_hang(case, stuck, late, evidence)
    elif stuck.absent:
        yield _unknown_rank(case, stuck, evidence)
    elif not stuck.missing:
        text = f"{operation_text(case, stuck)}: all ranks began it, and its data does not arrive"
        candidate = stop(Verdict.HANG, [], text, "check the links and NICs of its ranks", evidence)
        candidate.ranks = [rank.number for rank in stuck.began[:64]]
        yield candidate


def _late(stuck: Stuck) -> list[Rank]:
    return [rank for rank in stuck.missing if not rank.ended]


def _evidence(
    case: Case, stuck: Stuck, late: list[Rank], unresponsive: dict[Rank, str]
) -> list[DiagnosisEvidence]:
    evidence = [stuck_evidence(case, stuck), *state_evidence(unresponsive), *_activities(case, late)]
    return evidence + surroundings(case, [rank.host for rank in late])


def _late_hang(case: Case, stuck: Stuck, late: list[Rank], evidence: list[DiagnosisEvidence]) -> Candidate:
    remedy = f"get a stack trace of {ranks_text(late[:1])}"
    text = _late_text(case, stuck, late)
    return stop(Verdict.HANG, late, text, remedy, evidence, _doubts(case, stuck, late))


def _doubts(case: Case, stuck: Stuck, late: list[Rank]) -> Symptoms:
    silent = any(_is_silent(case, rank) for rank in late)
    return {Symptom.CIRCLE: stuck.is_circle, Symptom.SILENT: silent}


def _unknown_rank(case: Case, stuck: Stuck, evidence: list[DiagnosisEvidence]) -> Candidate:
    more = f", nor {len(stuck.absent) - 1} more" if len(stuck.absent) > 1 else ""
    text = f"{operation_text(case, stuck)}: rank {stuck.absent[0]} is not known{more}"
    candidate = stop(Verdict.HANG, [], text, "start the profiler in all ranks", evidence)
    candidate.ranks = stuck.absent[:64]
    return candidate


def stalled(case: Case) -> Iterator[Candidate]:
    """Explain an operation that has not ended for longer than usual by the ranks for which it waits."""
    candidate = stall_candidate(case)
    if candidate is not None and candidate.decisive:
        yield candidate


def stall_candidate(case: Case) -> Candidate | None:
    """Return STALLED with the ranks for which the others wait; None if nothing stalls.

    It is decisive if some ranks do not wait: neither the network nor a collision causes this. Ranks that
    wait for each other must do so for longer, since lost messages look alike.
    """
    stuck = case.stuck
    if stuck is None or not stuck.stalls:
        return None
    late = _late(stuck)
    text, remedy = _late_text(case, stuck, late), _decided_by(case, stuck, late)
    evidence = _evidence(case, stuck, late, {})
    candidate = stop(Verdict.STALLED, late, text, remedy, evidence, _doubts(case, stuck, late))
    if not late:
        candidate.ranks = stuck.absent[:64]
    if not late or stuck.is_circle:
        candidate.loss_share = case.loss_share
        settled_ns = case.rules.hang_s / 2 * NS_PER_S
        candidate.decisive = bool(late) and case.end_ns - stuck.since_ns >= settled_ns
    return candidate


def _late_text(case: Case, stuck: Stuck, late: list[Rank]) -> str:
    """Return a text about an operation, the ranks that hold it up, and the activity of their processes."""
    text = operation_text(case, stuck)
    if stuck.usual_ns and stuck.is_collective:
        text += f", {delay_text(stuck.usual_ns)} usually"
    if not late:
        return f"{text}: its ranks wait for data, or for a rank that is not known"
    if stuck.is_circle:
        sides = filter(None, (late, [rank for rank in stuck.began if rank not in late]))
        return f"{text}: {' and '.join(map(ranks_text, sides))} wait for each other"
    is_inside = any(rank in stuck.began for rank in late)
    text += f": {ranks_text(late)} {'is in it' if is_inside else 'did not begin it'}"
    return "; ".join(filter(None, [text, *_activity_texts(case, late)]))


def _activity_texts(case: Case, late: list[Rank]) -> list[str]:
    silent = [rank for rank in late if _is_silent(case, rank)]
    if silent:
        return [f"{ranks_text(silent)} reports nothing"]
    return list(dict.fromkeys(activity_text(rank) for rank in late[:2]))


def _activities(case: Case, ranks: list[Rank]) -> list[DiagnosisEvidence]:
    return [
        observation(
            COLLECTIVES.name, rank.name, "cpu_share", rank.activity.cpu_share, None, activity_text(rank)
        )
        for rank in ranks[:8]
        if rank.activity is not None
    ]


def _is_silent(case: Case, rank: Rank) -> bool:
    return rank.seen_ns < case.end_ns - SILENT_NS


def _decided_by(case: Case, stuck: Stuck, late: list[Rank]) -> str:
    """Return, as a remedy, the evidence that would distinguish a pause from a hang."""
    ends = pause_text(case, "is stopped")
    if late:
        name = ranks_text(late[:1])
        return f"a stack trace of {name} tells a checkpoint or compilation from a hang; {ends}"
    if stuck.absent:
        return f"the profiler in all ranks would name the missing one; {ends}"
    return f"health of the links and NICs of its ranks, or stack traces, decide; {ends}"
