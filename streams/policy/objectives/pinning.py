"""Uplink pinning: assigns uplinks to NICs that alternate between peers so that their flows do not overlap.

`uplink_assignment.py` explains why this works and assigns the uplinks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

from schemas.ids import window_id
from schemas.reasons import Reason
from schemas.records import ContentionKind, FlowAction, ReasonKind
from streams.policy.flows.flow import Choices, Ends, Flow
from streams.policy.flows.path_health import Grade
from streams.policy.objectives.base import MoveProposal, Proposals
from streams.policy.objectives.uplink_assignment import UplinkAssignment, UplinkRequest
from streams.policy.rules import RELIEF_SHARE, SAFE_SHARE
from streams.policy.state import PolicyState
from streams.runtime.flow_routes import FlowRoute

Move = tuple[Flow, str]
"""A misplaced flow and the uplink that it should use."""


class UplinkPinning:
    """The objective that gives alternating NICs separate uplinks. `rate_of` returns a link's bit/s."""

    def __init__(self, rate_of: Callable[[str], int]) -> None:
        self._assignment = UplinkAssignment(rate_of)
        self._assigned_ns, self._assigned_version = 0, -1
        self._spread: dict[str, tuple[str, ...]] = {}
        """Uplinks over which a NIC spreads its flows evenly, for NICs that do not use a single one."""
        self._planned_bps: dict[str, float] = {}
        """Highest load of each link after all flows have moved to their uplinks, bit/s."""
        self._overlap_since_ns: dict[str, int] = {}
        """Time since which alternating flows have overlapped on each link, ns."""
        self._by_uplink: dict[Ends, tuple[Choices, dict[str, Choices]]] = {}

    def propose(self, state: PolicyState) -> Proposals:
        """Propose moves for flows on the wrong uplink if the links have persistent overlaps."""
        overlaps = _overlaps(state)
        self._overlap_since_ns = {link: self._overlap_since_ns.get(link, state.now_ns) for link in overlaps}
        due_ns = state.now_ns - state.rules.settle_ns
        if min(self._overlap_since_ns.values(), default=state.now_ns) > due_ns:
            return
        flows = [
            flow
            for flow in state.flows.values()
            if flow.sender in state.alternating and len(flow.links) > 2 and flow.choices
        ]
        is_due = state.now_ns >= self._assigned_ns + state.rules.fallbacks_ns
        if is_due or self._assigned_version != state.health.version:
            self._assigned_ns, self._assigned_version = state.now_ns, state.health.version
            self._planned_bps = self._assign(state, flows)
        for flow, uplink, link in self._wanted(state, flows, due_ns):
            window = overlaps[link] or window_id(state.shard, link, self._overlap_since_ns[link])
            reason = Reason.of_window(window)
            path = self._path_by(state, flow, uplink)
            blocked_by = "NO_BETTER_PATH" if path is None else None
            yield MoveProposal(
                flow,
                FlowAction.REROUTE,
                path,
                ReasonKind.COLLISION,
                reason,
                steering=True,
                blocked_by=blocked_by,
            )

    def _wanted(self, state: PolicyState, flows: list[Flow], due_ns: int) -> list[tuple[Flow, str, str]]:
        """Return each misplaced flow, the uplink it should use, and its busiest link with an overlap.

        Moves are ordered by NIC, NICs with the fewest moves first. So even if limits postpone some moves,
        most NICs already have separate uplinks.
        """
        moves = []
        for flow, uplink in self._misplaced(state, flows):
            links = [
                link for link in flow.links[1:-1] if self._overlap_since_ns.get(link, state.now_ns) <= due_ns
            ]
            if links and flow.move is None:
                moves.append((flow, uplink, state.busiest(links)))
        moves_of = Counter(flow.live.nic for flow, _, _ in moves)

        def order(move: tuple[Flow, str, str]) -> tuple[int, int, float, str]:
            live = move[0].live
            return moves_of[live.nic], state.draw(live.nic), -move[0].bps, live.flow_id

        return sorted(moves, key=order)

    def _misplaced(self, state: PolicyState, flows: list[Flow]) -> Iterator[Move]:
        """Yield moves for flows that are off their NIC's uplink, then for flows that are spread unevenly."""
        groups: dict[tuple[str, str, str | None], list[Flow]] = {}
        for flow in flows:
            uplink = self._assignment.of(flow.live.nic)
            if uplink is None:
                groups.setdefault(flow.group, []).append(flow)
            elif flow.links[1] != uplink:
                yield flow, uplink
        for group in groups.values():
            yield from self._uneven(state, group)

    def _uneven(self, state: PolicyState, group: list[Flow]) -> Iterator[Move]:
        """Yield the moves that spread the flows of a group evenly over its uplinks."""
        links = self._spread.get(group[0].live.nic, ())
        used = Counter(flow.links[1] for flow in group)
        even = math.ceil(len(group) / max(1, len(links)))
        for flow in sorted(group, key=lambda member: state.draw(member.live.flow_id)):
            if links and used[flow.links[1]] > even:
                flow_id = flow.live.flow_id
                uplink = min(links, key=lambda link: (used[link], state.draw(flow_id, link)))
                used[flow.links[1]] -= 1
                used[uplink] += 1
                yield flow, uplink

    def _assign(self, state: PolicyState, flows: list[Flow]) -> dict[str, float]:
        """Assign uplinks to NICs; return the planned load of each link, bit/s.

        If a NIC has at least as many flows to each peer as there are uplinks, it gets no uplink of its own.
        Its flows are spread evenly, which takes fewer moves.
        """
        requests: dict[str, UplinkRequest] = {}
        sizes: dict[str, Counter[tuple[str, str | None]]] = {}
        no_records = state.health.no_records
        for flow in flows:
            nic = flow.live.nic
            if nic not in requests:
                requests[nic], sizes[nic] = UplinkRequest(0.0), Counter()
            requests[nic].bps = max(requests[nic].bps, state.alternating[flow.sender])
            requests[nic].flows[flow.links[1]] += 1
            sizes[nic][flow.live.peer, flow.live.job] += 1
            for link, routes in self._choices_by_uplink(flow).items():
                if no_records or any(state.is_healthy(route) for route, _ in routes):
                    requests[nic].reachable[link] += 1
        self._spread = {
            nic: tuple(sorted(request.reachable))
            for nic, request in sorted(requests.items())
            if request.reachable and min(sizes[nic].values()) >= len(request.reachable)
        }
        self._assignment.assign(
            {nic: request for nic, request in requests.items() if nic not in self._spread}, state.draw
        )
        return self._plan(state, flows, sizes)

    def _plan(
        self, state: PolicyState, flows: list[Flow], sizes: dict[str, Counter[tuple[str, str | None]]]
    ) -> dict[str, float]:
        """Return, by link, the highest load after all flows have moved to their uplinks, bit/s."""
        planned: dict[str, dict[str, float]] = {}
        for flow in flows:
            nic, by_uplink = flow.live.nic, self._choices_by_uplink(flow)
            spread, bps = self._spread.get(nic, ()), state.alternating[flow.sender]
            if spread:
                size = sizes[nic][flow.live.peer, flow.live.job]
                bps *= math.ceil(size / len(spread)) / size
            for uplink in spread or (self._assignment.of(nic) or flow.links[1],):
                links = by_uplink[uplink][0][0].links if uplink in by_uplink else flow.links
                for link in links[1:-1]:
                    of_nic = planned.setdefault(link, {})
                    of_nic[nic] = max(of_nic.get(nic, 0.0), bps)
        return {link: sum(of_nic.values()) for link, of_nic in planned.items()}

    def _choices_by_uplink(self, flow: Flow) -> dict[str, Choices]:
        """Return, by uplink, the routes over it that a flow could take."""
        entry = self._by_uplink.get(flow.ends)
        if entry is None or entry[0] is not flow.choices:
            choice_lists: dict[str, list[tuple[FlowRoute, tuple[int, ...]]]] = {}
            for choice in flow.choices:
                if len(choice[0].links) > 2:
                    choice_lists.setdefault(choice[0].links[1], []).append(choice)
            by_uplink = {link: tuple(choices) for link, choices in choice_lists.items()}
            entry = self._by_uplink[flow.ends] = (flow.choices, by_uplink)
        return entry[1]

    def _path_by(self, state: PolicyState, flow: Flow, uplink: str) -> int | None:
        """Return a healthy path that uses an uplink and that the flow has not left recently, or None.

        On every link of the path, the planned load must fit, or be clearly below the highest load on the
        flow's present path.
        """
        left = {links for _, links in flow.steered}
        before = state.loads.max_share(flow.links[1:-1])
        ranked = []
        among = self._choices_by_uplink(flow).get(uplink, ())
        healthy = state.options.available(flow, lambda health: health.grade is Grade.HEALTHY, among)
        for _, route, path in healthy:
            if route.links in left:
                continue
            after = max(
                self._planned_bps.get(link, 0.0) / (state.rate_of(link) or math.inf)
                for link in route.links[1:-1]
            )
            if after <= max(SAFE_SHARE, RELIEF_SHARE * before):
                ranked.append((after, state.draw(flow.live.flow_id, path), path))
        return min(ranked)[-1] if ranked else None


def _overlaps(state: PolicyState) -> dict[str, str]:
    """Return the overloaded fabric links of alternating flows, each with the id of its window, or ''.

    A link counts if its flows are slowed or if it has an open COLLISION contention window.
    """
    overlaps = dict.fromkeys(
        (link for link in sorted(state.slowed) if state.loads.share(link) > SAFE_SHARE), ""
    )
    for window in state.open_windows():
        for link in (window["link"], *window["candidates"]):
            if window["kind"] == ContentionKind.COLLISION and state.loads.share(link) > SAFE_SHARE:
                overlaps[link] = window["window_id"]
    return overlaps
