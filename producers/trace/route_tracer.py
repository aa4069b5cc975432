"""Holds the common part of both route tracers: sending, pauses, naming and publishing of routes.

`probe_routes.py` traces the paths of probes, `flow_routes.py` those of flows. Each tracer decides which
paths to trace and how to send the packets.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, NamedTuple

from producers.settings import FlowSettings, ProbeSettings
from producers.trace.known_route import TracedRoute
from producers.trace.route_names import RouteNames
from producers.trace.tracer import Packet, Trace, Tracer
from schemas import codec
from schemas.topics import R, Topic

Put = Callable[[str, str, bytes | None], None]
"""Publishes a value, or a tombstone for None, under a topic name and a key."""

INCOMPLETE_RETRY_S: Final = 1.0
"""An incomplete trace is repeated after twice this, then four times, and so on up to the usual pause."""
MAX_DOUBLINGS: Final = 20
JITTER: Final = (0.75, 1.25)
"""Pauses are multiplied by a random factor in this range, so that NICs do not trace in step."""
ALL_REST_S: Final = 5.0
"""All routes of the NIC are traced after a route moved, if the last move was at least this long ago."""


class TracedNic(NamedTuple):
    """A NIC whose routes are traced, and the function that publishes these routes."""

    nic: str
    shard: str
    address: str
    put: Put
    registry: codec.Registry | None = None


class RouteTracer(ABC):
    """Traces the routes from one NIC. Subclasses decide which routes to trace."""

    def __init__(
        self, settings: FlowSettings | ProbeSettings, nic: TracedNic, seed: int | None = None
    ) -> None:
        self.nic, self.shard, self.address, self._put, self._registry = nic
        self._names = RouteNames(nic.nic, settings.link_prefix)
        self._random = random.Random(seed)  # noqa: S311  # spreads pauses, no secret
        self._tracer = Tracer(settings.trace_pps, settings.trace_max_hops, self._random.getrandbits(32))
        self._moved_s = float("-inf")

    @abstractmethod
    def _send(self, packet: Packet) -> None:
        """Send one trace packet through the subclass's sockets."""

    @abstractmethod
    def _on_trace(self, trace: Trace, now_s: float) -> None:
        """Process a complete trace: update its route, and publish or trace again if needed."""

    def _run_traces(self, now_s: float) -> None:
        """Send the trace packets that are due, and process the traces that ended."""
        packets, traces = self._tracer.step(now_s)
        for packet in packets:
            self._send(packet)
        for trace in traces:
            self._on_trace(trace, now_s)

    def _jittered(self, pause_s: float) -> float:
        return pause_s * self._random.uniform(*JITTER)

    def _note_traced(self, route: TracedRoute, trace: Trace, now_s: float) -> None:
        """Store a trace's time and plan the route's next trace; double the pause after incomplete traces."""
        route.traced_s = now_s
        if trace.is_complete:
            route.incomplete_traces = 0
            return
        route.incomplete_traces += 1
        doublings = min(route.incomplete_traces, MAX_DOUBLINGS)
        route.due_s = min(route.due_s, now_s + self._jittered(INCOMPLETE_RETRY_S * 2.0**doublings))

    def _all_rested(self, now_s: float) -> bool:
        """Record that a route moved; return whether all routes of the NIC may be traced for that reason."""
        rested = now_s - self._moved_s > ALL_REST_S
        self._moved_s = now_s
        return rested

    def _publish_record(self, topic: Topic[R], peer: str, record: R) -> None:
        """Publish the record of the routes between this NIC and a peer."""
        self._put(topic.name, f"{self.nic}>{peer}", codec.encode(topic.type, record, self._registry))

    def _publish_tombstone(self, topic: Topic, nic: str, peer: str) -> None:
        self._put(topic.name, f"{nic}>{peer}", None)
