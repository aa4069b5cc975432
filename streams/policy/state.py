"""The state of one shard that all policy objectives share: flows, loads, link health, windows and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from schemas.limits import Limits
from schemas.records import ActuatorConfig, ContentionKind, ContentionState, ContentionWindow
from streams.policy.action_budget import ActionBudget
from streams.policy.flows.flow import Flow, Sender
from streams.policy.flows.loads import Links, Loads
from streams.policy.flows.path_health import HEALTHY, Grade, Health, PathHealth
from streams.policy.flows.path_options import PathOptions
from streams.policy.rules import WINDOW_STALE_NS, Rules
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow, LiveFlows
from streams.runtime.units import NS_PER_S

FIRST_PORT: Final = 49_152
LAST_PORT: Final = 65_535
"""If no routes are known, a path is drawn from the ports from `FIRST_PORT` to this one (RFC 6335)."""


class RouteSource(Protocol):
    """Source of the routes that a flow could take."""

    def of(self, flow: LiveFlow) -> Mapping[int, FlowRoute]:
        """Return the route for each entropy value, as traced for the flow's own ports; empty if unknown.

        The same object is returned as long as no route changes.
        """
        ...


@dataclass(slots=True)
class NicDemand:
    """The number and rates of the flows that one NIC sends, or that it receives."""

    flows: int = 0
    bottlenecked: int = 0
    """Number of flows that would send more without a queue."""
    rest_bps: float = 0.0
    """Sum of the rates of the flows that are not bottlenecked."""


class PolicyState:
    """The shared state of one shard. `rate_of` returns a directed link's bit/s, 0 if unknown."""

    def __init__(
        self,
        shard: str,
        epoch: int,
        live: LiveFlows,
        routes: RouteSource,
        rate_of: Callable[[str], int],
        seed: int,
        rules: Rules,
    ) -> None:
        self.shard, self.epoch, self.rules = shard, epoch, rules
        self.live, self.routes, self.rate_of = live, routes, rate_of
        self.health = PathHealth(rules.hold_down_ns, rules.max_hold_down_ns)
        self.options = PathOptions(shard, seed, self.health)
        self.draw = self.options.draw
        self.budget = ActionBudget()
        self.now_ns = 0
        self.seq = 0
        """Sequence number of the next decision."""
        self.flows: dict[str, Flow] = {}
        self.nic_demands: dict[str, NicDemand] = {}
        """Demand of the flows that each NIC sends, by its name, and receives, by ">" and its name."""
        self.loads = Loads(rate_of)
        self.alternating: dict[Sender, float] = {}
        """NICs and jobs that send to one peer after the other, and the bit/s at which each sends."""
        self.slowed: set[str] = set()
        """Fabric links on which flows of alternating NICs are slowed down."""
        self.limits_changed = False
        self._windows: dict[str, ContentionWindow] = {}
        self._config: dict[str, ActuatorConfig] = {}
        self._limits: dict[str, Limits] = {}

    # ------------------------------------------------------------------------------------ inputs

    def begin(self, now_ns: int) -> None:
        """Advance to `now_ns`, the time of a cycle."""
        self.now_ns = now_ns
        self.options.begin(now_ns)

    def take_window(self, window: ContentionWindow) -> bool:
        """Apply a `ContentionWindow`; return False if it is not newer than the last one of its link."""
        previous = self._windows.get(window["link"])
        order = (window["opened_ns"], window["update"])
        if previous is not None and order <= (previous["opened_ns"], previous["update"]):
            return False
        self._windows[window["link"]] = window
        return True

    def take_config(self, records: Mapping[str, ActuatorConfig]) -> None:
        """Apply the configuration records in force, given by record key.

        Flows whose moves failed, or were only observed, may move now: their waiting times end.
        """
        self._config = dict(records)
        self._limits.clear()
        self.limits_changed = True
        for flow in self.flows.values():
            flow.tries, flow.wait_ns = 0, 0
            for _ in range(min(flow.unconfirmed, len(flow.steered))):
                flow.steered.pop()
            flow.unconfirmed = 0

    def limits_of(self, host: str) -> Limits:
        """Return the limits in force at a host."""
        limits = self._limits.get(host)
        if limits is None:
            limits = self._limits[host] = Limits.of(self._config, host)
        return limits

    # ------------------------------------------------------------------------------------ queries

    @property
    def has_incast(self) -> bool:
        """True if an INCAST window is open, even if the window is stale."""
        return any(
            window["kind"] == ContentionKind.INCAST and window["state"] != ContentionState.CLOSED
            for window in self._windows.values()
        )

    def open_windows(self) -> list[ContentionWindow]:
        """Return the open windows that are not stale, ordered by link."""
        return [
            window
            for _, window in sorted(self._windows.items())
            if window["state"] != ContentionState.CLOSED
            and window["updated_ns"] > self.now_ns - WINDOW_STALE_NS
        ]

    def health_of(self, flow: Flow) -> Health:
        """Return the worst health of a flow's two NICs and its links."""
        worst = self.health.of_end(flow.live.nic)
        for other in (self.health.of_end(flow.live.peer), self.options.grade(flow.route)):
            if other is not HEALTHY and other[:2] > worst[:2]:
                worst = other
        return worst

    def is_healthy(self, route: FlowRoute) -> bool:
        """Return True if every link of a route is healthy."""
        return self.options.grade(route).grade is Grade.HEALTHY

    def share_after(self, flow: Flow, links: Links) -> float:
        """Return the highest load (share of link rate) of the flow's new links after a move to `links`."""
        return self.loads.max_share((link for link in links if link not in flow.links), flow.weight)

    def busiest(self, links: list[str] | tuple[str, ...]) -> str:
        """Return the link with the highest load."""
        return max(links, key=lambda name: (self.loads.share(name), name))

    def random_path(self, flow: Flow) -> int:
        """Return a pseudo-random path, other than its own, for a flow whose routes are unknown."""
        count = LAST_PORT - FIRST_PORT + 1
        path = FIRST_PORT + self.draw(flow.live.flow_id, self.seq) % count
        return path if path != flow.path else FIRST_PORT + (path + 1 - FIRST_PORT) % count

    def postpone(self, flow: Flow, now_ns: int) -> None:
        """Postpone the next decision about a flow; the delay doubles with each unconfirmed move."""
        flow.wait_ns = now_ns + min(NS_PER_S << min(flow.tries, 30), self.rules.retry_max_ns)
