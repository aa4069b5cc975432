"""The policy of one shard: moves flows off failed and congested paths, returns them, and limits rates.

`Policy` passes its inputs to the shared state and runs the objectives in a fixed order. It does no I/O and
reads no clock, and a seeded hash breaks ties. So the same inputs give the same decisions. The mode only
affects actuators: policy makes the same decisions in OBSERVE and in ACT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from schemas.limits import EVERYONE
from schemas.records import (
    ActionReport,
    ActuatorConfig,
    ContentionWindow,
    Decision,
    FlowAction,
    LinkHealth,
    LinkQueues,
)
from schemas.topics import FALLBACKS
from streams.policy.admission import Admission
from streams.policy.cycle import CycleResult, Outgoing
from streams.policy.flows.demands import estimate_demands
from streams.policy.flows.fallbacks import FallbackRanking
from streams.policy.flows.flow import NO_ROUTE, Flow
from streams.policy.flows.loads import Loads
from streams.policy.flows.moves import MoveTracker
from streams.policy.objectives.base import Objective
from streams.policy.objectives.collision_relief import CollisionRelief
from streams.policy.objectives.failback import Failback
from streams.policy.objectives.failover import Failover
from streams.policy.objectives.pinning import UplinkPinning
from streams.policy.objectives.rate_limiting import RateLimiting
from streams.policy.objectives.repath import Repath
from streams.policy.rates.leases import Rates
from streams.policy.rules import Rules
from streams.policy.state import PolicyState, RouteSource
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow, LiveFlows
from streams.runtime.units import NS_PER_S

STEERED_MEMORY_NS: Final = 600 * NS_PER_S
"""Time for which steering moves are remembered: a flow does not return to links that it left."""


class Policy:
    """The policy of one shard. `epoch` grows with each new owner; `rate_of` returns a directed link's bit/s,
    0 if unknown. The caller advances `flows` before each `decide`."""

    def __init__(
        self,
        shard: str,
        epoch: int,
        flows: LiveFlows,
        routes: RouteSource,
        rate_of: Callable[[str], int],
        *,
        seed: int = 0,
        rules: Rules | None = None,
    ) -> None:
        self._state = state = PolicyState(shard, epoch, flows, routes, rate_of, seed, rules or Rules())
        self._moves = MoveTracker(state)
        self._rates = Rates(rate_of)
        self._admission = Admission(state)
        self._failover = Failover()
        self._objectives: tuple[Objective, ...] = (
            self._failover,
            UplinkPinning(rate_of),
            CollisionRelief(),
            Repath(),
            Failback(),
            RateLimiting(self._rates),
        )
        self._ranking = FallbackRanking(
            shard, epoch, state.rules.fallbacks_ns, state.options, state.limits_of
        )
        self._seen_health_version = 0

    # ------------------------------------------------------------------------------------ inputs

    def recover(self, decisions: Iterable[Decision]) -> None:
        """Restore state from the `Decision`s of earlier epochs, in the order of the decisions."""
        self._moves.recover(decisions)

    def take_health(self, subject: str, record: LinkHealth | None) -> None:
        """Apply a subject's `LinkHealth`; None removes the subject."""
        if record is None or record["shard"] == self._state.shard:
            self._state.health.take(subject, record)

    def take_contention(self, record: ContentionWindow) -> None:
        """Update the contention windows of the shard from a `ContentionWindow` record."""
        if record["shard"] == self._state.shard and self._state.take_window(record):
            self._rates.take_contention(record)

    @property
    def needs_queues(self) -> bool:
        """True if policy needs `LinkQueues` now: an incast is open, or flows are rate-limited."""
        return bool(self._rates.in_force()) or self._state.has_incast

    def take_queues(self, record: LinkQueues) -> None:
        """Update the queue delays that pacing uses from a `LinkQueues` record."""
        if record["shard"] == self._state.shard:
            self._rates.take_queues(record)

    def take_config(self, records: Mapping[str, ActuatorConfig]) -> None:
        """Apply the `fabric.config` records in force, given by record key."""
        self._state.take_config(records)
        self._rates.take_slices(records[EVERYONE]["slices"] if EVERYONE in records else ())

    def take_action(self, record: ActionReport) -> None:
        """Update moves and rate leases from an actuator's `ActionReport`."""
        state = self._state
        if record["shard"] not in (state.shard, ""):  # a local repair belongs to no shard
            return
        if record["action"] in (FlowAction.PACE, FlowAction.SLICE) and record["flow_id"] in state.flows:
            if record["epoch"] == state.epoch:
                self._rates.take_action(record)
        else:
            self._moves.take_action(record)

    # ------------------------------------------------------------------------------------ cycles

    @property
    def needs_urgent_cycle(self) -> bool:
        """True if link health changed since the last cycle."""
        return self._state.health.version != self._seen_health_version

    def decide_urgent(self, now_ns: int) -> CycleResult:
        """Run only failover, without refreshing the flows. The caller must call `decide` right afterwards."""
        cycle = self._begin(now_ns)
        self._admission.run(self._failover.propose(self._state))
        return cycle

    def decide(self, now_ns: int) -> CycleResult:
        """Run a full cycle at `now_ns`, fabric time."""
        state, cycle = self._state, self._begin(now_ns)
        self._refresh()
        for objective in self._objectives:
            self._admission.run(objective.propose(state))
        limits_changed, state.limits_changed = state.limits_changed, False
        records = self._ranking.update(
            state.flows.values(), state.loads, state.health.pop_changed(), limits_changed=limits_changed
        )
        cycle.fallbacks += [Outgoing(FALLBACKS, record["host"], record) for record in records]
        return cycle

    def counts(self) -> tuple[int, int]:
        """Return the number of flows, and how many of the flows can move to a known route."""
        flows = self._state.flows.values()
        return len(flows), sum(bool(flow.routes) and "MOVE" in flow.live.can for flow in flows)

    def _begin(self, now_ns: int) -> CycleResult:
        self._state.begin(now_ns)
        self._seen_health_version = self._state.health.version
        return self._admission.begin()

    # ------------------------------------------------------------------------------------ flows

    def _refresh(self) -> None:
        """Refresh flow state, demand estimates and link loads."""
        state = self._state
        reported = state.live.open_flows()
        reported_ids = {live.flow_id for live in reported}
        for flow_id in [flow_id for flow_id in state.flows if flow_id not in reported_ids]:
            del state.flows[flow_id]
        queued = {link for window in state.open_windows() for link in (window["link"], *window["candidates"])}
        state.loads = Loads(state.rate_of)
        state.options.used_ports = set()
        for live in reported:
            self._refresh_flow(live, queued)
        estimate_demands(state)

    def _refresh_flow(self, live: LiveFlow, queued: set[str]) -> None:
        state = self._state
        flow = state.flows.get(live.flow_id)
        is_new = flow is None
        has_report = flow is None or flow.live is not live
        if flow is None:
            flow = state.flows[live.flow_id] = Flow(live, state.now_ns)
        routes = state.routes.of(live)
        if has_report or flow.routes is not routes or flow.move is not None or flow.path != live.path:
            self._place(flow, live, routes, is_new)
        flow.forget_steering(state.now_ns - STEERED_MEMORY_NS)
        if flow.exclusive:
            state.options.used_ports |= {(flow.ends, flow.path), (flow.ends, live.path)}
        flow.queues = tuple(filter(queued.__contains__, live.hops or flow.links)) if queued else ()
        if has_report:
            flow.demand.update(
                live.rate_bps,
                bool(flow.queues),
                state.now_ns,
                live.system_ns,
                live.bytes_total,
                live.busy_share,
            )
            flow.update_delay(state.now_ns, state.rules.slow_ns)

    def _place(self, flow: Flow, live: LiveFlow, routes: Mapping[int, FlowRoute], is_new: bool) -> None:
        """Set a flow's path and route from its report, its known routes and its unconfirmed move."""
        flow.live, flow.routes = live, routes
        flow.choices = self._state.options.choices_of(flow)
        if is_new:
            self._moves.restore(flow)
        self._moves.confirm(flow)
        flow.path = live.path if flow.move is None else flow.move.to_path
        flow.route = routes.get(flow.path, NO_ROUTE)
        if flow.path == live.path and live.hops and live.hops != flow.route.links:
            flow.route = FlowRoute(live.hops, flow.route.reverse)
