"""The interface of policy objectives.

An objective inspects the state of a shard and proposes moves or rates. `Admission` applies the limits and
cooldowns to each proposal, and turns the admitted ones into decisions.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from schemas.reasons import Reason
from schemas.records import FlowAction, ReasonKind
from streams.policy.flows.flow import Flow
from streams.policy.rates.leases import WantedRate
from streams.policy.state import PolicyState


@dataclass(frozen=True, slots=True)
class MoveProposal:
    """A proposal to move a flow to another path."""

    flow: Flow
    action: FlowAction
    """REROUTE or RESTORE."""
    path: int | None
    """The new path; None only if `blocked_by` is set."""
    kind: ReasonKind
    """DOWN, GREY, COLLISION, DELAY or HEALED."""
    reason: Reason
    """The health record, contention window or flow that causes the move."""
    urgent: bool = False
    """True if the move may use the reserved part of the limits."""
    steering: bool = False
    """True if the move only improves performance: it is subject to the cooldown, and clears `Flow.home`."""
    blocked_by: str | None = None
    """Why the objective itself cannot make the move, if so; recorded as a suppressed action."""


@dataclass(frozen=True, slots=True)
class RateProposal:
    """A proposal to limit the rate of a flow, or to end the limit."""

    flow: Flow
    rate: WantedRate


Proposal = MoveProposal | RateProposal
Proposals = Generator[Proposal, bool, None]
"""Generator of proposals. The caller sends back whether it admitted each one and changed the state."""


class Objective(Protocol):
    """One goal of the policy, such as failover; proposes moves or rates that serve this goal."""

    def propose(self, state: PolicyState) -> Proposals:
        """Yield the moves or rates that this objective proposes for the state at `state.now_ns`."""
        ...
