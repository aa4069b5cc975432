"""Explains lost time by ranks that arrive late: STRAGGLER, LAUNCH_SKEW."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from schemas.ids import end_id, link_ends, nic_parts
from schemas.records import DiagnosisEvidence, Verdict
from schemas.topics import COLLECTIVES
from schemas.units import delay_text, ms_text
from streams.diagnosis.base import Candidate, Case, observation
from streams.diagnosis.job.arrivals import Floats
from streams.diagnosis.job.columns import Op
from streams.diagnosis.job.late_ranks import MIN_LATE_NS, Pause
from streams.diagnosis.job.ranks import Rank
from streams.diagnosis.record import lateness_text, ranks_text
from streams.diagnosis.symptoms import Symptom, Symptoms
from streams.runtime.units import NS_PER_S

HALF: Final = 0.5
"""Share from which on one part of a rank's lateness counts as its reason."""
SOME: Final = 0.2
"""Part of the share of a host's worst rank from which on another rank is named with it."""


def _host_of_share(
    case: Case, shares: Floats, total: float, of_ranks: Callable[[Floats], Any] = np.sum
) -> tuple[list[int], list[Rank], float]:
    """Return the host with the greatest share: positions of its ranks, the ranks, and its share.

    `of_ranks` derives a host's share from its ranks' shares: by default the sum. No ranks are returned if the
    share is less than `last_share` of `total`.
    """
    by_host: dict[str, list[int]] = defaultdict(list)
    for at, rank in enumerate(case.members):
        by_host[rank.host].append(at)
    places = max(by_host.values(), key=lambda of_host: float(of_ranks(shares[of_host])), default=[])
    lost = float(of_ranks(shares[places])) if places else 0.0
    is_enough = lost > 0 and lost >= case.rules.last_share * total
    places = [at for at in places if is_enough and shares[at] >= SOME * shares[places].max()]
    return places, [case.members[at] for at in places], lost


def _network_at(case: Case, places: list[int]) -> float:
    """Return the excess of these ranks' greatest share of time moving data over the others' median share."""
    times = case.work.times
    observed = np.maximum(times.observed, 1.0)
    share = times.network_late / observed
    others = np.delete(share, places)
    return float(share[places].max() - np.median(others)) if len(others) and places else 0.0


def _has_fault(case: Case, ranks: list[Rank]) -> bool:
    """Return whether the cable of a NIC of these ranks has a fault, which makes the ranks late, too."""
    ends = {end_id(*nic_parts(rank.nic)) for rank in ranks if rank.nic}
    links = [link for link in (*case.traffic.links, *case.traffic.possible) if ends & {*link_ends(link)}]
    return bool(case.network.episodes(links, case.begin_ns, case.end_ns))


def note_pauses(case: Case) -> None:
    """Record the interval's long pauses of single ranks in the job's view."""
    case.job.late_ranks.note(_pauses(case), case.begin_ns, case.end_ns)


def _pauses(case: Case) -> Iterator[Pause]:
    """Yield the late arrivals that followed all others by long, because of the rank's own time."""
    work = case.work
    arrivals = work.arrivals
    own = np.nan_to_num(arrivals.group_own_share, nan=1.0)
    launch = np.nan_to_num(arrivals.group_launch_share)
    min_late_ns = max(float(MIN_LATE_NS), case.expected_iteration_ns or 0.0)
    long = arrivals.group_clear & (arrivals.group_late_ns >= min_late_ns)
    for group in np.flatnonzero(long & (own >= HALF) & (launch < HALF)):
        row = int(work.grouped[arrivals.group_last[group]])
        rank = case.members[int(work.rank[row])]
        communicator, seq = work.rows[row, (Op.COMMUNICATOR, Op.SEQ)].tolist()
        at_ns, late_ns = case.begin_ns + int(work.begin[row]), int(arrivals.group_late_ns[group])
        yield Pause(communicator, seq, rank.host, rank.number, at_ns, late_ns)


def straggler(case: Case) -> Iterator[Candidate]:
    """Explain waiting by a host with ranks that compute longer than the others, now or repeatedly."""
    candidates = [_stopped(case), _late_now(case), _late_repeatedly(case), _computes_longer(case)]
    yield from sorted(filter(None, candidates), key=lambda candidate: -candidate.loss_share)[:1]


def _late_now(case: Case) -> Candidate | None:
    rules, late = case.rules, case.lateness
    places, ranks, lost = _host_of_share(case, late.own + late.unknown, float(late.total.sum()))
    count = float(late.count[places].sum())
    min_count = min(rules.min_arrivals, len(case.work.groups.starts))
    if not ranks or lost < rules.min_loss_share or count < min_count:
        return None
    is_known = float(late.own[places].sum()) >= HALF * lost
    if not is_known and (case.coarse_ratio or rules.slow_ratio) < rules.slow_ratio:
        return None
    is_network = not is_known and (_network_at(case, places) >= HALF * lost or _has_fault(case, ranks))
    text = f"{ranks_text(ranks)} {lateness_text(case, places)}"
    if is_known:
        text += f"; {'its' if len(ranks) == 1 else 'their'} own time outside of operations is longer"
    symptoms: Symptoms = {Symptom.OWN_TIME: is_known, Symptom.NETWORK_TIME: is_network}
    evidence = _arrivals(case, ranks, count)
    return _straggler(ranks, symptoms, lost, text, evidence, may_pass=not is_known)


