"""Use of the action limits, paced flows, and tenant slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from fabrictime.state.action_state import MINUTE_NS, MOVES, ActionState
from schemas.records import ActionOutcome, ActionReport, ActuatorConfig, Decision, Flow

NS_PER_S: Final = 1_000_000_000
BUSIEST_HOSTS: Final = 3
"""Largest number of hosts that `limits_used` lists."""


MOVES_LIMIT: Final = "flows moved, last minute"
ACTIONS_LIMIT: Final = "peak actions within a second, last minute"
"""Texts of the two limits."""


@dataclass(frozen=True, slots=True)
class LimitUse:
    """Use of a limit: flows that a shard moved within a minute, or a host's actions within a second."""

    name: str
    limit: str
    used: int
    max: int
    repaired: int = 0
    """Flows that only local repairs moved; no limit holds these back, but they count."""

    @property
    def excess(self) -> str:
        """Why more was used than is allowed; empty unless it was."""
        if self.used <= self.max:
            return ""
        if self.used - self.repaired <= self.max:
            return f"{self.repaired:,} by local repair, which no limit holds back"
        return "more was allowed before: the limit or the number of flows has fallen"

    @property
    def share(self) -> float:
        """Used share of the limit: above 1 if it is exceeded, 1 if the limit is 0."""
        return self.used / self.max if self.max else 1.0


def limits_used(state: ActionState, now_ns: int) -> list[LimitUse]:
    """Return the use of each shard's limit, and of the limits of the busiest hosts.

    Decisions and local repairs both count, as in the policy.
    """
    moved: dict[str, set[str]] = {}
    recent: dict[str, list[int]] = {}
    for record in _recent(state, now_ns - MINUTE_NS):
        recent.setdefault(record["host"], []).append(record["at_ns"])
        shard_of = record["shard"] or (next(iter(state.shards)) if len(state.shards) == 1 else "")
        if record["action"] in MOVES and shard_of:
            moved.setdefault(shard_of, set()).add(record["flow_id"])
    decided = {
        decision["flow_id"] for decision in state.decisions.values() if decision["at_ns"] > now_ns - MINUTE_NS
    }
    limits = state.limits("*")
    limit_uses = []
    for name in sorted({*state.shards, *moved}):
        shard = state.shards.get(name)
        # The minute's most flows: flows that moved and ended since then were part of the base.
        flows = 0 if shard is None else max((*shard.recent_flows.values(), shard.flows))
        of_shard = moved.get(name, set())
        used, limit = len(of_shard), limits.max_moves(flows)
        limit_uses.append(LimitUse(name, MOVES_LIMIT, used, limit, len(of_shard - decided)))
    busy = [
        LimitUse(
            host,
            ACTIONS_LIMIT,
            _max_within_a_second(times),
            state.limits(host).max_actions_per_s,
        )
        for host, times in recent.items()
    ]
    busy.sort(key=lambda limit_use: (-limit_use.share, limit_use.name))
    return limit_uses + busy[:BUSIEST_HOSTS]


def _recent(state: ActionState, since_ns: int) -> Iterator[Decision | ActionReport]:
    """Yield the decisions and local repairs since a time that count, the oldest first.

    All rate changes of a flow within a second count as one, as they do in the policy.
    """
    rated_ns: dict[str, int] = {}
    records: list[Decision | ActionReport] = [*state.decisions.values(), *_local_repairs(state)]
    for record in sorted(
        (record for record in records if record["at_ns"] > since_ns), key=lambda record: record["at_ns"]
    ):
        flow_id, at_ns = record["flow_id"], record["at_ns"]
        if record["action"] not in MOVES:
            if rated_ns.get(flow_id, 0) > at_ns - NS_PER_S:
                continue
            rated_ns[flow_id] = at_ns
        yield record


def _local_repairs(state: ActionState) -> list[ActionReport]:
    reports = (outcomes.get(ActionOutcome.LOCAL_REPAIR) for outcomes in state.reports.values())
    return [report for report in reports if report is not None]


def _max_within_a_second(times_ns: list[int]) -> int:
    times_ns.sort()
    max_count = begin = 0
    for end, at_ns in enumerate(times_ns):
        while times_ns[begin] <= at_ns - NS_PER_S:
            begin += 1
        max_count = max(max_count, end - begin + 1)
    return max_count


class Slice(NamedTuple):
    """A tenant's guaranteed rate, and the present rate of the tenant's flows."""

    tenant: str
    guarantee_bps: int
    ceiling_bps: int | None
    flows: int
    rate_bps: float


@dataclass(frozen=True, slots=True)
class Pacing:
    """Paced flows as (flow, rate, limit), the lowest limit first, and the slices of tenants that have one."""

    paced: list[tuple[str, float, int]]
    slices: list[Slice]


def pacing(flows: Mapping[str, Flow], configs: Mapping[str, ActuatorConfig]) -> Pacing:
    """Return the paced flows and the tenants' slices, from flow reports and configs."""
    paced = [
        (name, flow["rate_bps"], flow["rate_limit_bps"])
        for name, flow in flows.items()
        if flow["rate_limit_bps"] is not None
    ]
    paced.sort(key=lambda paced_flow: (paced_flow[2], paced_flow[0]))
    guaranteed: dict[str, tuple[int, int | None]] = {}
    for _, record in sorted(configs.items(), reverse=True):  # `*` comes last and overrides
        for slice_config in record["slices"]:
            guaranteed[slice_config["tenant"]] = (slice_config["guarantee_bps"], slice_config["ceiling_bps"])
    slices = []
    for tenant, (guarantee, ceiling) in sorted(guaranteed.items()):
        rates = [flow["rate_bps"] for flow in flows.values() if flow["tenant"] == tenant]
        slices.append(Slice(tenant, guarantee, ceiling, len(rates), sum(rates)))
    return Pacing(paced, slices)
