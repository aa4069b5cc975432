"""What the live table reads: no more path delays than a share of one processor is enough for."""

from __future__ import annotations

import pytest

from fabrictime.state.live_figures import Share


def test_work_is_limited_to_its_share_of_the_time():
    """A thousand NICs' delays a second, 1.5 ms each: a fifth of the time goes into them, all along."""
    share, now_s, worked_s, done = Share(0.2), 0.0, 0.0, 0
    while now_s < 20:
        if share.open(now_s):
            now_s += 0.0015
            worked_s += 0.0015
            done += 1
            share.spent(now_s)
        else:
            now_s += 0.00001
    assert worked_s == pytest.approx(0.2 * 20 + 0.5, rel=0.05)
    assert done > 100


def test_a_small_fleet_is_read_whole():
    share, now_s = Share(0.2), 0.0
    for _ in range(20):
        for _ in range(64):
            assert share.open(now_s)
            now_s += 0.0015
            share.spent(now_s)
        now_s += 1 - 64 * 0.0015
