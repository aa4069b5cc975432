"""Common part of the two route tracers: pacing, acceptance of traces, naming and publishing of routes.

`probe_routes.py` traces the paths of probes, `flow_routes.py` those of flows. Both decide by themselves which
paths to trace, and how the packets are sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final

from producers.trace.route_names import LinkPrefix, NamedPath, name_path
from producers.trace.tracer import KnownRoute, Trace, Tracer
from schemas import codec
from schemas.topics import R, Topic
from schemas.topology import Topology

__all__ = ["Change", "Put", "RouteTracer", "without_since"]

Put = Callable[[str, str, bytes | None], None]
"""Publishes a value, or a tombstone, under a topic name and a key."""

INCOMPLETE_RETRY_S: Final = 1.0
"""An incomplete trace is repeated after twice this, then four times, and so on up to the usual pause."""
MAX_DOUBLINGS: Final = 20
JITTER: Final = (0.75, 1.25)
"""Pauses are spread by these factors, so that NICs do not trace in step."""
ALL_REST_S: Final = 5.0
"""A route that moved has all routes of the NIC traced, but not more often than this."""
REPUBLISH_S: Final = 900.0
MIN_RECORD_GAP_S: Final = 0.5
"""Time between two records of a pair, unless one of its routes moved."""


class Change(Enum):
    """Effect of a trace on a known route."""

    NONE = auto()
    UNCONFIRMED = auto()
    REFINED = auto()
    MOVED = auto()


class RouteTracer:
    """Traces the routes from one NIC; a base class without policy of its own."""

    def __init__(
        self,
        *,
        nic: str,
        shard: str,
        address: str,
        trace_pps: float,
        max_hops: int,
        link_prefix: LinkPrefix,
        put: Put,
        registry: codec.Registry | None,
        seed: int | None,
        system_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.nic, self.shard, self.address = nic, shard, address
        self._link_prefix, self._put, self._registry, self._system_ns = link_prefix, put, registry, system_ns
        self._random = random.Random(seed)  # noqa: S311  # spreads pauses, no secret
        self._tracer = Tracer(trace_pps, max_hops, self._random.getrandbits(32))

    def _jittered(self, pause_s: float) -> float:
        return pause_s * self._random.uniform(*JITTER)

    def _retry_pause_s(self, incomplete_traces: int) -> float:
        """Return the pause after consecutive incomplete traces of a path."""
        return self._jittered(INCOMPLETE_RETRY_S * 2.0 ** min(incomplete_traces, MAX_DOUBLINGS))

    def _new_route(self, trace: Trace) -> KnownRoute:
        return KnownRoute(trace.hops, trace.reached, self._system_ns())

    def _update_route(self, known: KnownRoute, trace: Trace, expected: bool = False) -> Change:
        """Add a trace to a known route and return its effect."""
        before = (known.hops, known.reached, known.changes)
        if known.update(trace, self._system_ns(), expected):
            return Change.UNCONFIRMED
        if (known.hops, known.reached, known.changes) == before:
            return Change.NONE
        return Change.REFINED if known.changes == before[2] else Change.MOVED

    def _name_route(
        self,
        peer: str,
        port: int,
        hops: tuple[str | None, ...],
        reached: bool,
        peer_first_hop: str | None,
        topology: Topology,
    ) -> NamedPath:
        return name_path(
            self.nic,
            peer,
            hops,
            reached,
            path=port,
            peer_first_hop=peer_first_hop,
            topology=topology,
            link_prefix=self._link_prefix,
        )

    def _publish_record(self, topic: Topic[R], peer: str, record: R) -> None:
        value = codec.encode(topic.type, record, self._registry)
        self._put(topic.name, f"{self.nic}>{peer}", value)

    def _publish_tombstone(self, topic: Topic, nic: str, peer: str) -> None:
        self._put(topic.name, f"{nic}>{peer}", None)


def without_since(rows: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return rows without the time of the last change, to compare their content."""
    return [{key: value for key, value in row.items() if key != "since_ns"} for row in rows]
