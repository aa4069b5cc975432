"""Rules and thresholds that are given on the command line of a replay."""

from __future__ import annotations

import pytest

from fabrictime.commands.replay.command import STAGES_HELP
from fabrictime.commands.replay.run import BY_STEPS, STAGES, changes_of
from schemas.identities import IDENTITY
from schemas.input_error import InputError


def test_rules_and_thresholds_are_given_by_name() -> None:
    changes = changes_of(["slow_ratio=1.3", "min_arrivals=5", "alert_clear_s=7"])
    assert (changes.rules.slow_ratio, changes.rules.min_arrivals) == (1.3, 5)
    assert changes.thresholds == {"alert_clear_s": 7.0}


@pytest.mark.parametrize(
    "text",
    ["slowness=2", "slow_ratio", "slow_ratio=fast", "min_arrivals=1.5", "alert_clear_s=x", "flaps_max=-1"],
)
def test_a_wrong_rule_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"--rule {text}: "):
        changes_of([text])


def test_every_output_that_a_replay_compares_has_an_identity() -> None:
    outputs = {topic.name for stage in BY_STEPS.values() for topic in stage.outputs}
    assert outputs <= IDENTITY.keys()


def test_the_help_names_every_stage() -> None:
    assert STAGES_HELP.startswith(", ".join(STAGES))
