"""Derives one verdict from all observations of a folder. Does no I/O.

Evidence is weighed in this order: a process that ended, ranks that called different collectives, ranks that
did not enter a collective, errors of NICs, then slow transfers and late ranks, then the transport. The other
explanations are listed beside the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fabrictime.postmortem.bandwidth import slow_transfers
from fabrictime.postmortem.base import Explanation, ranks_text
from fabrictime.postmortem.failures import deaths
from fabrictime.postmortem.groups import unify_groups
from fabrictime.postmortem.hang import stalls
from fabrictime.postmortem.lateness import stragglers
from fabrictime.postmortem.mismatch import mismatches
from fabrictime.postmortem.observations import Observations
from fabrictime.postmortem.tables import MIN_RDMA_GBS, healthy_rates, slow_runs
from fabrictime.postmortem.timing import Operation, operations
from fabrictime.postmortem.transport import fallbacks, incomplete_starts, link_errors
from fabrictime.postmortem.watchdog import timeouts

_BONUS: Final = {
    "DEAD_RANK": 0.3,
    "PROGRAM_MISMATCH": 0.25,
    "HANG": 0.2,
    "STRAGGLER": 0.05,
    "SLOW_NIC": 0.05,
    "FALLBACK": 0.1,
    "UNKNOWN": -0.1,
}
"""Precedence of a verdict over others of the same confidence: one that stops a job explains the slow ones,
and the transport that NCCL used explains slow transfers.
"""
VERDICTS: Final = ("HEALTHY", *_BONUS)
"""All verdicts about folders; each has a page in `docs/verdicts`."""
_MIN_CONFIDENCE: Final = 0.3
_SHOWN: Final = 5
MAX_NAMED: Final = 64
"""Largest number of culprits and of missing ranks that are listed one by one."""


class Verdict(NamedTuple):
    """The verdict about a job, its reasons, and the data that would make it more certain."""

    best: Explanation
    others: tuple[Explanation, ...]
    missing: tuple[str, ...]
    expected: int | None
    seen: int
    missing_ranks: tuple[int, ...]


def decide(out: Observations) -> Verdict:
    """Return the verdict about a job from all facts of its folder."""
    unify_groups(out)
    every = operations(out)
    choices = sorted(_explanations(out, every), key=_weight, reverse=True)
    strong = [choice for choice in choices if choice.confidence >= _MIN_CONFIDENCE]
    best = strong[0] if strong else _without_fault(out, every)
    best = _with_ranks(_confirmed(best, choices), choices, out)
    others = tuple(choice for choice in choices if choice is not strong[0]) if strong else tuple(choices)
    expected = out.expected or None
    absent = tuple(sorted(set(range(min(out.expected, 1_000_000))) - out.ranks))
    missing = dict.fromkeys((*best.missing, *_missing(out, absent)))
    return Verdict(best, others[:_SHOWN], tuple(missing), expected, len(out.ranks), absent)


def _explanations(out: Observations, every: list[Operation]) -> Iterator[Explanation]:
    yield from deaths(out)
    yield from mismatches(out)
    yield from stalls(out)
    yield from timeouts(out)
    yield from incomplete_starts(out)
    yield from link_errors(out)
    yield from stragglers(every, out)
    yield from slow_transfers(every, out)
    yield from slow_runs(out)
    yield from fallbacks(out)


def _weight(choice: Explanation) -> float:
    return choice.confidence + _BONUS[choice.verdict]


def _confirmed(best: Explanation, choices: Iterable[Explanation]) -> Explanation:
    """Return a hang without a culprit, plus the culprits of an explanation by the NICs' errors."""
    if best.verdict != "HANG" or best.culprits:
        return best
    for choice in choices:
        if choice.culprits and choice.verdict in ("HANG", "FALLBACK") and choice.confidence >= 0.5:
            text = f"{best.text}; {choice.text}"
            return best._replace(
                culprits=choice.culprits, text=text, evidence=(*best.evidence, *choice.evidence)
            )
    return best


