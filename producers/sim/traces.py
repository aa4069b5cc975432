"""Makes the records of known routes, as the agents at both ends of each path trace them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from producers.trace.route_names import NamedPath
from schemas.records import Leg, PathMap, PathMaps, PathSource


class KnownPath(NamedTuple):
    """A probed path: its ends, its source port, and the links of its requests and of its answers."""

    nic: str
    peer: str
    path: int
    requests: Sequence[str]
    answers: Sequence[str]


def path_records(paths: Iterable[KnownPath], *, traced_ns: int = 0) -> Iterator[PathMaps]:
    """Yield the `PathMaps` record of each pair; its NIC traces the requests, its peer the answers."""
    pairs: dict[tuple[str, str], list[PathMap]] = {}
    for nic, peer, path, requests, answers in paths:
        for pair, leg, links in (
            ((nic, peer), Leg.REQUEST, requests),
            ((peer, nic), Leg.ANSWER, answers),
        ):
            named = NamedPath(tuple(links), True, PathSource.TRACED)
            pairs.setdefault(pair, []).append(named.row(path, leg))
    for (nic, peer), rows in pairs.items():
        yield {
            "nic": nic,
            "peer": peer,
            "shard": "fabric",
            "run": 1,
            "traced_ns": traced_ns,
            "paths": rows,
        }
