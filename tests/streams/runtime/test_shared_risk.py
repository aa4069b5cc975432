"""Shared risk: failures at one node that have one cause."""

from __future__ import annotations

from streams.runtime.shared_risk import DOWN_CABLES, SILENT_CABLES, SharedRiskRules, group_by_node


def test_failed_members_are_grouped_by_each_of_their_nodes() -> None:
    failed = [("a<>b", ("a", "b")), ("a<>c", ("a", "c")), ("a<>b", ("a",))]
    assert group_by_node(failed) == {"a": {"a<>b", "a<>c"}, "b": {"a<>b"}, "c": {"a<>c"}}
    assert group_by_node([]) == {}


def test_a_node_needs_the_number_and_the_share_of_failed_members() -> None:
    rules = SharedRiskRules(min_members=3, min_share=0.5)
    assert not rules.has_enough(2, 2)
    assert rules.has_enough(3, 6)
    assert not rules.has_enough(3, 7)
    assert rules.has_enough(3), "without a known number of members the share does not count"


def test_evidence_and_alerts_ask_for_as_many_cables() -> None:
    assert SILENT_CABLES.min_members == DOWN_CABLES.min_members
    assert SILENT_CABLES.window_ns is None
