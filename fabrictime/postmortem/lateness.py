"""Finds ranks that arrive late at collectives again and again, so that the others wait. Pure.

The wait of an operation is the time between the arrival of the median rank and the last one. The ranks in
its later half are charged with it. A straggler has most of all waits, and the waits are a noticeable part
of the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import comb
from statistics import median
from typing import Final, NamedTuple

from fabrictime.postmortem.base import Explanation, culprits_of, ranks_text
from fabrictime.postmortem.observations import Observations
from fabrictime.postmortem.timing import Operation, arrivals, begin_together, begins, by_group
from schemas.units import delay_text, percent_text

MIN_OPERATIONS: Final = 4
MIN_SHARE: Final = 0.04
"""Smallest share of the time that waits must take, below which a job is healthy."""
_MIN_BLAME: Final = 0.5
MAX_CHANCE: Final = 0.005
"""Probability that a rank is late that often by chance, above which it is no straggler."""
_MAX_TESTED: Final = 500
"""Number of operations above which chance needs no test."""
_SAME: Final = 1.001
"""Ratio of durations below which they are the same, as no measured ones are."""
_PEER: Final = 0.6
"""Share of the largest blame from which a rank is a culprit too."""


class _Blame(NamedTuple):
    """The waits that ranks of a group caused."""

    by_rank: dict[int, float]
    times: Counter[int]
    total_ns: float
    time_ns: float
    operations: int
    ranks: int
    worst_ns: float


def stragglers(every: Sequence[Operation], out: Observations) -> Iterator[Explanation]:
    """Yield the ranks that are late, at most one explanation."""
    blames = [
        (group.text(), blame)
        for (_, group), of_group in by_group(list(every)).items()
        if len(of_group) >= MIN_OPERATIONS
        for blame in _blames(of_group)
    ]
    choices = [choice for name, blame in blames if (choice := _explanation(name, blame, out)) is not None]
    if choices:
        yield max(choices, key=lambda choice: choice.confidence)


def _blames(of_group: list[Operation]) -> Iterator[_Blame]:
    """Yield the waits by durations, or by begins where the durations are unknown or all the same.

    A rank that calls a collective late may still start it in time, so durations stand before begins. Ranks
    that begin together wait for none.
    """
    if begin_together(of_group):
        return
    by_duration = arrivals(of_group)
    by_operation = by_duration if _differ(by_duration) else begins(of_group)
    if len(by_operation) >= MIN_OPERATIONS:
        yield _blame(by_operation, _time_ns(of_group))


def _differ(by_duration: list[dict[int, float]]) -> bool:
    """Return whether durations differ between ranks as measured ones do, in most operations."""
    differ = [min(moments.values()) < _SAME * max(moments.values()) for moments in by_duration]
    return 2 * sum(differ) > len(differ)


def _blame(by_operation: list[dict[int, float]], time_ns: float) -> _Blame:
    by_rank: dict[int, float] = defaultdict(float)
    times: Counter[int] = Counter()
    middles = [
        min(moments.values()) if len(moments) == 2 else median(moments.values()) for moments in by_operation
    ]
    waits_ns = [max(moments.values()) - middle for moments, middle in zip(by_operation, middles, strict=True)]
    ranks = len({rank for moments in by_operation for rank in moments})
    noticeable_ns = sum(waits_ns) / len(waits_ns) / 2
    noticeable = 0
    for moments, middle, wait_ns in zip(by_operation, middles, waits_ns, strict=True):
        if wait_ns <= 0 or wait_ns < noticeable_ns:
            continue
        noticeable += 1
        for rank, moment in moments.items():
            if moment - middle > wait_ns / 2:
                by_rank[rank] += wait_ns
                times[rank] += 1
    return _Blame(by_rank, times, sum(waits_ns), time_ns, noticeable, ranks, max(waits_ns))


def _is_chance(blame: _Blame, times: int) -> bool:
    """Return whether one of the ranks is late that often by chance alone."""
    share = min(0.999, sum(blame.times.values()) / max(1, blame.ranks * blame.operations))
    tail = sum(
        comb(blame.operations, number) * share**number * (1 - share) ** (blame.operations - number)
        for number in range(times, min(blame.operations, times + 200) + 1)
    )
    return blame.operations <= _MAX_TESTED and tail > MAX_CHANCE


def _time_ns(of_group: list[Operation]) -> float:
    """Return the time from the first operation to the last one of a rank, or the sum of durations if that
    is larger or times are unknown.
    """
    begins: dict[int, list[int]] = defaultdict(list)
    for operation in of_group:
        for rank, part in operation.parts.items():
            if part.begin_ns:
                begins[rank].append(part.begin_ns)
    longest = max((max(times) - min(times) for times in begins.values()), default=0)
    durations = sum(
        max(part.duration_ns or part.end_ns - part.begin_ns for part in operation.parts.values())
        for operation in of_group
    )
    return float(longest or durations or 1)


def _explanation(name: str, blame: _Blame, out: Observations) -> Explanation | None:
    share = blame.total_ns / blame.time_ns
    if not blame.by_rank or share < MIN_SHARE:
        return None
    largest = max(blame.by_rank.values())
    late = {rank for rank, wait_ns in blame.by_rank.items() if wait_ns >= _PEER * largest}
    needed = max(_MIN_BLAME, 1.6 / blame.ranks if blame.ranks > 2 else 0.8)
    times = max(blame.times[rank] for rank in late)
    if largest < needed * blame.total_ns or times < 3 or len(late) > max(1, blame.ranks / 2):
        return None
    if _is_chance(blame, times):
        return None
    mean_ns = largest / times
    text = (
        f"{ranks_text(late)} came last to {times} of {blame.operations} collectives of {name}, "
        f"{delay_text(mean_ns)} after the median rank in the mean, {delay_text(blame.worst_ns)} at worst: "
        f"the others waited {percent_text(min(1.0, share))} of the time"
    )
    confidence = min(0.92, 0.55 + 0.3 * largest / blame.total_ns + min(0.1, share / 4))
    missing = ("the processor, disk and GPU times of this rank would say why it is late",)
    return Explanation("STRAGGLER", culprits_of(late, out), confidence, text, (), missing)
