"""The outputs of one policy cycle: messages to publish, and actions that were suppressed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from schemas import records
from schemas.reasons import Reason
from schemas.records import Decision, Fallbacks
from schemas.topics import Topic

R = TypeVar("R")


class Outgoing(NamedTuple, Generic[R]):
    """One message to publish: its topic, key and record."""

    topic: Topic[Any]
    key: str
    record: R


class SuppressedAction(NamedTuple):
    """An action that an objective proposed and admission refused."""

    flow_id: str
    action: str
    cause: str
    """A limit forbids it: PROTECTED, NOT_ALLOWED, ACTIONS_PER_S, MOVED_SHARE. There is no suitable path:
    NO_LIVING_PATH, NO_BETTER_PATH. COOL_DOWN: the flow was steered recently. WAITING: an earlier decision
    failed and will be retried. NOT_MOVABLE: the flow's endpoint does not support moves."""
    kind: records.ReasonKind
    """Kind of the reason, as in `Decision.reason`."""
    reason: Reason

    def record(self) -> records.SuppressedAction:
        """Return the action as an element of a `PolicyCycle`."""
        return {
            "flow_id": self.flow_id,
            "action": self.action,
            "cause": self.cause,
            "reason": self.reason.record(self.kind),
        }


@dataclass(slots=True)
class CycleResult:
    """The decisions, fallbacks and suppressed actions of one evaluation of the shard."""

    decisions: list[Outgoing[Decision]] = field(default_factory=list)
    fallbacks: list[Outgoing[Fallbacks]] = field(default_factory=list)
    suppressed: list[SuppressedAction] = field(default_factory=list)
