"""What a flow could take now: ways by how far their links can be relied on, each with a port that is free.

In: `PathHealth`, ports as they are taken, a seed. Out: `Options`: the grade of a way, other ways with a port
of their own, a draw that breaks ties. Pure: the same inputs give the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from streams.policy.flow import Choices, Flow
from streams.policy.path_health import WELL, PathHealth, State
from streams.runtime.flow_routes import FlowRoute

__all__ = ["Options"]


class Options:
    """The options of one shard's flows, as of the moment that `begin` was told."""

    def __init__(self, shard: str, seed: int, wellness: PathHealth) -> None:
        self.now_ns = 0
        self.touched: frozenset[str] = frozenset()
        """Links of which anything was said."""
        self.ports: set[tuple[tuple[str, str, int], int]] = set()
        """Ports that sockets have, or will once what is decided is done."""
        self._shard, self._seed, self._wellness = shard, seed, wellness
        self._choices: dict[tuple[str, str, int], tuple[Mapping[int, FlowRoute], Choices]] = {}
        self._graded: dict[FlowRoute, State] = {}
        """Ways to what is known of them, as of `now_ns`."""

    def begin(self, now_ns: int) -> None:
        """Go on to a moment, with what is known of links by now."""
        self.now_ns, self._graded, self.touched = now_ns, {}, self._wellness.touched

    def grade(self, way: FlowRoute) -> State:
        """Return what is known of the worst link of a way, there and back."""
        if self.touched.isdisjoint(way.links) and self.touched.isdisjoint(way.reverse):
            return WELL
        state = self._graded.get(way)
        if state is None:
            state = self._graded[way] = self._wellness.of_links(way.all_links, self.now_ns)
        return state

    def choices_of(self, f: Flow) -> Choices:
        """Return the ways that differ of those that a flow could take."""
        known = self._choices.get(f.ends)
        if known is None or known[0] is not f.ways:
            grouped: dict[FlowRoute, list[int]] = {}
            for path, way in f.ways.items():
                grouped.setdefault(way, []).append(path)
            known = (f.ways, tuple((way, tuple(paths)) for way, paths in grouped.items()))
            self._choices[f.ends] = known
        return known[1]

    def open_to(
        self, f: Flow, grades: Callable[[State], bool], among: Choices | None = None
    ) -> Iterator[tuple[State, FlowRoute, int]]:
        """Give the ways other than its own that a flow could take now, each with a port of its own."""
        exclusive, calm, draw, own = f.exclusive, self._wellness.calm, self.draw(f.live.flow_id), f.way
        for way, paths in f.choices if among is None else among:
            if way == own:
                continue
            state = WELL if calm else self.grade(way)
            if not grades(state):
                continue
            path = self.port(f, paths, exclusive, draw)
            if path is not None:
                yield state, way, path

    def port(self, f: Flow, paths: Sequence[int], exclusive: bool, draw: int) -> int | None:
        """Return one of the ports of a way that a flow can take now, None where there is none."""
        if exclusive or f.avoid or f.path in paths:
            paths = [
                path for path in paths
                if f.avoid.get(path, 0) <= self.now_ns and path != f.path
                and not (exclusive and (f.ends, path) in self.ports)
            ]  # fmt: skip
        return paths[draw % len(paths)] if paths else None

    def draw(self, *what: object) -> int:
        """Return a number that is random but the same for the same seed, shard and words."""
        words = "|".join(map(str, (self._seed, self._shard, *what)))
        return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big")
