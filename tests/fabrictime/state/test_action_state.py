"""The newest decisions, reports, suppressed actions and modes, bounded and in any repetition."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state import action_state, action_text
from fabrictime.state.action_state import ActionState
from schemas.topics import ACTIONS, CONFIG, DECISIONS, POLICY_CYCLES
from tests.records import make

S = 1_000_000_000
NOW = 1_760_000_000 * S
FLOW = "h1/boot/sock:1"
WINDOW = "fabric/leaf1:swp4>spine2:swp1/1760000000"


def test_suppressed_actions_are_those_of_the_newest_cycle_with_their_start(
    made: Any, actions: ActionState
) -> None:
    one, two = (FLOW, "REROUTE", "PROTECTED", WINDOW), ("h2/b/sock:2", "RESTORE", "COOL_DOWN", "h5/eth0/3")
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(0, None))
    assert actions.shards["fabric"].suppressed is None, "unknown yet"
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(1, [one], at_ns=NOW))
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(2, [two, one], at_ns=NOW + S))
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(3, None, at_ns=NOW + 2 * S))
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(1, [], at_ns=NOW))  # read a second time
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(9, [], epoch=6))  # of a former owner
    assert [(each.flow_id, each.since_ns) for each in actions.suppressed()] == [
        (FLOW, NOW),
        (two[0], NOW + S),
    ]
    causes = [action_text.suppressed_cause(each) for each in actions.suppressed()]
    assert causes == ["a queue persists at leaf1:swp4 → spine2:swp1", "h5/eth0 has recovered"]
    assert action_text.suppressed_text(actions.suppressed()[0], NOW + 4 * S) == (
        "the job is protected (protected_jobs); for 4.0 s"
    )
    actions.take(POLICY_CYCLES.name, "fabric", made.rounds(0, None, epoch=8))
    assert actions.suppressed() == [], "unknown after a change of owner"


def test_mode_has_the_author_of_its_last_change(made: Any, actions: ActionState) -> None:
    assert action_text.mode_text(actions).endswith("; the default")
    actions.take(CONFIG.name, "*", made.config(1, mode="ACT", by="ann"))
    actions.take(CONFIG.name, "*", made.config(2, mode="ACT", by="bob", at_ns=NOW + S))
    actions.take(CONFIG.name, "h3", made.config(1, "h3", mode="OBSERVE", by="eve"))
    actions.take(CONFIG.name, "h4", made.config(1, "h4", mode="UNKNOWN"))
    assert (actions.mode().act, actions.mode().by, actions.mode().since_ns) == (True, "ann", NOW)
    assert actions.exceptions() == ["h3"]
    assert "set by ann" in action_text.mode_text(actions)
    assert action_text.mode_text(actions).endswith("Exceptions (OBSERVE): h3")
    actions.take(CONFIG.name, "*", None)
    assert not actions.mode().act


def test_the_oldest_decisions_and_reports_are_forgotten(
    made: Any, actions: ActionState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_state, "MAX_DECISIONS", 3)
    flow = made.flow(1, "h1/eth1", "h5/eth1")
    for seq in range(5):
        decision = made.decision(seq, flow, WINDOW)
        actions.take(DECISIONS.name, "h1", decision)
        actions.take(ACTIONS.name, "h1", made.action(decision))
    names = ["fabric/7/2", "fabric/7/3", "fabric/7/4"]
    assert list(actions.decisions) == list(actions.reports) == names


def test_tombstones_and_topics_of_others_change_nothing_but_the_config(
    made: Any, actions: ActionState
) -> None:
    actions.take(CONFIG.name, "h1", make(CONFIG.record, **made.config(1, "h1", max_actions_per_s=3)))
    for topic in (DECISIONS.name, ACTIONS.name, POLICY_CYCLES.name):
        actions.take(topic, "h1", None)
    actions.take("fabric.probes", "h1", {})
    assert actions.limits("h1").max_actions_per_s == 3
    assert not actions.decisions
    assert not actions.reports
    assert not actions.shards
