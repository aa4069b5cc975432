"""The choice of time: its address, and values that no control sends."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.web.time_bar import MAX_AGE_NS, RANGES_S, TimeChoice, _choice_of, parse_time, time_of

MS = 1_000_000
NOW = 1_795_000_000_123 * MS


def test_the_address_holds_moment_and_range() -> None:
    choice = TimeChoice.parse({"at": "2026-11-18T11:06:40Z", "range": "900"}, NOW)
    assert choice == TimeChoice(1_795_000_000 * 1000 * MS, 900)
    assert choice.parameters() == {"at": "2026-11-18T11:06:40.000Z", "range": "900"}
    assert TimeChoice().parameters() == {}


def test_a_moment_before_the_sliders_span_is_in_its_middle() -> None:
    choice = TimeChoice.parse({"at": "2026-11-18T01:00:00"}, NOW)
    assert choice.at_ns is not None
    assert choice.end_ns == choice.at_ns + 1_800_000 * MS
    assert choice.span_ns(NOW) == (choice.at_ns - 1_800_000 * MS, choice.at_ns + 1_800_000 * MS)


@given(st.text(), st.text())
def test_any_address_gives_a_choice(at: str, range_s: str) -> None:
    choice = TimeChoice.parse({"at": at, "range": range_s}, NOW)
    assert choice.range_s in RANGES_S
    assert choice.at_ns is None or NOW - MAX_AGE_NS < choice.at_ns < NOW


@given(st.integers(0, 2**41))
def test_times_survive_the_address(ms: int) -> None:
    assert parse_time(time_of(ms * MS)) == ms * MS


@given(
    st.dictionaries(
        st.sampled_from(["at", "end", "range", "push"]),
        st.none() | st.integers(-(2**60), 2**60) | st.floats(-1e18, 1e18) | st.text() | st.lists(st.none()),
    )
)
def test_any_message_of_a_browser_gives_a_choice(sent: dict[str, Any]) -> None:
    choice = _choice_of(sent, NOW)
    assert choice.range_s in RANGES_S
    assert choice.at_ns is None or NOW - MAX_AGE_NS <= choice.at_ns <= NOW
    assert choice.span_ns(NOW)[0] < choice.span_ns(NOW)[1]
