"""Localises links that drop packets above a size, while smaller packets pass.

Each prober reports the largest packet that each of its paths passes (`PathSize`). A path whose limit is below
the MTU of both NICs crosses a link with that limit. A link over which any path passes a larger packet is not
the cause. The fewest links that explain all such paths are published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.records import LinkEvent
from streams.links.evidence.path_table import Links, Routes
from streams.links.rules import NEVER_NS
from streams.runtime.units import NS_PER_S

KEPT_NS: Final = 300 * NS_PER_S
"""Age at which a result no longer counts: the prober checks each path far more often."""
MIN_PATHS: Final = 2
"""Limited paths needed to blame a link, or all its paths if it has fewer: one result may be wrong."""
MIN_NICS: Final = 2
"""NICs that must see the limit, or all NICs with paths over the link if they are fewer."""
CHECKED_SHARE: Final = 0.5
"""Share of a link's paths that must have been checked since the limit appeared, before it is blamed."""
MAX_WAIT_NS: Final = 30 * NS_PER_S
"""Time to wait for checks of the other paths over all links that may be the cause. After it, a single path
suffices if no other path crosses the link."""

CHECK_NS: Final = 5 * NS_PER_S
"""Longest duration of a check: a fault may end after its packets were sent but before its result."""

_Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """A directed link that drops packets above `passed_bytes`. Times are ns of log append time."""

    link: str
    aliased: tuple[str, ...] = ()
    """Other links that explain exactly the same paths."""
    passed_bytes: int = 0
    probed_bytes: int = 0
    """Largest packet that was dropped; 0 if it is no longer known."""
    router_mtu_bytes: int = 0
    """MTU that a router reported; 0 if packets are dropped without a report."""
    since_ns: int = 0
    dscp: int | None = None
    """DSCP of the only class whose large packets are dropped; None if the classes do not differ."""

    @property
    def text(self) -> str:
        """The size limit and what reports it, as readable text."""
        stated = self.router_mtu_bytes
        how = f"a router states an MTU of {stated:,} bytes" if stated else "no router reports it"
        of_class = "" if self.dscp is None else f" of DSCP {self.dscp}"
        size = f"above {self.passed_bytes:,} bytes (NICs send {self.probed_bytes:,})"
        return f"drops packets{of_class} {size}, {how}"


@dataclass(slots=True)
class CheckedPath:
    """The newest size check of one path. `key`: prober, peer and entropy value."""

    key: _Key
    passed_bytes: int
    probed_bytes: int
    router_mtu_bytes: int
    links: Links
    """Links of its requests at the time of the check."""
    at_ns: int
    since_ns: int
    """Time of the first check that found this limit."""
    dscp: int | None = None
    """DSCP of the only class with this limit; None if the classes do not differ."""

    @property
    def is_limited(self) -> bool:
        """Whether the path drops packets that both NICs can send."""
        return self.passed_bytes < self.probed_bytes


