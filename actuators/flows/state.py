"""The state of one flow: its fence, its move, its leases and the decisions that wait for it.

This module is pure. The applier passes in times and paths, and saves the result of `to_json` in the
journal, from which the next process restores the flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypedDict

from schemas.records import ActionOutcome, ActionReport, Decision, FlowAction

FlowFence = tuple[int, int]
Token = Any

MOVES: Final = frozenset({FlowAction.REROUTE, FlowAction.RESTORE})
SECOND_NS: Final = 1_000_000_000
MAX_LEASE_NS: Final = 600 * SECOND_NS
"""Longest time for which a rate stays in force without renewal, whatever a decision or stepped clock says."""


class ReportedFields(TypedDict):
    """The fields of a decision that are copied to its report."""

    decision_id: str
    shard: str
    epoch: int
    seq: int
    flow_id: str
    action: FlowAction


class Intent(TypedDict):
    """A command that is being carried out: its decision, and the flow's path before the command."""

    decision_id: str
    from_path: int | None


def key_of(flow_id: str) -> str:
    """Return the key by which an endpoint knows a flow: the flow id without host and boot."""
    return flow_id.split("/", 2)[-1]


def fence_of(decision: Decision | ReportedFields) -> FlowFence:
    """Return (epoch, seq) of a decision."""
    return decision["epoch"], decision["seq"]


def reported_fields(record: Decision | ActionReport) -> ReportedFields:
    """Return the fields of a decision that are copied to its report."""
    return {
        "decision_id": record["decision_id"],
        "shard": record["shard"],
        "epoch": record["epoch"],
        "seq": record["seq"],
        "flow_id": record["flow_id"],
        "action": record["action"],
    }


@dataclass(slots=True)
class Lease:
    """A rate limit that ends at `expires_at_ns` (fabric time) unless it is renewed."""

    rate_bps: int
    expires_at_ns: int
    at_ns: int
    decision: ReportedFields

    def is_over(self, now_ns: int) -> bool:
        """Return True if the lease has expired, or ends so far ahead that the clock must have stepped."""
        return self.expires_at_ns <= now_ns or self.expires_at_ns > now_ns + 2 * MAX_LEASE_NS


@dataclass(slots=True)
class FlowState:
    """The state of one flow. The fields above `busy` are saved in the journal."""

    flow_id: str
    fence: FlowFence = (-1, -1)
    outcome: ActionOutcome | None = None
    intent: Intent | None = None
    unpublished: ActionReport | None = None
    """Report of the newest decision, until the log has stored it."""
    first_path: int | None = None
    """The flow's path before its first move; None if it was never moved."""
    set_path: int | None = None
    moved_ns: int = 0
    moved_by: ReportedFields | None = None
    leases: dict[FlowAction, Lease] = field(default_factory=dict)
    repair_report: ActionReport | None = None
    """The newest local repair's report, until the log stores it. Its outcome is UNKNOWN until answered."""
    busy: bool = False
    """True while a command is unanswered."""
    waiting: deque[tuple[Decision | None, Token]] = field(default_factory=deque)
    """Decisions in order of arrival; None stands for an order to revert."""
    report_restored: bool = False
    """True if a former process wrote `unpublished`."""
    repair_restored: bool = False
    """True if a former process wrote `repair_report`."""
    suppressed_ns: int | None = None
    """Monotonic time of the last report of a suppressed local repair."""
    rated_ns: int | None = None
    """Monotonic time of the last rate change that counted against the action limit."""

    @property
    def rate_bps(self) -> int | None:
        """The lowest rate of the flow's leases, bit/s; None if it has no lease."""
        return min((lease.rate_bps for lease in self.leases.values()), default=None)

    @property
    def in_force(self) -> int:
        """The number of actions on the flow that are in force."""
        return len(self.leases) + (self.moved_by is not None)

    def action_times(self) -> list[int]:
        """Return the fabric times at which the actions in force were taken."""
        moved = [] if self.moved_by is None else [self.moved_ns]
        return [*moved, *(lease.at_ns for lease in self.leases.values())]

    def set_moved(self, from_path: int | None, to_path: int, decision: ReportedFields, now_ns: int) -> None:
        """Record a move; a flow that returns to its first path counts as never moved."""
        if self.first_path is None or from_path != self.set_path:
            self.first_path = from_path
        self.set_path, self.moved_by, self.moved_ns = to_path, decision, now_ns
        if to_path == self.first_path:
            self.clear_move()

    def clear_move(self) -> None:
        """Forget that the flow was moved."""
        self.moved_by = self.first_path = self.set_path = None

    def end(self) -> None:
        """Clear all actions, because the flow no longer exists."""
        self.leases.clear()
        self.clear_move()
        self.intent = None

    def set_lease(self, kind: FlowAction, lease: Lease | None) -> None:
        """Set the lease of a kind of action; None removes it."""
        if lease is None:
            self.leases.pop(kind, None)
        else:
            self.leases[kind] = lease

    def was_done(self, decision: Decision, path: int) -> bool:
        """Return True if a former process had begun this move and the flow has reached the target path."""
        intent = self.intent
        return (
            intent is not None
            and intent["decision_id"] == decision["decision_id"]
            and decision["action"] in MOVES
            and path == decision["to_path"] != intent["from_path"]
        )

    def take_restored_report(self, decision: Decision) -> ActionReport | None:
        """Return a former process's report of this decision, but only at the first call; else None."""
        if not self.report_restored or fence_of(decision) != self.fence or self.unpublished is None:
            return None
        self.report_restored = False
        return self.unpublished

    def drop_published(self, report: ActionReport) -> bool:
        """Drop the flow's saved reports that the log has stored; return True if any were dropped."""
        dropped = False
        if self.repair_report is not None and _same(self.repair_report, report):
            self.repair_report, self.repair_restored, dropped = None, False, True
        if self.unpublished is not None and _same(self.unpublished, report):
            self.unpublished, self.report_restored, dropped = None, False, True
        return dropped

    def to_json(self) -> dict[str, Any]:
        """Return the state from which the next process restores the flow."""
        return {
            "flow_id": self.flow_id,
            "fence": list(self.fence),
            "outcome": self.outcome,
            "intent": self.intent,
            "unpublished": self.unpublished,
            "first_path": self.first_path,
            "set_path": self.set_path,
            "moved_ns": self.moved_ns,
            "moved_by": self.moved_by,
            "leases": {kind: asdict(lease) for kind, lease in self.leases.items()},
            "repair_report": self.repair_report,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> FlowState:
        """Return the flow with a former process's state. Raises KeyError, TypeError or ValueError."""
        leases = {kind: Lease(**lease) for kind, lease in state["leases"].items()}
        flow = cls(**{**state, "fence": tuple(state["fence"]), "leases": leases})
        flow.report_restored = flow.unpublished is not None
        flow.repair_restored = flow.repair_report is not None
        return flow


def _same(one: ActionReport, other: ActionReport) -> bool:
    return (one["decision_id"], one["outcome"]) == (other["decision_id"], other["outcome"])
