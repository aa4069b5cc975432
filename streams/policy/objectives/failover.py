"""Failover: moves every flow off a dead or lossy path."""

from __future__ import annotations

from schemas.ids import end_parts, host_of
from schemas.records import FlowAction, ReasonKind
from streams.policy.flows.flow import Flow
from streams.policy.flows.path_health import Grade, Health
from streams.policy.objectives.base import MoveProposal, Proposals
from streams.policy.state import PolicyState


class Failover:
    """The objective that keeps flows on living paths: flows on dead paths first, and heavy flows first."""

    def propose(self, state: PolicyState) -> Proposals:
        """Propose a living path for each flow on a dead or lossy path."""
        if state.health.all_good:
            return
        health_of = ((flow, state.health_of(flow)) for flow in state.flows.values())
        affected = [(flow, health) for flow, health in health_of if health.grade >= Grade.LOSSY]
        affected.sort(key=lambda pair: (-pair[1].grade, -pair[0].bps, state.draw(pair[0].live.flow_id)))
        for flow, health in affected:
            proposal = _proposal(state, flow, health)
            home = flow.path if flow.home is None else flow.home
            admitted = yield proposal
            if admitted:
                flow.home, flow.home_subject = home, health.reason.subject


def _proposal(state: PolicyState, flow: Flow, health: Health) -> MoveProposal:
    is_dead = health.grade is Grade.DEAD
    path, blocked_by = None, None
    if state.now_ns < flow.wait_ns and flow.cause == health.reason:
        blocked_by = "WAITING"
    else:
        if flow.cause != health.reason:  # earlier tries were for another reason
            flow.tries = 0
        path = _target(state, flow, is_dead)
        if path is None:
            blocked_by = "NO_LIVING_PATH" if is_dead else "NO_BETTER_PATH"
    kind = ReasonKind.DOWN if is_dead else ReasonKind.GREY
    return MoveProposal(
        flow, FlowAction.REROUTE, path, kind, health.reason, urgent=True, blocked_by=blocked_by
    )


def _grade_of_end_links(state: PolicyState, flow: Flow) -> Grade:
    """Return the grade of the worst cable of a flow's own hosts, which every path of the flow crosses."""
    hosts = {flow.host, host_of(flow.live.peer)}
    links = [link for link in flow.route.all_links if not hosts.isdisjoint(map(_node, link.split(">")))]
    return state.health.of_links(links, state.now_ns).grade


def _node(end: str) -> str:
    return end_parts(end).node


def _target(state: PolicyState, flow: Flow, is_dead: bool) -> int | None:
    """Return the best alternative path, or None. A flow never moves from a lossy path to a lossy one."""
    worst_end = max(state.health.of_end(end).grade for end in (flow.live.nic, flow.live.peer))
    if worst_end is Grade.DEAD:
        return None
    worst_allowed = Grade.LOSSY if is_dead else Grade.DAMPENED
    if not flow.routes:
        can_help = flow.links and _grade_of_end_links(state, flow) <= worst_allowed
        return state.random_path(flow) if can_help else None
    ranked = [
        (health[:2], state.share_after(flow, route.links), state.draw(flow.live.flow_id, path), path)
        for health, route, path in state.options.available(
            flow, lambda path_health: path_health.grade <= worst_allowed
        )
    ]
    return min(ranked)[-1] if ranked else None
