"""Finds cables that end at another switch than planned, from routes that contradict the plan. Pure.

A route enters a switch by one cable and leaves it by another, so both cables end at this switch. Ends that
meet at a switch form a group, whatever the plan states. If the plan places the ends of a group at several
switches, the larger part is right: a misplaced cable contradicts all its neighbours, while each neighbour
contradicts only that cable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from schemas.ids import link_ends
from schemas.topology import End, Topology, end_text, split_end
from streams.runtime.switch_names import Groups

UNKNOWN_PORT = "?"


class Misplaced(NamedTuple):
    """A cable end with its planned and its actual switch, which differ."""

    planned: End
    node: str


def misplaced(routes: Iterable[Iterable[str]], topology: Topology) -> dict[End, Misplaced]:
    """Return the near ends of misplaced cables, with their planned and their actual far switch.

    `routes`: the directed links of each route in order; a port may be unknown (`?`). A group is left out if
    the plan places equally many of its ends at two switches: either part could be wrong.
    """
    groups = Groups()
    ends: set[End] = set()
    for one, other in {pair for route in routes for pair in _meetings(route)}:
        if topology.far(one) is not None and topology.far(other) is not None:
            groups.join(end_text(one), end_text(other))
            ends |= {one, other}
    by_switch: dict[str, dict[End, End]] = defaultdict(dict)
    for end in ends:
        far = topology.far(end)
        if far is not None:
            by_switch[groups.find(end_text(end))][end] = far
    misplaced_ends = {}
    for planned in by_switch.values():
        ranked = Counter(far.node for far in planned.values()).most_common(2)
        if len(ranked) < 2 or ranked[0][1] == ranked[1][1]:
            continue
        node = ranked[0][0]
        misplaced_ends.update({end: Misplaced(far, node) for end, far in planned.items() if far.node != node})
    return misplaced_ends


def _meetings(route: Iterable[str]) -> Iterator[tuple[End, End]]:
    """Yield the far ends of the cables by which a route enters a switch and leaves it."""
    for link, following in pairwise(route):
        came, left = split_end(link_ends(link)[0]), split_end(link_ends(following)[1])
        if UNKNOWN_PORT not in (came.port, left.port):
            yield came, left
