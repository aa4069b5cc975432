"""Fencing: rejects decisions of an older policy owner, and older decisions for the same flow."""

from __future__ import annotations

from typing import Final

from actuators.flows.state import FlowState, fence_of
from schemas.records import ActionOutcome, Decision

MAX_SHARDS: Final = 1000
"""Number of shards whose epoch is kept; these are the shards that appeared last."""


class Fence:
    """The newest known epoch of each shard's policy owner."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}

    def advance(self, shard: str, epoch: int) -> bool:
        """Note the epoch of a shard's policy owner; return True if it is newer than the previous one."""
        if epoch <= self.epochs.get(shard, -1):
            return False
        self.epochs.pop(shard, None)
        self.epochs[shard] = epoch
        if len(self.epochs) > MAX_SHARDS:
            del self.epochs[next(iter(self.epochs))]
        return True

    def refusal(self, flow: FlowState, decision: Decision) -> ActionOutcome | None:
        """Return the outcome of a decision that must not be applied; None if the decision is new.

        The outcome is STALE, DUPLICATE or the outcome that was reported for this decision before.
        """
        fence = fence_of(decision)
        if fence < flow.fence or decision["epoch"] < self.epochs.get(decision["shard"], 0):
            return ActionOutcome.STALE
        if fence == flow.fence:
            return ActionOutcome.DUPLICATE if flow.outcome == ActionOutcome.APPLIED else flow.outcome
        return None