class PathSizes:
    """The size of the largest packet that each path of a shard passes. Times are ns of log append time."""

    def __init__(self) -> None:
        self._paths: dict[_Key, CheckedPath] = {}
        self.any_limited = False
        """Whether some path drops large packets."""
        self.first_ns = NEVER_NS
        """Time of the first result."""

    def ingest(self, event: LinkEvent, now_ns: int, routes: Routes) -> None:
        """Ingest the size checks that one event reports; `now_ns`: time of the event."""
        for row in event["sizes"]:
            self.first_ns = min(self.first_ns, now_ns)
            key = (event["nic"], row["peer"], row["path"])
            at_ns = now_ns - row["checked_age_ns"]
            checked = CheckedPath(
                key,
                row["passed_bytes"],
                row["probed_bytes"],
                row["router_mtu_bytes"],
                routes.forward(*key),
                at_ns,
                at_ns,
                row["dscp"],
            )
            before = self._paths.get(key)
            if before is not None and before.passed_bytes == checked.passed_bytes:
                checked.since_ns = before.since_ns
            self._paths[key] = checked
            self.any_limited = self.any_limited or checked.is_limited

    def forget(self, now_ns: int) -> None:
        """Drop the results that are older than `KEPT_NS`."""
        for key in [key for key, path in self._paths.items() if path.at_ns < now_ns - KEPT_NS]:
            del self._paths[key]
        self.any_limited = any(path.is_limited for path in self._paths.values())

    def limits(self, routes: Routes, now_ns: int) -> list[SizeLimit]:
        """Return the links that drop large packets. Ignore paths rerouted since their check."""
        if not self.any_limited:
            return []
        over = self._by_link(routes)
        left = {path.key: path for paths in over.values() for path in paths if path.is_limited}
        limits: list[SizeLimit] = []
        while left:
            explained = _explained_by(left.values(), over)
            if not explained:
                break
            best = min(explained, key=lambda link: (-len(explained[link]), link))
            limited = explained[best]
            same = [link for link in sorted(explained) if explained[link] == limited]
            since_ns = min(path.since_ns for path in limited)
            is_clear = len(limited) >= MIN_PATHS and _is_checked(over[best], since_ns)
            is_clear = is_clear and not _is_open(same, over, since_ns)
            if _is_agreed(limited, over[best]) and (is_clear or since_ns <= now_ns - MAX_WAIT_NS):
                limits.append(_limit(same, limited, since_ns))
            for path in limited:
                del left[path.key]
        return limits

    def disproves(self, limit: SizeLimit, routes: Routes) -> bool:
        """Return whether a packet above a link's limit has passed the link since the limit was seen."""
        return any(
            path.passed_bytes > limit.passed_bytes and path.at_ns > limit.since_ns
            for path in self._by_link(routes).get(limit.link, ())
        )

    def limited_without_link(self, routes: Routes) -> list[CheckedPath]:
        """Return the paths with a size limit that no known link explains.

        Such a path has a route with gaps, or each of its links passed a larger packet between two checks of
        the path. In the second case, one link name stands for several cables.
        """
        over = self._by_link(routes) if self.any_limited else {}
        return [
            path
            for key, path in self._paths.items()
            if path.is_limited
            and (
                not (links := routes.forward(*key))
                or (links == path.links and all(_passed_within(over[link], path) for link in links))
            )
        ]

    def by_known_link(self, routes: Routes) -> dict[str, list[CheckedPath]]:
        """Return, for each link, the checks of the paths known to cross it, even on incomplete routes."""
        paths_by_link = self._by_link(routes)
        for key, path in self._paths.items():
            if not routes.forward(*key):
                for link in dict.fromkeys(routes.known(*key)[0]):
                    paths_by_link[link].append(path)
        return paths_by_link

    def _by_link(self, routes: Routes) -> dict[str, list[CheckedPath]]:
        """Return, for each link, the checks of paths that cross the link now and crossed it when checked."""
        paths_by_link: dict[str, list[CheckedPath]] = defaultdict(list)
        for key, path in self._paths.items():
            if path.links and routes.forward(*key) == path.links:
                for link in dict.fromkeys(path.links):
                    paths_by_link[link].append(path)
        return paths_by_link


def _explained_by(
    paths: Iterable[CheckedPath], over: Mapping[str, list[CheckedPath]]
) -> dict[str, list[CheckedPath]]:
    """Return, for each link, the paths whose size limit it may cause; no larger packet crossed it since."""
    paths_by_link: dict[str, list[CheckedPath]] = defaultdict(list)
    for path in paths:
        for link in dict.fromkeys(path.links):
            if not any(o.passed_bytes > path.passed_bytes and o.at_ns >= path.since_ns for o in over[link]):
                paths_by_link[link].append(path)
    return paths_by_link


def _passed_within(over: Iterable[CheckedPath], limited: CheckedPath) -> bool:
    """Return whether a path in `over` passed a larger packet between two checks of the limited path."""
    before_ns = limited.at_ns - CHECK_NS
    return any(
        path.passed_bytes > limited.passed_bytes and limited.since_ns <= path.at_ns <= before_ns
        for path in over
    )


def _is_agreed(limited: list[CheckedPath], over: list[CheckedPath]) -> bool:
    """Return whether enough NICs and paths over a link see its size limit; a single one may be wrong."""
    nics = len({path.key[0] for path in limited}), len({path.key[0] for path in over})
    return nics[0] >= min(MIN_NICS, nics[1]) and len(limited) >= min(MIN_PATHS, len(over))


def _is_checked(over: list[CheckedPath], since_ns: int) -> bool:
    return sum(path.at_ns >= since_ns for path in over) >= CHECKED_SHARE * len(over)


def _is_open(links: list[str], over: Mapping[str, list[CheckedPath]], since_ns: int) -> bool:
    """Return whether a path that could distinguish `links` has not been checked since `since_ns`."""
    if len(links) < 2:
        return False
    return any(
        path.at_ns < since_ns and not all(link in path.links for link in links)
        for crossed in links
        for path in over[crossed]
    )


def _limit(links: list[str], paths: list[CheckedPath], since_ns: int) -> SizeLimit:
    dscps = {path.dscp for path in paths}
    return SizeLimit(
        links[0],
        tuple(links[1:]),
        max(path.passed_bytes for path in paths),
        max(path.probed_bytes for path in paths),
        max(path.router_mtu_bytes for path in paths),
        since_ns,
        dscps.pop() if len(dscps) == 1 else None,
    )
