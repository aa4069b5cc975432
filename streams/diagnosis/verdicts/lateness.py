"""Verdicts about ranks that arrive late: STRAGGLER, LAUNCH_SKEW."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from schemas.records import Verdict
from schemas.topics import COLLECTIVES
from streams.diagnosis.arrivals import Floats
from streams.diagnosis.base import Candidate, Case, observation

KNOWN: Final = 0.95
"""Confidence if it was measured that the rank spent the time outside of operations."""
INFERRED: Final = 0.85
"""Confidence if the rank was late but nothing shows why."""
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


def straggler(case: Case) -> Iterator[Candidate]:
    """Explain waiting by a host with ranks that compute longer than the others."""
    rules, late = case.rules, case.lateness
    causes = late.own + late.unknown
    host, places, lost = _host_of_share(case, causes)
    every = float(late.total.sum())
    if not places or lost < rules.min_loss_share or lost < rules.last_share * every:
        return
    count = float(late.count[places].sum())
    if count < min(rules.min_arrivals, len(case.work.groups.starts)):
        return
    is_known = float(late.own[places].sum()) >= 0.5 * lost
    confidence = KNOWN if is_known else INFERRED
    if not is_known and _network_at(case, places) >= 0.5 * lost:
        confidence = 0.4
    worst = max(places, key=lambda at: (float(late.late_ns[at]), -at))
    ranks = [case.members[at] for at in places]
    names = ", ".join(str(rank.number) for rank in ranks[:8])
    late_ms = float(late.late_ns[worst]) / 1e6
    bound_us = max(rank.bound_ns for rank in ranks) / 1e3
    text = (
        f"rank{'s' * (len(ranks) > 1)} {names} on {host} arrived last in {count:.0f} operations, "
        f"{late_ms:.3g} ms after the median rank; {'its' if len(ranks) == 1 else 'their'} own time outside "
        f"of operations is longer; nothing is wrong with the network"
        if is_known
        else f"rank{'s' * (len(ranks) > 1)} {names} on {host} arrived last in {count:.0f} operations, "
        f"{late_ms:.3g} ms after the median rank"
    )
    yield Candidate(
        Verdict.STRAGGLER,
        confidence,
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
                f"late by {late_ms:.3g} ms, clocks within {bound_us:.3g} us",
            ),
            observation(
                COLLECTIVES.name, host, "last_arrivals", count, None, f"last in {count:.0f} operations"
            ),
        ],
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
            f"{own / 1e3:.3g} us after their call, others {typical_ns / 1e3:.3g} us"
        )
        yield Candidate(
            Verdict.LAUNCH_SKEW,
            0.9,
            lost,
            host,
            text,
            f"check processes that take processor time on {host}",
            subjects=[host, *(rank.name for rank in ranks)],
            ranks=[rank.number for rank in ranks],
            evidence=[observation(COLLECTIVES.name, host, "launch_us", own / 1e3, typical_ns / 1e3, text)],
        )
        return
    share = case.share_of(times.launch)
    good = case.job.baselines.good(("launch", case.ranks.total))
    excess = share - good if good is not None else 0.0
    if case.is_slow and share >= rules.launch_share and excess >= rules.min_loss_share:
        text = f"kernels of all ranks begin late: {share:.0%} of the time lies between call and begin"
        yield Candidate(
            Verdict.LAUNCH_SKEW,
            0.75,
            excess,
            "",
            text,
            "check the processors of all hosts",
            evidence=[observation(COLLECTIVES.name, case.job.job, "launch_share", share, good, text)],
        )
