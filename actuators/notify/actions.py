"""Summarises the actions on flows and nodes that were taken about the subject of an alert.

The reason of a decision names a cable, NIC, host or contended link. A report names the decision and its
outcome.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

from schemas.ids import cable_id, host_of
from schemas.records import ActionOutcome, ActionReport, Alert, Decision, FlowAction

MAX_DECISIONS: Final = 50_000
"""Number of decisions whose reasons are kept; reports follow within seconds."""
MAX_SUBJECTS: Final = 10_000
_EFFECTIVE: Final = frozenset({ActionOutcome.APPLIED, ActionOutcome.LOCAL_REPAIR})
_TEXTS: Final = {
    FlowAction.REROUTE: ("flow moved to another path", "flows moved to another path"),
    FlowAction.RESTORE: ("flow moved back", "flows moved back"),
    FlowAction.PACE: ("flow paced", "flows paced"),
    FlowAction.UNPACE: ("pacing lifted", "pacings lifted"),
    FlowAction.DRAIN: ("node drained", "nodes drained"),
    FlowAction.RESUME: ("node resumed", "nodes resumed"),
}


class ActionSummary:
    """Counts the actions by subject and kind, for the texts of notifications."""

    def __init__(self) -> None:
        self._subjects: OrderedDict[str, str] = OrderedDict()
        """Maps decision id to the subject of its reason."""
        self._times: OrderedDict[str, list[tuple[int, FlowAction, str]]] = OrderedDict()
        """Maps subject to time, action and decision id."""

    def take_decision(self, decision: Decision) -> None:
        """Keep the subject of a `fabric.decisions` record, for later reports about the decision."""
        self._subjects[decision["decision_id"]] = decision["reason"]["subject"]
        if len(self._subjects) > MAX_DECISIONS:
            self._subjects.popitem(last=False)

    def take_report(self, report: ActionReport) -> None:
        """Count the action of a `fabric.actions` record under its subject, if the action took effect."""
        if report["outcome"] not in _EFFECTIVE:
            return
        is_node = report["action"] in (FlowAction.DRAIN, FlowAction.RESUME)
        subject = report["host"] if is_node else self._subjects.get(report["decision_id"])
        if subject is not None:
            self._times.setdefault(subject, []).append(
                (report["at_ns"], report["action"], report["decision_id"])
            )
            self._times.move_to_end(subject)
            if len(self._times) > MAX_SUBJECTS:
                self._times.popitem(last=False)

    def text(self, alert: Alert) -> str:
        """Return a text on the actions about an alert's subject, from shortly before the alert began."""
        since_ns = alert["raised_ns"] - 60_000_000_000
        names = {alert["subject"], *alert["grouped"], *alert["links"], *alert["nics"]}
        names |= {cable_id(link) for link in alert["links"] if link.count(">") == 1 and "<>" not in link}
        names |= {host_of(nic) for nic in alert["nics"]}
        applied = {
            (decision_id, action)
            for name in names
            for at_ns, action, decision_id in self._times.get(name, ())
            if at_ns >= since_ns
        }
        counts = Counter(action for _, action in applied if action in _TEXTS)
        parts = [f"{count} {_TEXTS[action][count > 1]}" for action, count in sorted(counts.items())]
        return ", ".join(parts) or "nothing"