def _stopped(case: Case) -> Candidate | None:
    """Return a straggler that signals or a debugger stop again and again, even inside of operations."""
    shares = np.array([rank.stopped_share for rank in case.members])
    _, ranks, _ = _host_of_share(case, shares, float(shares.sum()))
    stopped = float(shares.max(initial=0.0))
    if not ranks or stopped < case.rules.min_loss_share:
        return None
    stops = "of the samples by a signal, a debugger or its cgroup"
    text = f"{ranks_text(ranks)} is stopped in {stopped:.0%} {stops}"
    lost = min(stopped, max(case.loss_share, case.network_excess or 0.0))
    evidence = observation(COLLECTIVES.name, ranks[0].name, "stopped_share", stopped, 0.0, text)
    return _straggler(ranks, {Symptom.OWN_TIME: True}, lost, text, [evidence])


def _computes_longer(case: Case) -> Candidate | None:
    """Return a straggler in a job with messages: its own time grew by a good part of the job's loss.

    Ranks of a pipeline wait for their neighbours, so few ranks wait for the straggler itself.
    """
    own_ns, times = case.own_ns, case.work.times
    before = [case.job.baselines.value(("own", rank.number)) for rank in case.members]
    if own_ns is None or None in before or (case.coarse_ratio or 1.0) < case.rules.slow_ratio:
        return None
    before_ns = np.array(before, np.float64)
    excess = (own_ns - before_ns) * times.operations / np.maximum(times.observed, 1.0)
    places, ranks, lost = _host_of_share(case, excess, case.loss_share, np.max)
    others = np.delete(excess, places)
    if not ranks or float(np.median(others) if len(others) else 0.0) > HALF * excess[places].max():
        return None
    own_ms, before_ms = float(own_ns[places[0]]) / 1e6, float(before_ns[places[0]]) / 1e6
    text = (
        f"{ranks_text(ranks)} spends {ms_text(own_ms)} outside of operations for each of them, "
        f"{ms_text(before_ms)} before"
    )
    evidence = observation(COLLECTIVES.name, ranks[0].name, "own_ms", own_ms, before_ms, text)
    lost = min(lost, case.loss_share)
    return _straggler(ranks, {Symptom.OWN_TIME: True}, lost, text, [evidence], may_pass=True)


def _late_repeatedly(case: Case) -> Candidate | None:
    """Return a straggler that pauses repeatedly; None if others cost as much, or it costs too little."""
    rules, pausing = case.rules, case.job.late_ranks.worst(case.end_ns)
    if pausing is None or pausing.lost < rules.min_loss_share or pausing.part < rules.last_share:
        return None
    ranks = [rank for rank in case.members if rank.host == pausing.host and rank.number in pausing.ranks]
    if not ranks:
        return None
    iteration_ns = case.expected_iteration_ns
    each = ""
    if iteration_ns:
        each = f", every {max(1, round(pausing.span_ns / pausing.count / iteration_ns))} iterations or so"
    text = (
        f"{ranks_text(ranks)} pauses: up to {delay_text(pausing.greatest_ns)}, {pausing.count} times in "
        f"{pausing.span_ns / NS_PER_S:.0f} s{each}"
    )
    evidence = _arrivals(case, ranks, pausing.count)
    return _straggler(ranks, {Symptom.OWN_TIME: True}, pausing.lost, text, evidence)


def _arrivals(case: Case, ranks: list[Rank], count: float) -> list[DiagnosisEvidence]:
    """Return, as evidence, the lateness of a host's ranks, and the number of operations they joined last."""
    places = [at for at, rank in enumerate(case.members) if rank in ranks]
    late_ms = float(case.lateness.late_ns[places].max()) / 1e6
    bound_ms = max(rank.bound_ns for rank in ranks) / 1e6
    text = f"late by {ms_text(late_ms)} on average, clocks within {delay_text(bound_ms * 1e6)}"
    last_text = f"last in {count:.0f} operations"
    return [
        observation(COLLECTIVES.name, ranks[0].name, "late_ms", late_ms, bound_ms, text),
        observation(COLLECTIVES.name, ranks[0].host, "last_arrivals", count, None, last_text),
    ]


def _straggler(
    ranks: list[Rank],
    symptoms: Symptoms,
    lost: float,
    text: str,
    evidence: list[DiagnosisEvidence],
    *,
    may_pass: bool = False,
) -> Candidate:
    host = ranks[0].host
    return Candidate(
        Verdict.STRAGGLER,
        lost,
        host,
        text,
        f"check GPU clocks, temperature and processors of {host}, or replace it",
        subjects=[host, *(rank.name for rank in ranks)],
        ranks=[rank.number for rank in ranks],
        nics=[rank.nic for rank in ranks if rank.nic],
        evidence=evidence,
        may_pass=may_pass,
        symptoms=symptoms,
    )


def launch_skew(case: Case) -> Iterator[Candidate]:
    """Explain waiting by kernels that begin long after their call, at one host or at all ranks."""
    rules, late = case.rules, case.lateness
    places, ranks, lost = _host_of_share(case, late.launch, float(late.total.sum()))
    times = case.work.times
    if ranks and lost >= rules.min_loss_share:
        launch, host = times.launch / np.maximum(times.operations, 1), ranks[0].host
        typical_ns, own = float(np.median(launch)), float(launch[places].max())
        times_text = f"{delay_text(own)} after their call, others {delay_text(typical_ns)}"
        text = f"kernels of {ranks_text(ranks)} begin {times_text}"
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
