"""The queue stage skips messages that are too old, so that a slow worker catches up."""

from __future__ import annotations

import pytest

from streams.queues.stage import SKIP_BEHIND_NS, fold_text, waited_ns

OLD_NS = SKIP_BEHIND_NS + 1


@pytest.mark.parametrize(
    ("age_ns", "offset", "highwater", "expected"),
    [
        (OLD_NS, 10, 100, True),
        (OLD_NS, 98, 100, True),
        (OLD_NS, 99, 100, False),
        (OLD_NS, 99, 99, False),
        (OLD_NS, 10, None, True),
        (SKIP_BEHIND_NS, 10, 100, False),
        (-OLD_NS, 10, 100, False),
    ],
)
def test_a_message_is_skipped_if_it_is_old_and_newer_ones_wait(
    age_ns: int, offset: int, highwater: int | None, expected: bool
) -> None:
    assert (waited_ns(age_ns, offset, highwater) > SKIP_BEHIND_NS) is expected


def test_longer_slots_have_a_line_in_the_status() -> None:
    assert fold_text("fabric", 1_000_000, 1) == ""
    assert fold_text("fabric", 250_000, 4) == (
        "queues of fabric: slots of 1000 us instead of 250 us, inference is too slow"
    )
