"""Where to look for paths that switches lead elsewhere: a switch whose neighbour's carrier goes takes another
way at once, and nothing is lost that could tell.

In: the hops of this NIC's paths, how many NICs there are. Out: the ways up to where paths turn down again,
how often each may be looked at, and whether what was found is a reason to trace more. Pure. A look is one
packet that ends where the way turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

__all__ = ["TokenBucket", "pause_s", "uplink_routes"]

Hops = tuple[str | None, ...]
Path = TypeVar("Path")

LEAST_PAUSE_S: Final = 0.125


def uplink_routes(paths: Iterable[tuple[Path, Hops]]) -> dict[Hops, list[Path]]:
    """Return the paths of each way up, by the hops up to its turn, the one in the middle: that has to answer.
    A path that never leaves its first switch goes none."""
    found: dict[Hops, list[Path]] = {}
    for path, hops in paths:
        turn = (len(hops) + 1) // 2
        if len(hops) > 1 and hops[turn - 1] is not None:
            found.setdefault(hops[:turn], []).append(path)
    return found


def pause_s(nics: int, ways: int, switch_pps: float) -> float:
    """Return the s between two looks at all of a NIC's ways up, so that no switch answers more than
    `switch_pps` of such looks a second: the one where ways turn is asked by all `nics`, at most, once for
    each of the `ways` that a NIC has to it. Raises ValueError unless switch_pps > 0."""
    if switch_pps <= 0:
        raise ValueError(f"switch_pps: {switch_pps:g}, expected more than 0")
    return max(LEAST_PAUSE_S, nics * ways / switch_pps)


class TokenBucket:
    """Traces that others give a reason for: every path `rounds` times at once, and once in `rest_s` in the
    long run. Where switches spray packets, no two traces agree, and each would be a reason for more."""

    def __init__(self, rest_s: float, rounds: int) -> None:
        self._rest_s, self._rounds = rest_s, rounds
        self._spent = 0.0
        self._at_s = float("-inf")

    def take(self, paths: int, now_s: float) -> bool:
        """Return whether one more trace may be asked for, of so many paths, and count it."""
        self._spent = max(0.0, self._spent - (now_s - self._at_s) * paths / self._rest_s)
        self._at_s = now_s
        allowed = self._spent < self._rounds * paths
        self._spent += allowed
        return allowed
