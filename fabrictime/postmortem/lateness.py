"""Finds ranks that need more time of their own than their peers, so that the others wait. Does no I/O.

Two successive operations of a group are a window that all members share. A member's own time in a window is
the length of the window less the time that the member spent in operations of any group. So a member that
comes late because it waited in another group has no more own time than its peers; the rank for which it
waited has. Slow transfers are not counted as own time either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from fabrictime.postmortem.base import Explanation, culprits_of, ranks_text
from fabrictime.postmortem.observations import Group, Observations
from fabrictime.postmortem.timing import Operation, begin_together, by_group, waits, window_ns
from schemas.units import delay_text, percent_text

MIN_WINDOWS: Final = 3
MIN_SHARE: Final = 0.04
"""Smallest share of the time that waits must take, below which a job is healthy."""
MIN_EFFECT: Final = 3.0
"""Excess of own time over its variation, below which it may be chance."""
_MIN_RECURRENCES: Final = 3
_MIN_RECURRENCE: Final = 0.12
"""Number and share of windows in which the excess must recur."""
_PEER: Final = 0.5
"""Share of the largest excess from which a rank is a culprit too."""
_MAD: Final = 1.4826
"""Standard deviation over median absolute deviation of normal values."""


class _Lateness(NamedTuple):
    """The ranks of a group with more own time than their peers. `excess_ns` is the mean excess per window."""

    group: Group
    members: int
    windows: int
    excess_ns: dict[int, float]
    share: float


def stragglers(every: Sequence[Operation], out: Observations) -> Iterator[Explanation]:
    """Yield at most one explanation: the ranks with more own time than their peers.

    The largest groups with such ranks decide, as they compare the largest number of ranks.
    """
    choices = [
        lateness
        for (_, group, _), of_group in by_group(every).items()
        if not begin_together(of_group) and (lateness := _lateness(group, of_group)) is not None
    ]
    for members in sorted({choice.members for choice in choices}, reverse=True):
        largest = [choice for choice in choices if choice.members == members]
        excess_ns: dict[int, float] = defaultdict(float)
        for choice in largest:
            for rank, value in choice.excess_ns.items():
                excess_ns[rank] = max(excess_ns[rank], value)
        largest_ns = max(excess_ns.values())
        late = {rank for rank, value in excess_ns.items() if value >= _PEER * largest_ns}
        if _is_one_place(late, max(members, len(out.ranks)), out):
            main = max(largest, key=lambda choice: (choice.share, choice.windows))
            yield _explanation(late, main, excess_ns, every, out)
            return


def _is_one_place(late: set[int], ranks: int, out: Observations) -> bool:
    """Return whether late ranks may have one cause: they are few among `ranks`, or all on one host."""
    hosts = {out.host_of(rank) for rank in late}
    if "" in hosts or len(late) <= 2:
        return 2 * len(late) <= ranks
    return len(hosts) == 1


def _lateness(group: Group, of_group: Sequence[Operation]) -> _Lateness | None:
    """Return the late ranks of a group; None if there are none."""
    windows = [window for pair in pairwise(of_group) if (window := _own_ns(*pair))]
    if len(windows) < MIN_WINDOWS:
        return None
    excess_ns: dict[int, list[float]] = defaultdict(list)
    for window in windows:
        baseline_ns = sorted(window.values())[(len(window) - 1) // 4]
        for rank, own_ns in window.items():
            excess_ns[rank].append(own_ns - baseline_ns)
    noise_ns = _noise_ns(excess_ns.values())
    means_ns = {rank: _recurrent(values, noise_ns) for rank, values in excess_ns.items()}
    share = max(means_ns.values()) / window_ns(of_group)
    if share < MIN_SHARE:
        return None
    return _Lateness(group, len(excess_ns), len(windows), means_ns, share)


def _noise_ns(by_rank: Collection[Sequence[float]]) -> float:
    """Return the standard deviation of a rank's excess from window to window, without outliers.

    A rank's windows in which it is the baseline (excess 0) are left out. A factor corrects for few values.
    """
    differences_ns = [
        abs(value - median(values)) * len(values) / (len(values) - 2)
        for values in by_rank
        for value in values
        if value != 0
    ]
    return _MAD * median(differences_ns) if differences_ns else 0.0


def _own_ns(before: Operation, operation: Operation) -> Mapping[int, float]:
    """Return, by rank, the own time between two operations; only differences between ranks have a meaning."""
    ranks = before.parts.keys() & operation.parts.keys()
    if len(ranks) < 2:
        return {}
    return {rank: float(before.parts[rank].busy_ns - operation.parts[rank].busy_ns) for rank in ranks}


def _recurrent(values: Sequence[float], noise_ns: float) -> float:
    """Return the mean of a rank's excess, ns; 0 if it is chance or does not recur.

    The two largest values count as much as the third: a checkpoint or a start takes longer once or twice.
    """
    largest = sorted(values, reverse=True)[:_MIN_RECURRENCES][-1]
    capped = [min(value, largest) for value in values]
    mean = sum(capped) / len(capped)
    clear = sum(value > max(mean / 2, MIN_EFFECT * noise_ns) for value in capped)
    return mean if clear >= max(_MIN_RECURRENCES, _MIN_RECURRENCE * len(values)) else 0.0


def _explanation(
    late: set[int],
    main: _Lateness,
    excess_ns: Mapping[int, float],
    every: Sequence[Operation],
    out: Observations,
) -> Explanation:
    share = min(1.0, main.share)
    text = (
        f"{ranks_text(late)} took {delay_text(max(excess_ns.values()))} more than peers in the mean between "
        f"two collectives of {main.group.text()}, in {main.windows} intervals: the others waited"
        f" {percent_text(share)} of the time"
    )
    evidence = [
        f"rank {wait.rank} waited {delay_text(wait.wait_ns)} for rank {wait.for_rank} in {wait.group.text()}"
        for wait in waits(every)
        if wait.for_rank in late and wait.rank not in late
    ]
    confidence = min(0.92, 0.75 + share / 4)
    missing = ("the processor, disk and GPU times of this rank would say why it is late",)
    return Explanation("STRAGGLER", culprits_of(late, out), confidence, text, tuple(evidence[:4]), missing)
