"""Other paths of each flow, ranked, for actuators that have to move it by themselves (`Fallbacks`).

In: a shard's flows, their options, loads of links, what was said of links since. Out: `Ranks.decide`: the
`Fallbacks` that changed. Of many flows some are ranked in each round, so that none takes long. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from itertools import takewhile
from typing import Any, Final

from schemas.limits import Limits
from schemas.topics import MAX_ELEMENTS
from streams.policy.flow import Flow
from streams.policy.loads import Links, Loads
from streams.policy.path_health import Grade
from streams.policy.path_options import Options

__all__ = ["Ranks"]

Record = dict[str, Any]

RANKED: Final = 4
"""Other paths that are told of each flow."""
RANKED_A_ROUND: Final = 400
"""Of more flows the other paths are ranked in turn, some in each round, so that no round takes long."""
DRAWS: Final = 0x9E3779B97F4A7C15
"""Odd, and near 2^64 over the golden ratio: products with it scatter (Knuth, TAOCP 3, 6.4)."""
LOAD_STEPS: Final = 4
"""Steps of load in which other paths are told apart, so that ranks rest."""


class Ranks:
    """The ranks of one shard's epoch. `every_ns`: least time between two rankings of a host's flows, but for
    those that a link's health is about."""

    def __init__(
        self, shard: str, epoch: int, every_ns: int, options: Options, limits_of: Callable[[str], Limits]
    ) -> None:
        self._shard, self._epoch, self._every_ns = shard, epoch, every_ns
        self._options, self._limits_of = options, limits_of
        self._loads = Loads(lambda link: 0)
        self._ranked_ns: dict[str, int] = {}
        """Host to when all its flows' other paths were ranked."""
        self._told: dict[str, tuple[int, list[Record]]] = {}
        """Host to how many rankings of it were told, and the last of them."""

    def decide(
        self, flows: Iterable[Flow], loads: Loads, said: frozenset[str], *, limits_are_new: bool
    ) -> list[Record]:
        """Rank the other paths of flows: each host's once in `every_ns`, and at once those that cross, or
        could, the links of which something new was `said`. Return the `Fallbacks` of each host whose ranks
        changed."""
        self._loads = loads
        of_host: dict[str, list[Flow]] = {host: [] for host in self._told}
        for f in flows:
            of_host.setdefault(f.host, []).append(f)
        due = self._due_hosts(of_host)
        found: list[Record | None] = []
        for host, mine in sorted(of_host.items()):
            if host in due:
                found.append(self._rank_host(host, mine, mine))
            elif host in self._ranked_ns:  # of others an earlier owner's ranks hold until their turn
                anew = [f for f in mine if self._must_rank(f, said)]
                if anew or limits_are_new:
                    found.append(self._rank_host(host, mine, anew))
        return [record for record in found if record is not None]

    def _must_rank(self, f: Flow, said: frozenset[str]) -> bool:
        """Whether a flow's ranks may lead it wrong: it was moved, or could cross links of which something new
        was `said`, or takes other ways by its ports now and could cross any of which something was."""
        if f.others is None:
            return False
        path, choices, _ = f.others
        if path != f.path:
            return True
        links = said if choices is f.choices else self._options.touched
        return bool(links) and not all(
            links.isdisjoint(way.links) and links.isdisjoint(way.reverse) for way, _ in f.choices
        )

    def _due_hosts(self, of_host: Mapping[str, Sized]) -> set[str]:
        """Return the hosts whose flows are to be ranked by now, those that wait the longest: of many flows
        some in each round, so that none takes long."""
        waiting = [host for host in of_host if host not in self._ranked_ns]
        due_ns = self._options.now_ns - self._every_ns
        waiting += sorted((host for host, at_ns in self._ranked_ns.items() if at_ns <= due_ns),
                          key=lambda host: (self._ranked_ns[host], host))  # fmt: skip
        most, chosen = RANKED_A_ROUND, set()
        for host in waiting:
            if most <= 0:
                break
            most -= len(of_host.get(host, ()))
            chosen.add(host)
            self._ranked_ns[host] = self._options.now_ns
        return chosen

    def _rank_host(self, host: str, flows: list[Flow], anew: list[Flow]) -> Record | None:
        """Rank the other paths of some of a host's flows; return what is to be told, None where all are as
        they were told."""
        limits = self._limits_of(host)
        fresh = {f.live.flow_id for f in anew}
        ranked: list[Record] = []
        for f in sorted(flows, key=lambda f: (-f.bps, f.live.flow_id)):
            if "MOVE" not in f.live.can or f.live.job in limits.protected_jobs or len(ranked) >= MAX_ELEMENTS:
                f.others = None
                continue
            if f.live.flow_id in fresh:
                f.others = f.path, f.choices, self._others(f)
            others = [path for path in f.others[2] if path in f.ways] if f.others is not None else []
            if others:
                ranked.append({
                    "flow_id": f.live.flow_id, "path": f.path, "other_paths": others,
                    "links": list(f.way.all_links),
                    "other_links": [list(f.ways[path].all_links) for path in others],
                    "job": f.live.job,
                })  # fmt: skip
        ranked.sort(key=lambda each: each["flow_id"])
        count, told = self._told.get(host, (0, None))  # once an epoch at least: an older one's are over
        if ranked == told:
            return None
        self._told[host] = (count + 1, ranked)
        return {
            "host": host, "shard": self._shard, "epoch": self._epoch, "seq": count,
            "at_ns": self._options.now_ns, "config_version": limits.version, "flows": ranked,
        }  # fmt: skip

    def _others(self, f: Flow) -> list[int]:
        """Return a flow's other living paths: well ones first, then those that share least with its own."""
        if f.elsewhere is None or f.elsewhere[0] is not f.way or f.elsewhere[1] is not f.choices:
            own, links = frozenset(f.way.all_links), f.links
            f.elsewhere = f.way, f.choices, [
                (way, paths, len(own.intersection(way.all_links)),
                 tuple(each for each in way.links if each not in links))
                for way, paths in f.choices if way != f.way
            ]  # fmt: skip
        found: list[tuple[tuple[tuple[Grade, float], int, int], int]] = []
        loads: dict[Links, int] = {}
        exclusive, draw = f.exclusive, self._options.draw(f.live.flow_id)
        for way, paths, shared, new in f.elsewhere[2]:
            state = self._options.grade(way)
            if state.grade is Grade.DEAD:
                continue
            path = self._options.port(f, paths, exclusive, draw)
            if path is None:
                continue
            load = loads.get(new)
            if load is None:
                load = loads[new] = round(LOAD_STEPS * self._loads.worst(new, f.weight))
            found.append(((state[:2], shared, load), path))
        found.sort()
        if len(found) > RANKED:  # ties are broken by a draw, only of what may be told
            last = found[RANKED - 1][0]
            found = list(takewhile(lambda each: each[0] <= last, found))
        drawn = sorted((rank, (draw ^ path) * DRAWS & 2**64 - 1, path) for rank, path in found)
        return [path for _, _, path in drawn[:RANKED]]
