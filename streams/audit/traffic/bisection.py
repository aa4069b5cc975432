"""Finds the slow members of a group by measurements of its parts: bisection, then swapped partners. Pure.

A collective is as fast as its slowest member. So a part that is fast clears all of its members, and a slow
part has at least one slow member. A slow group is halved until two or three members are left. Each of them is
then measured in pairs with cleared partners: a member is slow if it is slow with two partners. A member that
is slow with only one partner indicates the path between the two, and stays a suspect.

Interference only lowers a bandwidth, so a low measurement is repeated, and the higher value counts.

Number of measurements (runs): with d slow members of n, a level of the bisection measures at most 2 d parts,
half of them twice, and has ceil(log2 n) levels; the pairs take at most 5 runs for each slow member.
`run_limit` is above this number for two slow members (simulated in test_bisection.py), and the search always
ends there. Without a minimum, all neighbours are measured first, in n / 2 runs, to find the usual bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

Measure = Callable[[tuple[str, ...]], float]
"""Returns the bandwidth of a collective over the given members; 0 if it fails or computes wrong values."""

SHARE_OF_USUAL: Final = 0.9
"""Share of the pairs' usual bandwidth below which a part is slow. Published baselines warn at 87 to 90% of
the expected bandwidth."""
USUAL_QUANTILE: Final = 0.75
"""Quantile of the pairs' bandwidths that counts as usual. Slow members and interference only lower it."""
SMALLEST: Final = 3
"""Largest number of members of a part that is not halved: each half needs two."""


@dataclass(frozen=True, slots=True)
class Bisected:
    """Outcome of a search; members keep their given order."""

    slow: tuple[str, ...]
    suspects: tuple[str, ...]
    """Members for which the measurements did not decide."""
    together: tuple[tuple[str, ...], ...]
    """Groups that are slow although both of their halves are fast: the path between the halves is slow."""
    minimum: float
    """Bandwidth below which a part is slow; 0 if there was nothing to compare it with."""
    runs: int
    is_complete: bool
    """False if the limit of runs ended the search."""


def run_limit(members: int, *, has_minimum: bool) -> int:
    """Return the largest number of measurements for a group of `members` hosts."""
    pairs = 0 if has_minimum else math.ceil(members / 2)
    return pairs + 8 * math.ceil(math.log2(max(2, members))) + 8


def bisect(members: Sequence[str], measure: Measure, minimum: float | None = None) -> Bisected:
    """Return the slow members of a group. `minimum`: bandwidth of a fast group; None: learn it from pairs.

    With a minimum, the group is assumed to be slow: the caller has measured it. Raises ValueError for fewer
    than two members, or if a member is named twice.
    """
    if len(members) < 2 or len(set(members)) < len(members):
        raise ValueError(f"members {', '.join(members)}: expected at least two different ones")
    search = _Search(tuple(members), measure, run_limit(len(members), has_minimum=minimum is not None))
    is_complete = True
    try:
        if minimum is None:
            search.learn()
        else:
            search.minimum = minimum
            search.halve(search.members)
        search.swap()
    except _LimitReached:
        is_complete = False
    return search.outcome(is_complete)


class _LimitReached(Exception):
    """Raised when no further measurement is allowed."""


class _Search:
    def __init__(self, members: tuple[str, ...], measure: Measure, limit: int) -> None:
        self.members, self.minimum = members, 0.0
        self._measure, self._limit, self._runs = measure, limit, 0
        self._cleared: list[str] = []
        self._slow: set[str] = set()
        self._open: list[tuple[str, ...]] = []
        """Slow parts that are too small to be halved, or that are not yet measured."""
        self._together: list[tuple[str, ...]] = []

    def learn(self) -> None:
        """Measure neighbours, or all pairs of three members; their upper quartile is the usual bandwidth."""
        names = self.members
        pairs = [tuple(names[index : index + 2]) for index in range(0, len(names) - 1, 2)]
        if len(names) % 2:
            pairs.append((names[-1], names[0]))
        if len(names) == SMALLEST:
            pairs = list(combinations(names, 2))
        values = {pair: self._run(pair) for pair in pairs}
        if len(values) == 1:
            return
        quantile = sorted(values.values())[math.ceil(USUAL_QUANTILE * len(values)) - 1]
        self.minimum = SHARE_OF_USUAL * quantile
        for pair, value in values.items():
            if value >= self.minimum or not self._is_slow(pair):
                self._clear(pair)
            else:
                self._open.append(pair)

    def halve(self, group: tuple[str, ...]) -> None:
        """Halve a slow group repeatedly until its parts have at most three members."""
        if len(group) <= SMALLEST:
            self._open.append(group)
            return
        middle = len(group) // 2
        halves = group[:middle], group[middle:]
        self._open += halves  # if the limit of runs ends the search in between
        slow = [half for half in halves if self._is_slow(half)]
        for half in halves:
            if half not in slow:
                self._open.remove(half)
                self._clear(half)
        if not slow:
            self._together.append(group)
        for half in slow:
            self._open.remove(half)
            self.halve(half)

    def swap(self) -> None:
        """Measure each undecided member in pairs with cleared partners, to decide whether it is slow."""
        if self._undecided() and not self._cleared:
            self._clear(next((pair for pair in self._mixed() if not self._is_slow(pair)), ()))
        if not self._cleared:
            return
        for member in self._undecided():
            partners = [candidate for candidate in self._cleared if candidate != member][:2]
            if all(self._is_slow((member, partner)) for partner in partners):
                self._slow.add(member)
            elif not self._is_slow((member, partners[-1])):
                self._clear((member,))

    def outcome(self, is_complete: bool) -> Bisected:
        """Return the members, grouped by their state."""
        suspects = set(self._undecided())
        return Bisected(
            tuple(member for member in self.members if member in self._slow),
            tuple(member for member in self.members if member in suspects),
            tuple(self._together),
            self.minimum,
            self._runs,
            is_complete,
        )

    def _mixed(self) -> Iterator[tuple[str, ...]]:
        """Yield pairs of undecided members that were not measured together."""
        for pair in combinations(self._undecided(), 2):
            if pair not in self._open and pair[::-1] not in self._open:
                yield pair

    def _undecided(self) -> list[str]:
        members = dict.fromkeys(member for group in self._open for member in group)
        return [member for member in members if member not in self._cleared and member not in self._slow]

    def _clear(self, members: Sequence[str]) -> None:
        self._cleared += [member for member in members if member not in self._cleared]

    def _is_slow(self, group: tuple[str, ...]) -> bool:
        return self._run(group) < self.minimum and self._run(group) < self.minimum

    def _run(self, group: tuple[str, ...]) -> float:
        if self._runs >= self._limit:
            raise _LimitReached
        self._runs += 1
        return self._measure(group)
