"""Limits: the configuration of all hosts and of one host, combined."""

from __future__ import annotations

from schemas.limits import MAX_VERSION, Limits
from tests.records import make


def test_without_records_a_host_only_observes() -> None:
    limits = Limits.of({}, "h1")
    assert not limits.act
    assert limits.allowed == {"REROUTE", "RESTORE"}
    assert limits.version == 0


def test_values_of_a_host_override_those_of_all_hosts() -> None:
    records = {
        "*": make(
            "ActuatorConfig", host="*", mode="ACT", max_actions_per_s=50, version=3, protected_jobs=["a"]
        ),
        "h1": make(
            "ActuatorConfig", host="h1", mode="OBSERVE", max_actions_per_s=5, version=4, protected_jobs=["b"]
        ),
    }
    here, elsewhere = Limits.of(records, "h1"), Limits.of(records, "h2")
    assert (here.act, here.max_actions_per_s, here.version) == (False, 5, 7)
    assert (elsewhere.act, elsewhere.max_actions_per_s, elsewhere.version) == (True, 50, 3)
    assert here.protected_jobs == {"a", "b"}, "protected jobs add up"


def test_an_unknown_mode_keeps_the_mode_of_all_hosts() -> None:
    records = {
        "*": make("ActuatorConfig", host="*", mode="ACT"),
        "h1": make("ActuatorConfig", mode="UNKNOWN"),
    }
    assert Limits.of(records, "h1").act


def test_the_moved_share_is_clamped_and_comes_from_all_hosts_alone() -> None:
    records = {
        "*": make("ActuatorConfig", host="*", max_moved_share=7.0),
        "h1": make("ActuatorConfig", host="h1", max_moved_share=0.1),
    }
    assert Limits.of(records, "h1").max_moved_share == 1.0


def test_a_huge_version_is_capped() -> None:
    records = {"*": make("ActuatorConfig", host="*", version=2**62)}
    assert Limits.of(records, "h1").version == MAX_VERSION


def test_one_flow_may_always_move_unless_the_share_is_zero() -> None:
    assert Limits(max_moved_share=0.5).max_moves(100) == 50
    assert Limits(max_moved_share=0.5).max_moves(100, part=0.1) == 5
    assert Limits(max_moved_share=0.01).max_moves(3) == 1
    assert Limits(max_moved_share=0.0).max_moves(1000) == 0
