"""Paths that a flow can take now: the grade of each route, and a free source port for it.

All choices are deterministic: ties are broken by a hash of the seed, the shard and the flow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from streams.policy.flows.flow import Choices, Ends, Flow
from streams.policy.flows.path_health import HEALTHY, Health, PathHealth
from streams.runtime.flow_routes import FlowRoute


class PathOptions:
    """The path options of one shard's flows at the time given to `begin`."""

    def __init__(self, shard: str, seed: int, health: PathHealth) -> None:
        self.now_ns = 0
        self.reported: frozenset[str] = frozenset()
        """Directed links that any health record names."""
        self.used_ports: set[tuple[Ends, int]] = set()
        """Source ports that sockets use now, or will use after all decided moves."""
        self._shard, self._seed, self._health = shard, seed, health
        self._choices: dict[Ends, tuple[Mapping[int, FlowRoute], Choices]] = {}
        self._graded: dict[FlowRoute, Health] = {}
        """Health of each route as of `now_ns`."""

    def begin(self, now_ns: int) -> None:
        """Set the time of the cycle, and grade paths by the link health at this time."""
        self.now_ns, self._graded, self.reported = now_ns, {}, self._health.reported

    def grade(self, route: FlowRoute) -> Health:
        """Return the health of the worst link of a route, in both directions."""
        if self.reported.isdisjoint(route.links) and self.reported.isdisjoint(route.reverse):
            return HEALTHY
        health = self._graded.get(route)
        if health is None:
            health = self._graded[route] = self._health.of_links(route.all_links, self.now_ns)
        return health

    def choices_of(self, flow: Flow) -> Choices:
        """Return the distinct routes that a flow could take, each with the entropy values that select it."""
        entry = self._choices.get(flow.ends)
        if entry is None or entry[0] is not flow.routes:
            grouped: dict[FlowRoute, list[int]] = {}
            for path, route in flow.routes.items():
                grouped.setdefault(route, []).append(path)
            entry = (flow.routes, tuple((route, tuple(paths)) for route, paths in grouped.items()))
            self._choices[flow.ends] = entry
        return entry[1]

    def available(
        self, flow: Flow, accept: Callable[[Health], bool], among: Choices | None = None
    ) -> Iterator[tuple[Health, FlowRoute, int]]:
        """Yield health, route and a free path of each alternative route (in `among`) that `accept` admits."""
        exclusive, no_records = flow.exclusive, self._health.no_records
        draw, own = self.draw(flow.live.flow_id), flow.route
        for route, paths in flow.choices if among is None else among:
            if route == own:
                continue
            health = HEALTHY if no_records else self.grade(route)
            if not accept(health):
                continue
            path = self.free_path(flow, paths, exclusive, draw)
            if path is not None:
                yield health, route, path

    def free_path(self, flow: Flow, paths: Sequence[int], exclusive: bool, draw: int) -> int | None:
        """Return one of `paths`, chosen by `draw`, that the flow can take now; None if all are taken."""
        if exclusive or flow.avoid or flow.path in paths:
            paths = [path for path in paths if self._is_free(flow, path, exclusive)]
        return paths[draw % len(paths)] if paths else None

    def _is_free(self, flow: Flow, path: int, exclusive: bool) -> bool:
        if path == flow.path or flow.avoid.get(path, 0) > self.now_ns:
            return False
        return not (exclusive and (flow.ends, path) in self.used_ports)

    def draw(self, *items: object) -> int:
        """Return a pseudo-random number: a hash of the seed, the shard and the items."""
        text = "|".join(map(str, (self._seed, self._shard, *items)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
