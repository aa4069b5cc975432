"""Rules and thresholds that are given on the command line of a replay."""

from __future__ import annotations

import pytest

from fabrictime.commands.replay_stages import changes_of


def test_rules_and_thresholds_are_given_by_name() -> None:
    changes = changes_of(["slow_ratio=1.3", "min_arrivals=5", "alert_clear_s=7"])
    assert (changes.rules.slow_ratio, changes.rules.min_arrivals) == (1.3, 5)
    assert changes.thresholds == {"alert_clear_s": 7.0}


@pytest.mark.parametrize(
    "text",
    ["slowness=2", "slow_ratio", "slow_ratio=fast", "min_arrivals=1.5", "alert_clear_s=x", "flaps_max=-1"],
)
def test_a_wrong_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"--rule {text}: "):
        changes_of([text])
