"""Set cover: how many losses a dead link takes."""

from __future__ import annotations

from streams.links.localise.cover import losses_needed


def test_spurious_losses_from_before_the_window_need_no_more_losses():
    assert losses_needed(6, -3.0, 0.0) == losses_needed(6, 0.0, 0.0) >= 6
    assert losses_needed(6, -40.0, 10.0) >= 6
    assert losses_needed(6, 20.0, 20.0) > 6
