"""The choice of time: its address, and values that no control sends."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.web.first_paint import first_html
from fabrictime.web.time_bar import (
    MAX_AGE_NS,
    RANGES_S,
    TimeBar,
    TimeChoice,
    _choice_of,
    loading_text,
    parse_time,
    time_of,
)

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


def bar_at(at_ns: int | None) -> TimeBar:
    async def seek(_choice: TimeChoice, _adds: bool) -> None:
        """Nothing is shown."""

    return TimeBar(TimeChoice(at_ns), "", seek)


def test_a_past_moment_is_loading_from_the_first_paint_on(page_client: Any) -> None:
    bar_at(NOW)
    copy = first_html(page_client.content)
    assert f'data-testid="time-text">{loading_text(NOW, time.time_ns() // MS)}</output>' in copy
    assert 'class="ft-time-live" aria-pressed="false"' in copy
    assert 'class="ft-time ft-past"' in copy


def test_the_first_paint_of_the_present_is_live(page_client: Any) -> None:
    bar = bar_at(None)
    copy = first_html(page_client.content)
    assert 'class="ft-time-live" aria-pressed="true"' in copy
    assert 'data-testid="time-text">now</output>' in copy
    assert not bar.state()["loading"]


def test_the_date_is_left_out_today() -> None:
    assert loading_text(NOW, NOW // MS) == "11:06:40 UTC, loading …"
    assert loading_text(NOW, NOW // MS + 86_400_000) == "2026-11-18 11:06:40 UTC, loading …"


def test_a_moment_is_loading_until_that_moment_is_shown(page_client: Any) -> None:
    bar = bar_at(NOW)
    bar.put_marks([])
    assert bar.state()["loading"]
    bar.end_loading(NOW - 1)  # the reader chose another one meanwhile
    assert bar.state()["loading"]
    bar.end_loading(NOW)
    assert not bar.state()["loading"]


async def test_another_moment_is_loading_until_it_is_shown_and_the_present_never(page_client: Any) -> None:
    states = []

    async def seek(choice: TimeChoice, _adds: bool) -> None:
        states.append((choice.at_ns, bar.state()["loading"]))
        bar.end_loading(choice.at_ns)

    with page_client:
        bar = TimeBar(TimeChoice(), "", seek)
    for at_ms in (NOW // MS, None):
        await bar._on_seek(SimpleNamespace(args={"at": at_ms, "range": 3600}))  # type: ignore[arg-type]
        assert not bar.state()["loading"]
    assert states == [(NOW, True), (None, False)]


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
