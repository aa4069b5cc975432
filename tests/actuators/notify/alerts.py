"""Alerts and notes for the tests of the notifier."""

from __future__ import annotations

from typing import Any

from actuators.notify.notes import NoteIndex
from actuators.notify.plan import GroupPlan, PlanRules
from actuators.notify.positions import Positions
from fabrictime.commands.alert.notes import new_note
from schemas.records import Alert
from tests.records import make

S = 1_000_000_000
PLACE = ("fabric.alerts", 0)
T0 = 1_800_000_000 * S


def alert(subject: str = "h1", kind: str = "AGENT", state: str = "RAISED", **fields: Any) -> Alert:
    raised_ns = fields.pop("raised_ns", T0)
    plain: dict[str, Any] = {
        "alert_id": f"{kind}:{subject}:{raised_ns}",
        "subject": subject,
        "kind": kind,
        "state": state,
        "severity": "WARNING",
        "shard": "default",
        "update": 0 if state == "RAISED" else 1,
        "raised_ns": raised_ns,
        "updated_ns": raised_ns,
        "cleared_ns": None if state == "RAISED" else raised_ns + 10 * S,
        "text": f"{subject}: its own prober is in trouble",
    }
    return make("Alert", **{**plain, **fields})


def note(subject: str, **fields: Any) -> Any:
    return {**new_note(subject, T0), **fields}


def rules(**changes: Any) -> PlanRules:
    plain: dict[str, Any] = {
        "group_wait_ns": 5 * S,
        "group_interval_ns": 30 * S,
        "repeat_interval_ns": 3600 * S,
        "max_per_minute": 1000,
        "resend_ns": 60 * S,
    }
    return PlanRules(**{**plain, **changes})


class People:
    """A plan with a clock, whose receiver accepts all: `sent` holds the notifications."""

    def __init__(self, notes: NoteIndex | None = None, handled_ns: int = T0, **changes: Any) -> None:
        self.notes = notes or NoteIndex()
        self.positions = Positions({PLACE: decode(0)})
        self.plan = GroupPlan(rules(**changes), self.notes, self.positions, handled_ns)
        self.offset = 0
        self.sent: list[Any] = []

    def take(self, record: Alert, at_ns: int) -> None:
        self.plan.take(record, (PLACE, self.offset), at_ns)
        self.offset += 1

    def run(self, until_ns: int, step_ns: int = S, from_ns: int = T0) -> list[Any]:
        """Advance the clock; return what was sent meanwhile."""
        before = len(self.sent)
        for at_ns in range(from_ns, until_ns + 1, step_ns):
            while (notification := self.plan.next(at_ns)) is not None:
                self.sent.append(notification)
                self.plan.accepted(notification, at_ns)
        return self.sent[before:]

    @property
    def committed(self) -> int:
        return self.positions.commits(0, everywhere=True)[PLACE][0]


def decode(offset: int) -> Any:
    from actuators.notify.positions import Mark

    return Mark(offset)
