"""Where to look for paths that switches lead elsewhere: a switch whose neighbour's carrier goes takes another
way at once, and nothing is lost that could tell.

In: the hops of this NIC's paths, how many NICs share its first switch. Out: the ways up to where paths turn
down again, and how often each may be looked at. Pure. A look is a trace that ends where the way turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

__all__ = ["pause_s", "turn_of", "ways_up"]

Hops = tuple[str | None, ...]
Path = TypeVar("Path")

LEAST_PAUSE_S: Final = 0.25


def turn_of(hops: Hops) -> int:
    """Return how many hops a way goes up: to its middle, and 0 where it never leaves its first switch."""
    return (len(hops) + 1) // 2 if len(hops) > 1 else 0


def ways_up(paths: Iterable[tuple[Path, Hops]]) -> dict[Hops, list[Path]]:
    """Return the paths of each way up, by the hops up to its turn, which has to be one that answers."""
    found: dict[Hops, list[Path]] = {}
    for path, hops in paths:
        turn = turn_of(hops)
        if turn and hops[turn - 1] is not None:
            found.setdefault(hops[:turn], []).append(path)
    return found


def pause_s(nics: int, neighbours: int, ways: int, switch_pps: float) -> float:
    """Return the s between two looks at all of a NIC's ways up, so that no switch answers more than
    `switch_pps` of such looks a second: its first switch is asked by all its `neighbours`, itself one, once a
    way, and the one where ways turn by all `nics` once, at most. Raises ValueError unless switch_pps > 0."""
    if switch_pps <= 0:
        raise ValueError(f"switch_pps: {switch_pps:g}, expected more than 0")
    return max(LEAST_PAUSE_S, max(nics, neighbours * ways) / switch_pps)
