"""Verdicts about ranks that arrive late: STRAGGLER, LAUNCH_SKEW."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from schemas.records import Verdict
from schemas.topics import COLLECTIVES
from schemas.units import delay_text, ms_text
from streams.diagnosis.base import Candidate, Case, observation
from streams.diagnosis.job.arrivals import Floats
from streams.diagnosis.job.columns import Op
from streams.diagnosis.job.late_ranks import MIN_LATE_NS, Pause, Pausing
from streams.diagnosis.job.ranks import Rank
from streams.diagnosis.symptoms import Symptom, Symptoms
from streams.runtime.units import NS_PER_S

HALF: Final = 0.5
"""Share from which on one part of a rank's lateness counts as its reason."""
MAX_RANKS: Final = 8
"""Largest number of ranks that a text names."""
SOME: Final = 0.2
"""Share of a host's lateness from which on a rank is named with the host."""


def _host_of_share(case: Case, shares: Floats) -> tuple[str, list[int], float]:
    """Return the host with the greatest sum of shares, the positions of its ranks, and that sum."""
    by_host: dict[str, list[int]] = {}
    for at, rank in enumerate(case.members):
        by_host.setdefault(rank.host, []).append(at)
    host = min(by_host, key=lambda name: (-float(shares[by_host[name]].sum()), name), default="")
    places = by_host.get(host, [])
    total = float(shares[places].sum()) if places else 0.0
    return host, [at for at in places if shares[at] >= SOME * total and total > 0], total


def _network_at(case: Case, places: list[int]) -> float:
    """Return by how much the share of time in which these ranks moved data exceeds that of the other
    ranks."""
    times = case.work.times
    observed = np.maximum(times.observed, 1.0)
    share = times.network_late / observed
    others = np.delete(share, places)
    return float(share[places].max() - np.median(others)) if len(others) and places else 0.0


def note_pauses(case: Case) -> None:
    """Record the interval's long pauses of single ranks in the job's view."""
    case.job.late_ranks.note(_pauses(case), case.begin_ns, case.end_ns)


def _pauses(case: Case) -> Iterator[Pause]:
    """Yield the arrivals that were long after all others because of the rank's own time."""
    work = case.work
    arrivals = work.arrivals
    own = np.nan_to_num(arrivals.group_own_share, nan=1.0)
    launch = np.nan_to_num(arrivals.group_launch_share)
    min_late_ns = max(float(MIN_LATE_NS), case.expected_iteration_ns or 0.0)
    long = arrivals.group_clear & (arrivals.group_late_ns >= min_late_ns)
    for group in np.flatnonzero(long & (own >= HALF) & (launch < HALF)):
        row = int(work.grouped[arrivals.group_last[group]])
        rank = case.members[int(work.rank[row])]
        yield Pause(
            int(work.rows[row, Op.COMMUNICATOR]),
            int(work.rows[row, Op.SEQ]),
            rank.host,
            rank.number,
            case.begin_ns + int(work.begin[row]),
            int(arrivals.group_late_ns[group]),
        )


def straggler(case: Case) -> Iterator[Candidate]:
    """Explain waiting by a host with ranks that compute longer than the others, now or again and again."""
    candidate = _late_now(case)
    pausing = case.job.late_ranks.worst(case.end_ns)
    if pausing is not None and (candidate is None or candidate.loss_share < pausing.lost):
        candidate = _late_repeatedly(case, pausing) or candidate
    if candidate is not None:
        yield candidate


def _late_now(case: Case) -> Candidate | None:
    rules, late = case.rules, case.lateness
    host, places, lost = _host_of_share(case, late.own + late.unknown)
    every = float(late.total.sum())
    if not places or lost < rules.min_loss_share or lost < rules.last_share * every:
        return None
    count = float(late.count[places].sum())
    if count < min(rules.min_arrivals, len(case.work.groups.starts)):
        return None
    is_known = float(late.own[places].sum()) >= HALF * lost
    is_network = not is_known and _network_at(case, places) >= HALF * lost
    ranks = [case.members[at] for at in places]
    names = ", ".join(str(rank.number) for rank in ranks[:MAX_RANKS])
    text = f"rank{'s' * (len(ranks) > 1)} {names} on {host} {_lateness_text(case, places)}"
    if is_known:
        text += (
            f"; {'its' if len(ranks) == 1 else 'their'} own time outside of operations is longer; "
            f"nothing is wrong with the network"
        )
    symptoms: Symptoms = {Symptom.OWN_TIME: is_known, Symptom.NETWORK_TIME: is_network}
    return _straggler(case, host, ranks, symptoms, lost, text, count)


