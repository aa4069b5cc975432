"""Replay of the golden logs: each stage makes of the inputs what it made when they were recorded."""

from itertools import islice

import pytest

from tests.golden import goldens, replay, stages

CASES = ("sim", "fabric")
MAX_SHOWN = 12


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("case", "stage"), [(case, stage) for case in CASES for stage in replay.stages_of(case)]
)
def test_stage_makes_the_golden_outputs(case, stage):
    want = replay.expected(case, stage)
    have = replay.canonical(replay.run(case, stage))
    assert {topic: len(rows) for topic, rows in have.items()} == {t: len(rows) for t, rows in want.items()}
    found = list(islice(replay.differences(want, have), MAX_SHOWN))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("case", CASES)
def test_every_stage_is_covered(case):
    assert set(replay.stages_of(case)) == set(stages.STAGES)
    for stage in stages.STAGES:
        assert any(replay.expected(case, stage).values()), stage


def test_the_golden_files_stay_small():
    total = sum(path.stat().st_size for path in goldens.FOLDER.rglob("*") if path.is_file())
    assert total < 4_000_000
