"""Groups action entries by the fault that caused them: one line instead of a row for each flow.

A fault is a cable, NIC, host or contended link. Moves away from it and back to it belong to one group. A
local repair names no fault; it belongs to the fault of the flow's nearest decision. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fabrictime.state.action_entries import NS_PER_S, ActionEntry
from fabrictime.state.action_text import OUTCOMES
from fabrictime.state.labels import arrow
from schemas.records import ActionOutcome, FlowAction, ReasonKind
from schemas.units import counted, delay_text

GAP_NS: Final = 300 * NS_PER_S
"""Time without an action after which the same subject counts as a new fault, ns."""
NEAR_NS: Final = 30 * NS_PER_S
"""Largest time between a local repair and the decision that shows its fault, ns."""
LEAD_NS: Final = 60 * NS_PER_S
"""Longest time by which the first action on a fault may precede the begin that its record states, ns."""
_CAUSES: Final = {
    "DOWN": "outage of {}",
    "GREY": "loss at {}",
    "HEALED": "{} is healthy again",
    "COLLISION": "collision at {}",
    "INCAST": "incast at {}",
    "DRAINED": "the queue at {} has drained",
    "SLICE": "tenant shares of {}",
    "DELAY": "high delay of {}",
    "AUDIT": "audit of {}",
}
_LATER: Final = frozenset({ReasonKind.HEALED, ReasonKind.DRAINED})
"""Reasons that end a fault; they do not name it."""
_DONE: Final = {
    FlowAction.REROUTE: ("flow moved", "flows moved"),
    FlowAction.RESTORE: ("flow moved back", "flows moved back"),
    FlowAction.PACE: ("flow paced", "flows paced"),
    FlowAction.UNPACE: ("pacing ended", "pacings ended"),
    FlowAction.SLICE: ("flow limited", "flows limited"),
    FlowAction.DRAIN: ("node drained", "nodes drained"),
    FlowAction.RESUME: ("node resumed", "nodes resumed"),
}
_PENDING: Final = frozenset({"WAITING"})
_OBSERVED: Final = frozenset({ActionOutcome.OBSERVED})


@dataclass(frozen=True, slots=True)
class ActionGroup:
    """The action entries that one fault caused."""

    subject: str
    kind: str
    """Kind of the fault's reason."""
    entries: tuple[ActionEntry, ...]
    """The actions, the newest first."""

    @property
    def at_ns(self) -> int:
        """Time of the newest action, ns."""
        return self.entries[0].at_ns

    @property
    def cause(self) -> str:
        """The kind and subject of the fault as text."""
        if not self.subject:
            return "a path was dead" if self.kind == ReasonKind.DOWN else "cause unknown"
        return _CAUSES.get(self.kind, "{}").format(arrow(self.subject))

    @property
    def counts(self) -> str:
        """The number of actions by kind and outcome as text, with the longest time that an action took."""
        done = Counter(entry.action for entry in self.entries if entry.done)
        parts = [self._done_text(action, count) for action, count in done.most_common()]
        rest = Counter(_rest_text(entry) for entry in self.entries if not entry.done)
        parts += [f"{count} {text}" for text, count in sorted(rest.items(), key=lambda item: -item[1])]
        return ", ".join(parts) + self._durations()

    def _done_text(self, action: str, count: int) -> str:
        """Return the number of changed flows as text, and `count` if it is larger: a flow may move several
        times.
        """
        done = (entry for entry in self.entries if entry.done and entry.action == action)
        flows = len({(entry.host, entry.flow_id) for entry in done})
        times = f" ({count} times)" if count > flows else ""
        return f"{flows} {_DONE.get(FlowAction(action), ('action', 'actions'))[flows > 1]}{times}"

    def _durations(self) -> str:
        taken_ns = [
            entry.done_ns - entry.at_ns
            for entry in self.entries
            if entry.done and entry.done_ns is not None and entry.kind and entry.done_ns >= entry.at_ns
        ]
        return f", within {delay_text(max(taken_ns))}" if taken_ns else ""


def _rest_text(entry: ActionEntry) -> str:
    """Return the outcome of an action that changed no flow, as text."""
    if entry.outcome in _PENDING:
        return "under way"
    if entry.outcome in _OBSERVED:
        return "only proposed (mode OBSERVE)"
    if entry.outcome == ActionOutcome.FAILED:
        return "failed"
    return f"not done ({OUTCOMES.get(entry.outcome, entry.outcome).removeprefix('not done: ')})"


def action_groups(action_entries: Sequence[ActionEntry]) -> list[ActionGroup]:
    """Return the groups of entries, the newest first. `action_entries` must be ordered, the newest first."""
    subject_of = _subjects(action_entries)
    open_groups: dict[str, list[ActionEntry]] = {}
    groups: list[tuple[str, list[ActionEntry]]] = []
    for entry, subject in zip(action_entries, subject_of, strict=True):
        members = open_groups.get(subject)
        if members is None or members[-1].at_ns - entry.at_ns > GAP_NS:
            members = open_groups[subject] = []
            groups.append((subject, members))
        members.append(entry)
    return [ActionGroup(subject, _kind(members), tuple(members)) for subject, members in groups]


def _kind(members: Sequence[ActionEntry]) -> str:
    """Return the kind of the fault: the kind of the oldest action that does not end the fault."""
    return next((entry.kind for entry in reversed(members) if entry.kind not in _LATER), members[-1].kind)


def _subjects(action_entries: Sequence[ActionEntry]) -> list[str]:
    """Return the subject of each entry's fault; empty if neither the entry nor a near decision names one."""
    decisions: defaultdict[str, list[ActionEntry]] = defaultdict(list)
    for entry in action_entries:
        if entry.reason.subject:
            decisions[entry.flow_id].append(entry)
    return [entry.reason.subject or _nearest(entry, decisions) for entry in action_entries]


def _nearest(entry: ActionEntry, decisions: Mapping[str, list[ActionEntry]]) -> str:
    near = [
        (abs(other.at_ns - entry.at_ns), other.reason.subject)
        for other in decisions.get(entry.flow_id, ())
        if abs(other.at_ns - entry.at_ns) <= NEAR_NS
    ]
    return min(near, default=(0, ""))[1]


def groups_at(groups: Iterable[ActionGroup], places: set[str], since_ns: int) -> list[ActionGroup]:
    """Return the actions on the given cables, NICs and hosts because of a fault that began at `since_ns`.

    Actions that ended an earlier fault of the same place are left out.
    """
    return [
        replace(group, entries=entries)
        for group in groups
        if places.intersection((group.subject, _cable(group.subject)))
        and (entries := tuple(one for one in group.entries if _is_about(one, since_ns)))
    ]


def _is_about(entry: ActionEntry, since_ns: int) -> bool:
    """Return whether an action may be about a fault that began at `since_ns` but was detected later."""
    return entry.at_ns >= since_ns - (0 if entry.kind in _LATER else LEAD_NS)


def done_text(groups: Iterable[ActionGroup], places: set[str], since_ns: int) -> str:
    """Return the actions of `groups_at` as text; empty if there are none."""
    return "; ".join(group.counts for group in groups_at(groups, places, since_ns))


def _cable(subject: str) -> str:
    return "<>".join(sorted(subject.split(">"))) if ">" in subject and "<>" not in subject else subject


def total_text(groups: Sequence[ActionGroup]) -> str:
    """Return the number of actions and of faults as text."""
    actions = sum(len(group.entries) for group in groups)
    return f"{counted(actions, 'action')} on {counted(len(groups), 'fault')}"
