"""What policy knows of one flow.

In: nothing by itself, `Policy` keeps it. Out: `Flow` and what it is made of: ways that differ, the decision
whose effect is awaited, what an earlier owner did with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streams.policy.loads import Demand, Links, Weight
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow

__all__ = ["NOWHERE", "Choices", "Flow", "Move", "Past"]

Choices = tuple[tuple[FlowRoute, tuple[int, ...]], ...]
"""Ways that differ, each with the entropy values that lead there."""


class Move(NamedTuple):
    """A decision whose effect no report has shown yet."""

    to_path: int
    via: frozenset[int]
    """Paths on which reports may still show the flow."""
    until_ns: int
    seq: int


class Past(NamedTuple):
    """What an earlier owner of the policy did with a flow."""

    home: int | None
    subject: str
    steered: tuple[tuple[int, int], ...]
    """When, ns, and from which path."""


NOWHERE: Final = FlowRoute(())
NO_WEIGHT: Final = Weight("", ("", None), 0.0, 0.0)


@dataclass(slots=True)
class Flow:
    """One flow. `path` and `links`: where it is, or will be once what is decided is done."""

    live: LiveFlow
    since_ns: int = 0
    """When it was first seen."""
    ways: Mapping[int, FlowRoute] = field(default_factory=dict)
    choices: Choices = ()
    path: int = 0
    way: FlowRoute = NOWHERE
    demand: Demand = field(default_factory=Demand)
    bps: float = 0.0
    """What it would send."""
    weight: Weight = NO_WEIGHT
    queues: Links = ()
    """Links with a queue that it was last reported on."""
    squeezed: bool = False
    """Whether one of those holds it back."""
    move: Move | None = None
    home: int | None = None
    """The path that it was on before its links went bad."""
    home_subject: str = ""
    home_from_ns: int = 0
    """It does not go home before."""
    tries: int = 0
    wait_ns: int = 0
    """Nothing is decided for it before, but for another dead or lossy link than `cause`."""
    cause: str = ""
    """What it was moved for last."""
    steered: deque[tuple[int, Links]] = field(default_factory=deque)
    """When it was steered of late, ns, and which links it left."""
    unproven: int = 0
    """How many of those, the newest, no report has shown yet."""
    avoid: dict[int, int] = field(default_factory=dict)
    """Paths that could not be taken, and until when, ns, they are not tried again."""
    elsewhere: tuple[FlowRoute, Choices, list[tuple[FlowRoute, tuple[int, ...], int, Links]]] | None = None
    """Its way, its choices, and of each of these that is another: the way, its ports, how many links it has
    in common with its own, and those of its data that are new."""
    others: tuple[int, Choices, list[int]] | None = None
    """Its path and its choices, and how others were ranked then."""
    least_rtt_ns: int | None = None
    slow_since_ns: int | None = None

    @property
    def links(self) -> Links:
        """The links of its data."""
        return self.way.links

    @property
    def ends(self) -> tuple[str, str, int]:
        """What flows share of which no two may have the same source port."""
        return self.live.nic, self.live.peer, self.live.peer_port

    @property
    def host(self) -> str:
        """Its sender's host."""
        return self.live.nic.partition("/")[0]

    @property
    def exclusive(self) -> bool:
        """Whether no two flows between the same ends may have one source port: so it is with sockets."""
        return "/sock:" in self.live.flow_id
