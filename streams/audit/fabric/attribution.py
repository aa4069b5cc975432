"""Finds the elements that explain odd paths: a link that all of them cross, or a NIC that they share.

A path is odd if its delay, its loss or its bandwidth deviates. If nearly all paths over one link are odd, the
fault is attributed to that link, not to a pair of NICs. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

MIN_PATHS: Final = 3
"""Number of odd paths that an element must explain; fewer are reported as separate findings."""
CROSSING_SHARE: Final = 0.8
"""Share of the paths over an element that must be odd for the element to explain them."""


@dataclass(slots=True)
class Explained:
    """Maps element to the odd paths that it explains, and lists the odd paths that no element explains."""

    elements: dict[str, list[int]] = field(default_factory=dict)
    crossing: dict[str, int] = field(default_factory=dict)
    """Maps element to the number of all paths over it."""
    rest: list[int] = field(default_factory=list)


def explain(
    paths: Sequence[Sequence[str]],
    outliers: Collection[int],
    share: float = CROSSING_SHARE,
    min_paths: int = MIN_PATHS,
) -> Explained:
    """Return the elements that explain `outliers`; the element that explains most of them comes first.

    `paths`: the elements of each path in order; `outliers`: indices of the odd paths; `share`: part of the
    paths over an element that must be outliers; `min_paths`: number of outliers that it must explain. If
    several elements have the same outliers, the one with the fewest other paths explains them.
    """
    crossing: Counter[str] = Counter()
    for elements in paths:
        crossing.update(set(elements))
    over: dict[str, set[int]] = defaultdict(set)
    for at in outliers:
        for element in paths[at]:
            over[element].add(at)
    result = Explained()
    left = set(outliers)
    while True:
        candidates = [
            (len(at), len(at) / crossing[element], element)
            for element, at in over.items()
            if len(at) >= min_paths and len(at) >= share * crossing[element]
        ]
        if not candidates:
            break
        best = min(candidates, key=lambda candidate: (-candidate[0], -candidate[1], candidate[2]))[2]
        explained = sorted(over[best])
        result.elements[best], result.crossing[best] = explained, crossing[best]
        left -= over[best]
        for at in explained:
            for element in paths[at]:
                over[element].discard(at)
                crossing[element] -= 1
    result.rest = sorted(left)
    return result