def _lateness_text(case: Case, places: list[int]) -> str:
    """Return text that says how late ranks were at most, and how often: a mean hides a single pause."""
    work, arrivals = case.work, case.work.arrivals
    owner = work.rank[work.grouped[arrivals.group_last]]
    own = arrivals.group_late_ns[arrivals.group_clear & np.isin(owner, places)]
    greatest = float(own.max(initial=0.0))
    often = int((own >= HALF * greatest).sum())
    times = "once" if often == 1 else f"in {often} operations"
    total = len(work.groups.starts)
    return f"arrived last, up to {delay_text(greatest)} after the median rank, {times} of {total}"


def _late_repeatedly(case: Case, pausing: Pausing) -> Candidate | None:
    """Return a straggler that pauses again and again; None if others cost as much, or it costs too little."""
    rules = case.rules
    if pausing.lost < rules.min_loss_share or case.job.late_ranks.share_of(pausing) < rules.last_share:
        return None
    ranks = [rank for rank in case.members if rank.host == pausing.host and rank.number in pausing.ranks]
    if not ranks:
        return None
    iteration_ns = case.expected_iteration_ns
    each = ""
    if iteration_ns:
        each = f", every {max(1, round(pausing.span_ns / pausing.count / iteration_ns))} iterations or so"
    text = (
        f"rank{'s' * (len(ranks) > 1)} {', '.join(str(rank.number) for rank in ranks[:MAX_RANKS])} on "
        f"{pausing.host} pauses: up to {delay_text(pausing.greatest_ns)}, {pausing.count} times in "
        f"{pausing.span_ns / NS_PER_S:.0f} s{each}; nothing is wrong with the network"
    )
    symptoms: Symptoms = {Symptom.OWN_TIME: True}
    return _straggler(case, pausing.host, ranks, symptoms, pausing.lost, text, pausing.count)


def _straggler(
    case: Case, host: str, ranks: list[Rank], symptoms: Symptoms, lost: float, text: str, count: float
) -> Candidate:
    places = [at for at, rank in enumerate(case.members) if rank in ranks]
    late_ms = float(case.lateness.late_ns[places].max()) / 1e6
    bound_us = max(rank.bound_ns for rank in ranks) / 1e3
    return Candidate(
        Verdict.STRAGGLER,
        lost,
        host,
        text,
        f"check GPU clocks, temperature and processors of {host}, or replace it",
        subjects=[host, *(rank.name for rank in ranks)],
        ranks=[rank.number for rank in ranks],
        nics=[rank.nic for rank in ranks if rank.nic],
        evidence=[
            observation(
                COLLECTIVES.name,
                ranks[0].name,
                "late_ms",
                late_ms,
                bound_us / 1e3,
                f"late by {ms_text(late_ms)} on average, clocks within {delay_text(bound_us * 1e3)}",
            ),
            observation(
                COLLECTIVES.name, host, "last_arrivals", count, None, f"last in {count:.0f} operations"
            ),
        ],
        symptoms=symptoms,
    )


def launch_skew(case: Case) -> Iterator[Candidate]:
    """Explain waiting by kernels that begin long after their call, at one host or at all ranks."""
    rules, late = case.rules, case.lateness
    host, places, lost = _host_of_share(case, late.launch)
    every = float(late.total.sum())
    times = case.work.times
    if places and lost >= rules.min_loss_share and lost >= rules.last_share * every:
        ranks = [case.members[at] for at in places]
        counts = np.maximum(times.operations, 1)
        launch = times.launch / counts
        typical_ns = float(np.median(launch))
        own = float(launch[places].max())
        text = (
            f"kernels of rank {', '.join(str(rank.number) for rank in ranks[:8])} on {host} begin "
            f"{delay_text(own)} after their call, others {delay_text(typical_ns)}"
        )
        yield Candidate(
            Verdict.LAUNCH_SKEW,
            lost,
            host,
            text,
            f"check processes that take processor time on {host}",
            subjects=[host, *(rank.name for rank in ranks)],
            ranks=[rank.number for rank in ranks],
            evidence=[observation(COLLECTIVES.name, host, "launch_us", own / 1e3, typical_ns / 1e3, text)],
            symptoms={Symptom.ONE_HOST: True},
        )
        return
    share = case.share_of(times.launch)
    baseline = case.job.baselines.value(("launch", case.ranks.total))
    excess = share - baseline if baseline is not None else 0.0
    if case.is_slow and share >= rules.launch_share and excess >= rules.min_loss_share:
        text = f"kernels of all ranks begin late: {share:.0%} of the time lies between call and begin"
        yield Candidate(
            Verdict.LAUNCH_SKEW,
            excess,
            "",
            text,
            "check the processors of all hosts",
            evidence=[observation(COLLECTIVES.name, case.job.job, "launch_share", share, baseline, text)],
        )
