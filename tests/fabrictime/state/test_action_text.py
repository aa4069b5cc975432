"""Texts of actions: causes, outcomes, durations, and the flow that a text names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fabrictime.state import action_entries, action_text
from fabrictime.state.action_state import ActionState
from schemas import records
from schemas.reasons import Reason
from schemas.topics import ACTIONS, DECISIONS

S = 1_000_000_000
NOW = 1_760_000_000 * S


def entry(made: Any, actions: ActionState, *outcomes: str, **fields: Any) -> action_entries.ActionEntry:
    decision = made.decision(0, made.flow(1, "h1/eth1", "h5/eth1"), "leaf1:a<>spine1:b/3", **fields)
    actions.take(DECISIONS.name, "h1", decision)
    for outcome in outcomes:
        actions.take(ACTIONS.name, "h1", made.action(decision, outcome))
    [found] = action_entries.entries(actions, NOW)
    return found


def test_every_symbol_of_the_schemas_has_a_text() -> None:
    assert set(records.FlowAction) <= set(action_text.ACTIONS)
    assert set(records.ActionOutcome) <= set(action_text.OUTCOMES)
    assert set(records.ReasonKind) <= set(action_text.CAUSES)


def test_an_applied_move_has_its_paths_and_both_durations(made: Any, actions: ActionState) -> None:
    row = action_text.table_row(entry(made, actions, "APPLIED"))
    assert (row["flow"], row["ends"]) == ("h1 sock:1", "h1/eth1 to h5/eth1")
    assert row["action"] == "move, port 50001 → 50002"
    assert row["cause"] == "leaf1:a ⇄ spine1:b is down"
    assert (row["took"], row["status"], row["rate"]) == ("12.0 ms", "done", "—")


def test_an_action_done_before_its_decision_by_another_clock_shows_the_effectors_time(
    made: Any, actions: ActionState
) -> None:
    earlier = entry(made, actions, "APPLIED")
    earlier = replace(earlier, done_ns=earlier.at_ns - S, took_ns=4_000_000)
    assert action_text.table_row(earlier)["took"] == action_text.duration_text(earlier) == "4.00 ms"


def test_an_open_action_has_no_duration_and_a_refused_one_its_detail(made: Any, actions: ActionState) -> None:
    waiting = entry(made, actions)
    assert (action_text.duration_text(waiting), action_text.table_row(waiting)["status"]) == ("—", "open")
    decision = actions.decisions["fabric/7/0"]
    actions.take(ACTIONS.name, "h1", made.action(decision, "FAILED", detail="no socket"))
    [failed] = action_entries.entries(actions, NOW)
    assert ("outcome", "failed: no socket") in action_text.figures(failed)
    assert action_text.table_row(failed)["status"] == "not"
    assert action_text.duration_text(replace(failed, took_ns=0)) == "—"


def test_an_action_that_took_no_measured_time_has_its_total_alone(made: Any, actions: ActionState) -> None:
    applied = replace(entry(made, actions, "APPLIED"), took_ns=0)
    assert action_text.duration_text(applied) == "12.0 ms"


def test_pacing_names_its_rate_and_missing_paths_are_question_marks(made: Any, actions: ActionState) -> None:
    paced = entry(made, actions, action="PACE", rate_bps=20_000_000)
    assert action_text.action_text(paced) == "pace, at most 20.0 Mbit/s"
    actions.decisions.clear()
    moved = entry(made, actions, from_path=None)
    assert action_text.action_text(moved) == "move, port ? → 50002"


def test_an_unknown_cause_is_shown_as_it_is() -> None:
    assert action_text.cause_text("NOVEL", Reason("x")) == "NOVEL"
    assert action_text.cause_text("GREY", Reason()) == "its path loses packets"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [(None, None, "—"), (1, None, "1 → unknown"), (None, 2, "unknown → 2"), (1, 2, "1 → 2")],
)
def test_figures_side_by_side(before: float | None, after: float | None, text: str) -> None:
    assert action_text.before_after(before, after, str) == text


def test_only_one_match_counts() -> None:
    ids = ["h1/b/sock:1", "h1/b/sock:12", "h2/b/sock:3"]
    assert action_text.only_match("h1/b/sock:1", ids) == "h1/b/sock:1"
    assert action_text.only_match("h2 sock:3", ids) == "h2/b/sock:3"
    assert action_text.only_match("h1", ids) is None
    assert action_text.only_match(None, ids) is None