def _with_ranks(best: Explanation, choices: Iterable[Explanation], out: Observations) -> Explanation:
    """Return a death of which only the host is known, plus the rank for which other ranks wait."""
    if best.verdict != "DEAD_RANK" or _ranks_of(best):
        return best
    for choice in choices:
        if choice.verdict == "HANG" and _is_same_place(best, choice, out):
            culprits = tuple(dict.fromkeys((*choice.culprits, *best.culprits)))
            text = f"{best.text}; {choice.text}"
            return best._replace(culprits=culprits, text=text, confidence=max(best.confidence, 0.6))
    return best


def _ranks_of(choice: Explanation) -> list[int]:
    return [int(name[5:]) for name in choice.culprits if name.startswith("rank ")]


def _is_same_place(best: Explanation, choice: Explanation, out: Observations) -> bool:
    """Return whether the few ranks of `choice` may be on the hosts of `best`."""
    ranks = _ranks_of(choice)
    hosts = {f"host {out.host_of(rank)}" for rank in ranks} - {"host "}
    return 0 < len(ranks) <= _SHOWN and (not hosts or not best.culprits or hosts <= set(best.culprits))


def _without_fault(out: Observations, every: list[Operation]) -> Explanation:
    """Return the verdict HEALTHY if the data suffices to show faults, else UNKNOWN."""
    reasons = list(_healthy(out, every))
    if not reasons:
        advice = _TABLE_ADVICE if out.tables else _ADVICE
        return Explanation("UNKNOWN", (), 0.3, "the files say too little for a verdict", (), advice)
    confidence = max(weight for weight, _ in reasons)
    absent = out.expected - len(out.ranks)
    if absent > 0:
        confidence -= 0.15
    texts = [text for _, text in reasons]
    return Explanation("HEALTHY", (), confidence, f"no fault in the files: {'; '.join(texts)}", tuple(texts))


_ADVICE: Final = (
    "dumps of PyTorch's Flight Recorder of all ranks (TORCH_NCCL_TRACE_BUFFER_SIZE, "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1)",
    "logs of NCCL_DEBUG=INFO of all ranks",
)


_TABLE_ADVICE: Final = ("runs of the same test on other hosts, to compare with",)


def _healthy(out: Observations, every: list[Operation]) -> Iterator[tuple[float, str]]:
    """Yield (confidence, text) for each source that would show a fault and shows none."""
    calls = [call for of_rank in out.calls.values() for call in of_rank]
    if calls and all(call.is_complete for call in calls):
        yield (0.8 if len(every) >= 4 else 0.6), f"all {len(calls):,} recorded collectives completed"
    spans = sum(operation.source != "dumps" for operation in every)
    if spans >= 4:
        yield 0.75, f"the ranks of {spans:,} operations take equally long"
    rates = healthy_rates(out.tables).values()
    if len(rates) >= 2 and min(rates) >= MIN_RDMA_GBS:
        yield 0.7, f"{len(rates)} runs of nccl-tests reach {min(rates):.1f} to {max(rates):.1f} GB/s"
    yield from _healthy_start(out)


def _healthy_start(out: Observations) -> Iterator[tuple[float, str]]:
    if out.init_completed and out.init_completed >= out.init_started:
        yield 0.6, f"{ranks_text(out.init_completed)} completed the start of NCCL"
    states = {step.state.split()[0] for step in out.steps if step.state.strip()}
    if states and states <= {"COMPLETED", "RUNNING"}:
        yield 0.5, "Slurm's accounting states no failure"


def _missing(out: Observations, absent: tuple[int, ...]) -> Iterator[str]:
    if absent and len(absent) <= MAX_NAMED:
        yield f"{ranks_text(absent)} left nothing in the folder"
    elif absent:
        yield f"{len(absent)} of {out.expected} ranks left nothing in the folder"
    for rank, reason in sorted(out.torn_ranks.items())[:4]:
        if rank not in out.calls:
            yield f"the file of rank {rank} cannot be read: {reason}"
    if out.ranks and not out.hosts and not any(table.hosts for table in out.tables):
        yield "no file states the hosts of the ranks: logs of NCCL_DEBUG=INFO do"
    yield from out.notes[:8]
