"""Explains jobs without progress for a certain reason: DEAD_RANK, PROGRAM_MISMATCH."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from schemas.records import CollectiveFunction as _F
from schemas.records import DiagnosisEvidence, RankCondition, Verdict
from schemas.topics import COLLECTIVES
from schemas.units import delay_text
from streams.diagnosis.base import Candidate, Case, observation
from streams.diagnosis.case import Stuck
from streams.diagnosis.job.arrivals import Bools
from streams.diagnosis.job.columns import FUNCTIONS, Op
from streams.diagnosis.job.ranks import Rank
from streams.diagnosis.record import operation_text, ranks_text
from streams.diagnosis.symptoms import Symptom, Symptoms
from streams.diagnosis.verdicts.surroundings import health_evidence, hosts_down
from streams.runtime.units import NS_PER_MS

EQUAL_BYTES: Final = [
    FUNCTIONS.index(function) for function in (_F.ALL_REDUCE, _F.BROADCAST, _F.REDUCE, _F.GATHER, _F.SCATTER)
]
"""Indices of the functions whose messages have the same size at all ranks."""
TOGETHER_NS: Final = 20 * NS_PER_MS
"""Time within which deaths count as one: processes of one host die together."""


def stuck_evidence(case: Case, stuck: Stuck) -> DiagnosisEvidence:
    """Return, as evidence, the time for which an operation has run."""
    age_s = (case.end_ns - stuck.since_ns) / 1e9
    text, limit_s = f"{operation_text(case, stuck)}; {len(stuck.began)} ranks began it", case.rules.hang_s
    return observation(COLLECTIVES.name, case.job.job, "age_s", age_s, limit_s, text, stuck.since_ns)


def reported_states(case: Case, states: tuple[RankCondition, ...]) -> list[tuple[Rank, str]]:
    """Return the ranks that NCCL reports in one of `states`, each with its reason."""
    by_id = {entry.id: name for name, entry in case.ranks.communicators.items()}
    newest: dict[tuple[str, int], tuple[int, RankCondition, str]] = {}
    for at_ns, state in case.columns.states:
        key = (state["communicator"], state["rank"])
        if at_ns >= newest.get(key, (at_ns,))[0]:
            newest[key] = (at_ns, state["state"], state["text"])
    reported: list[tuple[Rank, str]] = []
    for (communicator, number), (_, condition, text) in sorted(newest.items()):
        rank = case.ranks.of(by_id.get(communicator, 0), number)
        if rank is not None and condition in states:
            reported.append((rank, f"NCCL reports {condition}" + (f": {text}" if text else "")))
    return reported


def dead_rank(case: Case) -> Iterator[Candidate]:
    """Explain an operation that does not end by the death of a process or host."""
    stuck = case.stuck
    if stuck is None:
        return
    reported = dict(reported_states(case, (RankCondition.DEAD, RankCondition.ABORTED, RankCondition.ERROR)))
    down = hosts_down(case, {rank.host for rank in stuck.missing if not rank.reported})
    dead = {*_ended(stuck, [episode.record["subject"] for episode in down]), *reported}
    if not dead:
        return
    first, later = _first_deaths(dead)
    cause = "its host is down" if down else "its process has ended"
    text = f"{operation_text(case, stuck)}: {ranks_text(first)} died in mid-operation, {cause}"
    if later:
        gap_ns = (later[0].ended_ns or 0) - min(rank.ended_ns or 0 for rank in first)
        text += f"; {len(later)} more ended, from {delay_text(gap_ns)} later on"
    evidence = [stuck_evidence(case, stuck), *state_evidence(reported), *map(health_evidence, down)]
    yield stop(Verdict.DEAD_RANK, first, text, "restart the job from its last checkpoint", evidence)


def _ended(stuck: Stuck, hosts_lost: list[str]) -> Iterator[Rank]:
    yield from (rank for rank in (*stuck.began, *stuck.missing) if rank.ended)
    yield from (rank for rank in stuck.missing if rank.host in hosts_lost)


def state_evidence(states: dict[Rank, str]) -> list[DiagnosisEvidence]:
    """Return, as evidence, the states of ranks that NCCL reports."""
    return [
        observation(COLLECTIVES.name, rank.name, "state", None, None, text) for rank, text in states.items()
    ]


def _first_deaths(dead: set[Rank]) -> tuple[list[Rank], list[Rank]]:
    """Return the ranks that died first, and the ranks that ended later: a launcher kills the rest at once.

    A rank whose end is unknown (its host is down, NCCL reports the rank) is among the first.
    """
    ordered = sorted(dead, key=lambda rank: (rank.ended_ns or 0, rank.number))
    unknown = [rank for rank in ordered if rank.ended_ns is None]
    known = [rank for rank in ordered if rank.ended_ns is not None]
    if unknown:
        return unknown, known
    limit_ns = (known[0].ended_ns or 0) + TOGETHER_NS
    together = [rank for rank in known if (rank.ended_ns or 0) <= limit_ns]
    return sorted(together, key=lambda rank: rank.number), known[len(together) :]


def program_mismatch(case: Case) -> Iterator[Candidate]:
    """Explain wrong results or a stop by ranks that call different operations under one number."""
    work, stuck = case.work, case.stuck
    groups, grouped = work.groups, work.grouped
    if stuck is not None and stuck.is_circle and stuck.is_collective and stuck.stalls:
        text = f"ranks wait for each other in different operations, among them {operation_text(case, stuck)}"
        yield stop(
            Verdict.PROGRAM_MISMATCH,
            stuck.missing,
            text,
            "call operations in one order at all ranks",
            [stuck_evidence(case, stuck)],
            {Symptom.STANDSTILL: True, Symptom.CIRCLE: True},
        )
    if not len(grouped):
        return
    function, size = work.rows[grouped, Op.FUNCTION], work.rows[grouped, Op.BYTES]
    seq, communicator = work.rows[:, Op.SEQ], work.rows[:, Op.COMMUNICATOR]
    first = groups.order[groups.starts][groups.group]
    wrong_function = function != function[first]
    wrong_size = np.isin(function, EQUAL_BYTES) & ~wrong_function & (size != size[first])
    kinds: tuple[tuple[Bools, str, Callable[[int], str]], ...] = (
        (wrong_function, "functions", lambda row: str(FUNCTIONS[int(function[row])])),
        (wrong_size, "sizes", lambda row: f"{size[row]} bytes"),
    )
    for wrong, name, value_of in kinds:
        wrong_rows = np.flatnonzero(wrong)
        if not len(wrong_rows):
            continue
        at = min(wrong_rows, key=lambda row: (int(seq[grouped[row]]), int(communicator[grouped[row]])))
        inside = np.flatnonzero(groups.group == groups.group[at])
        by_value: dict[str, list[Rank]] = {}
        for row in inside:
            by_value.setdefault(value_of(int(row)), []).append(case.members[work.rank[grouped[row]]])
        ordered = sorted(by_value.items(), key=lambda item: (len(item[1]), item[0]))
        few = sorted(ordered[0][1], key=lambda rank: rank.number)
        text = f"ranks call different {name} under number {int(seq[grouped[at]])}: " + ", ".join(
            f"{value} by {ranks_text(sorted(callers, key=lambda rank: rank.number)[:2])}"
            for value, callers in ordered[:3]
        )
        evidence = [observation(COLLECTIVES.name, case.job.job, "mismatches", len(wrong_rows), 0, text)]
        stops = stuck is not None
        candidate = stop(
            Verdict.PROGRAM_MISMATCH,
            few,
            text,
            "call the same operation with the same size at all ranks",
            evidence,
            {Symptom.STANDSTILL: stops, Symptom.FUNCTIONS_DIFFER: name == "functions"},
        )
        candidate.decisive = stops or name == "functions"
        candidate.loss_share = 1.0 if stops else case.rules.min_loss_share
        yield candidate


def stop(
    verdict: Verdict,
    ranks: list[Rank],
    text: str,
    remedy: str,
    evidence: list[DiagnosisEvidence],
    symptoms: Symptoms | None = None,
) -> Candidate:
    """Return a candidate that stops the job."""
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    return Candidate(
        verdict,
        1.0,
        hosts[0] if hosts else "",
        text,
        remedy,
        decisive=True,
        subjects=[*hosts, *(rank.name for rank in ranks)][:64],
        ranks=[rank.number for rank in ranks[:64]],
        nics=list(dict.fromkeys(rank.nic for rank in ranks if rank.nic))[:64],
        evidence=evidence,
        symptoms={Symptom.SUSPECT: bool(ranks), **(symptoms or {})},
    )
