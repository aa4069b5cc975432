"""The state that policy keeps for one flow: path, demand, and the move that awaits confirmation."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.ids import host_of
from schemas.reasons import NO_REASON, Reason
from streams.policy.flows.loads import Demand, Links, Weight
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow

Choices = tuple[tuple[FlowRoute, tuple[int, ...]], ...]
"""Distinct routes, each with the entropy values that select it."""
Ends = tuple[str, str, int]
"""NIC, peer and the peer's port. No two sockets between the same ends may share a source port."""
Sender = tuple[str, str | None]
"""A NIC and a job: the flows of a collective from one NIC alternate, those of its other jobs need not."""


class Move(NamedTuple):
    """A decided move that no flow report has confirmed yet."""

    to_path: int
    via: frozenset[int]
    """Paths on which reports may show the flow until the move is confirmed."""
    until_ns: int
    seq: int


class History(NamedTuple):
    """Earlier decisions about a flow, made by a previous owner of the shard."""

    home: int | None
    subject: str
    steered: tuple[tuple[int, int], ...]
    """Time of each steering move, ns, and the path that the flow left."""


class RouteAlternatives(NamedTuple):
    """The alternative routes of a flow, cached for one current route and one set of choices."""

    route: FlowRoute
    choices: Choices
    others: list[tuple[FlowRoute, tuple[int, ...], int, Links]]
    """Each route, its entropy values, how many links it shares with the flow's, and its other data links."""


NO_ROUTE: Final = FlowRoute(())
NO_WEIGHT: Final = Weight("", ("", None), 0.0, 0.0)


@dataclass(slots=True)
class Flow:
    """One flow. `path` and `links` already include all decided moves, even unconfirmed ones."""

    live: LiveFlow
    since_ns: int = 0
    """Time of the first report."""
    routes: Mapping[int, FlowRoute] = field(default_factory=dict)
    choices: Choices = ()
    path: int = 0
    route: FlowRoute = NO_ROUTE
    demand: Demand = field(default_factory=Demand)
    bps: float = 0.0
    """Estimated demand, bit/s."""
    weight: Weight = NO_WEIGHT
    queues: Links = ()
    """Links of its path that have a queue."""
    bottlenecked: bool = False
    """True if one of these queues limits the flow."""
    move: Move | None = None
    home: int | None = None
    """Path that the flow had before its links failed."""
    home_subject: str = ""
    home_from_ns: int = 0
    """Earliest time of a return to `home`."""
    tries: int = 0
    wait_ns: int = 0
    """Earliest time of the next decision, ns; a dead or lossy link other than `cause` is decided at once."""
    cause: Reason = NO_REASON
    """Reason of the last move."""
    steered: deque[tuple[int, Links]] = field(default_factory=deque)
    """Time of each recent steering move, ns, and the links that the flow left."""
    unconfirmed: int = 0
    """Number of the newest steering moves that no report has confirmed."""
    avoid: dict[int, int] = field(default_factory=dict)
    """For each path that an actuator could not apply: time until which it is not retried, ns."""
    alternatives: RouteAlternatives | None = None
    ranked: tuple[int, Choices, list[int]] | None = None
    """The last ranking: the flow's path and choices then, and its fallback paths in order."""
    min_rtt_ns: int | None = None
    slow_since_ns: int | None = None

    @property
    def links(self) -> Links:
        """Directed links that the flow's data crosses, in order."""
        return self.route.links

    @property
    def ends(self) -> Ends:
        """NIC, peer and peer port of the flow."""
        return self.live.nic, self.live.peer, self.live.peer_port

    @property
    def host(self) -> str:
        """Host that sends the flow."""
        return host_of(self.live.nic)

    @property
    def group(self) -> tuple[str, str, str | None]:
        """NIC, peer and job; flows that share all three send at the same time."""
        return self.live.nic, self.live.peer, self.live.job

    @property
    def sender(self) -> Sender:
        """NIC that sends the flow, and the job that owns it."""
        return self.live.nic, self.live.job

    @property
    def exclusive(self) -> bool:
        """True for flows of sockets: no two of them between the same ends may share a source port."""
        return "/sock:" in self.live.flow_id

    def update_delay(self, now_ns: int, slow_ns: int) -> None:
        """Set `slow_since_ns`: the time since which the round trip exceeds its minimum by over `slow_ns`."""
        rtt_ns = self.live.rtt_ns
        if rtt_ns is None:
            return
        self.min_rtt_ns = rtt_ns if self.min_rtt_ns is None else min(self.min_rtt_ns, rtt_ns)
        if rtt_ns <= self.min_rtt_ns + slow_ns:
            self.slow_since_ns = None
        elif self.slow_since_ns is None:
            self.slow_since_ns = now_ns

    def forget_steering(self, until_ns: int) -> None:
        """Forget the flow's steering moves up to `until_ns`: they no longer lengthen its cooldown."""
        while self.steered and self.steered[0][0] <= until_ns:
            self.steered.popleft()

    def cooldown_end_ns(self, first_ns: int, max_ns: int) -> int:
        """Return the earliest time of the next steering move, ns; 0 if the flow may move now.

        The pause doubles with each recent move, from `first_ns` up to `max_ns`.
        """
        if not self.steered:
            return 0
        pause_ns = min(first_ns << min(len(self.steered) - 1, 30), max_ns)
        return self.steered[-1][0] + pause_ns
