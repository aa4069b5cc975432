"""The figures of two classes on real switches: each way to be wrong lowers one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fabrictime.bench.networks.switches import DATA_DSCP, Outcome, Seen

WAITS = Seen(DATA_DSCP, True, 40, 80e6, 30)
FREE = Seen(0, False, 40, 1e6, 0)
LINK, ALIASED, OTHER = "leaf1:swp4>spine2:swp1", "spine2:swp1>leaf2:swp4", "leaf1:swp3>spine1:swp1"
RIGHT = Outcome(
    [WAITS, WAITS, FREE, FREE],
    100e6,
    {0: 0, DATA_DSCP: 60},
    0,
    (LINK, ALIASED),
    {LINK: 9_000_000},
    {LINK: 9_500_000},
)


def test_a_run_in_which_the_load_shows_in_its_class_alone_is_right() -> None:
    assert (RIGHT.right_share, RIGHT.count_error) == (1.0, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(WAITS, delay_ns=30e6),
        replace(WAITS, marked=0),
        replace(FREE, delay_ns=30e6),
        replace(FREE, marked=1),
        replace(FREE, dscp=DATA_DSCP, delay_ns=80e6, marked=30),
    ],
    ids=["no delay", "no mark", "another class delayed", "another class marked", "another path"],
)
def test_each_wrong_path_counts(wrong: Seen) -> None:
    assert replace(RIGHT, directions=[WAITS, WAITS, FREE, wrong]).right_share == 0.75


@pytest.mark.parametrize(
    ("marked", "error"),
    [({0: 0, DATA_DSCP: 75}, 0.2), ({0: 60, DATA_DSCP: 0}, 2.0), ({0: 0, DATA_DSCP: 0}, 60.0)],
)
def test_marks_of_another_class_do_not_make_up_for_missing_ones(marked: dict[int, int], error: float) -> None:
    assert replace(RIGHT, marked_by_switches=marked).count_error == pytest.approx(error)


def test_marks_open_contention_of_the_loaded_link_earlier_or_not_at_all() -> None:
    assert RIGHT.open_by_ce_ms == -0.5
    late = replace(RIGHT, opened_ns={OTHER: 1_000_000, ALIASED: 11_500_000})
    assert late.open_by_ce_ms == 2.0
    assert math.isnan(replace(RIGHT, opened_ns={OTHER: 1_000_000}).open_by_ce_ms)
