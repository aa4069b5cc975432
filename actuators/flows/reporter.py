"""Builds an `ActionReport` for each attempt to act on a flow, and passes it on for publication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from actuators.flows.state import FlowState, ReportedFields, Token
from schemas.records import ActionOutcome, ActionReport

MAX_DETAIL: Final = 300
"""Largest number of characters of a report's detail."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to act on a flow: its decision, former path and start."""

    decision: ReportedFields
    from_path: int | None
    token: Token = None
    """Passed back with the report; None if no offset waits for it."""
    began_ns: int | None = None
    """Monotonic time at which the command was sent; None if no command was sent."""


class Reporter:
    """Reports the actions of one host. `path_of` returns the path of a flow of this host, else None."""

    def __init__(
        self,
        host: str,
        publish: Callable[[ActionReport, Token], None],
        path_of: Callable[[str], int | None],
        now_ns: Callable[[], int],
        clock_ns: Callable[[], int],
    ) -> None:
        """Set host and clocks. `now_ns`: returns fabric time; `clock_ns`: returns a clock without steps."""
        self._host, self._publish, self._path_of = host, publish, path_of
        self._now_ns, self._clock_ns = now_ns, clock_ns
        self.config_version = 0

    def record(
        self,
        attempt: Attempt,
        outcome: ActionOutcome,
        detail: str = "",
        flow: FlowState | None = None,
        how: str = "",
    ) -> ActionReport:
        """Return the report of an attempt, with the flow's present path and rate."""
        took_ns = 0 if attempt.began_ns is None else self._clock_ns() - attempt.began_ns
        return {
            **attempt.decision,
            "host": self._host,
            "at_ns": self._now_ns(),
            "outcome": outcome,
            "from_path": attempt.from_path,
            "to_path": self._path_of(attempt.decision["flow_id"]),
            "rate_bps": None if flow is None else flow.rate_bps,
            "how": how,
            "took_ns": took_ns,
            "config_version": self.config_version,
            "detail": detail[:MAX_DETAIL],
        }

    def report(
        self,
        attempt: Attempt,
        outcome: ActionOutcome,
        detail: str = "",
        flow: FlowState | None = None,
        how: str = "",
    ) -> None:
        """Publish the report of an attempt."""
        self._publish(self.record(attempt, outcome, detail, flow, how), attempt.token)

    def publish(self, record: ActionReport, token: Token = None) -> None:
        """Publish a report that `record` returned."""
        self._publish(record, token)

    def republish(self, record: ActionReport, token: Token = None) -> None:
        """Publish a former process's report again, with the present time."""
        self._publish({**record, "at_ns": self._now_ns()}, token)
