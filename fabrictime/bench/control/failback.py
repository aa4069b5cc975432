"""Computes from records how long flows stayed off their own paths after these paths were healthy again.

The inputs are decisions, their outcomes, and `LinkHealth` records in order. The result has each period away,
with the longest time for which the flow could have been back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from schemas.records import ActionOutcome, ActionReport, Decision, FlowAction, LinkHealth, ReasonKind
from streams.policy.flows.path_health import Grade, PathHealth
from streams.policy.rules import Rules

DONE: Final = (ActionOutcome.APPLIED, ActionOutcome.DUPLICATE)
STEP_S: Final = 0.02
"""Step, s, of the search for how long a route was healthy."""


class Away(NamedTuple):
    """A period in which a flow was not on the port that it had before it left a bad link."""

    flow_id: str
    home: int
    begin_s: float
    end_s: float
    back: bool
    """Whether the period ended with a return, not with another failover or with steering."""


def times_away(
    decisions: Iterable[Decision], actions: Iterable[ActionReport]
) -> tuple[list[Away], list[Away]]:
    """Return the periods away that have ended, and the open ones, whose `end_s` equals `begin_s`."""
    ended: list[Away] = []
    away: dict[str, Away] = {}
    done = {action["decision_id"] for action in actions if action["outcome"] in DONE}
    for decision in sorted(decisions, key=lambda decision: (decision["epoch"], decision["seq"])):
        name, at_s = decision["flow_id"], decision["at_ns"] / 1e9
        if decision["decision_id"] not in done or decision["from_path"] is None:
            continue
        open_away = away.setdefault(name, Away(name, decision["from_path"], at_s, at_s, False))
        if (
            decision["reason"]["kind"] not in (ReasonKind.DOWN, ReasonKind.GREY)
            or decision["to_path"] == open_away.home
        ):
            del away[name]
            if open_away.begin_s < at_s:
                ended.append(open_away._replace(end_s=at_s, back=decision["action"] == FlowAction.RESTORE))
    return ended, list(away.values())


def could_be_home(
    aways: Sequence[Away], routes: Sequence[Sequence[str]], health: Iterable[LinkHealth]
) -> tuple[list[float], int]:
    """Return, for each period away, the longest time, s, for which the home route was healthy; and a count.

    The count is that of flows that returned while their home route was not healthy. `routes` has the links of
    each home route, in both directions. A link is healthy as the policy defines it
    (streams/policy/flows/path_health.py): every link UP, and its hold-down over.
    """
    published = sorted(health, key=lambda record: record["evaluated_ns"])
    rules = Rules()
    health_table = PathHealth(rules.hold_down_ns, rules.max_hold_down_ns)
    longest, since_s, early = [0.0] * len(aways), [0.0] * len(aways), 0
    begin_s = min((away.begin_s for away in aways), default=0.0)
    end_s = max((away.end_s for away in aways), default=0.0)
    applied = 0
    for at_s in np.arange(begin_s, end_s + STEP_S, STEP_S).tolist():
        while applied < len(published) and published[applied]["evaluated_ns"] <= at_s * 1e9:
            health_table.take(published[applied]["subject"], published[applied])
            applied += 1
        for number, (away, route) in enumerate(zip(aways, routes, strict=True)):
            if not away.begin_s <= at_s < away.end_s + STEP_S or not route:
                continue
            well = health_table.of_links(route, int(at_s * 1e9)).grade is Grade.HEALTHY
            since_s[number] = (since_s[number] or at_s) if well else 0.0
            if well:
                longest[number] = max(longest[number], min(at_s, away.end_s) - since_s[number])
            early += int(away.back and not well and at_s >= away.end_s)
    return longest, early
