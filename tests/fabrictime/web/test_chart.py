"""Charts: a frame is sent once the browser has drawn the last one, and a whole one after a pause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.web.chart import FabricMap, LiveChart


@pytest.fixture
def chart(page_client: Any, monkeypatch: pytest.MonkeyPatch) -> LiveChart:
    """Return a chart whose frames are kept in `sent` as (number, frame)."""
    made = LiveChart("hour")
    made.sent = []  # type: ignore[attr-defined]
    monkeypatch.setattr(made, "run_method", lambda name, seq, frame: made.sent.append((seq, frame)))  # type: ignore[attr-defined]
    return made


def ack(number: int) -> Any:
    return SimpleNamespace(args=number)


def test_nothing_is_sent_before_the_browser_is_ready_and_then_a_whole_frame(chart: Any) -> None:
    chart.show(lambda whole: {"whole": whole})
    assert chart.sent == []
    chart._on_ready()
    assert chart.sent == [(1, {"whole": True})]


def test_a_slow_browser_skips_frames_and_gets_the_newest(chart: Any) -> None:
    chart._on_ready()
    for number in range(1000):
        chart.show(lambda whole, number=number: {"at": number})
    assert chart.sent == [(1, {"at": 0})]
    chart._on_ack(ack(9))
    assert len(chart.sent) == 1, "not the frame that was sent"
    chart._on_ack(ack(1))
    assert chart.sent[1:] == [(2, {"at": 999})]


def test_a_frame_without_content_is_not_sent_and_blocks_nothing(chart: Any) -> None:
    chart._on_ready()
    chart.show(lambda whole: None)
    chart.show(lambda whole: {"whole": whole})
    assert chart.sent == [(1, {"whole": True})], "the first frame is a whole one, however late"


def test_after_a_disconnection_a_whole_frame_is_sent_again(chart: Any) -> None:
    chart.resume()
    chart._on_ready()
    chart.show(lambda whole: {"whole": whole})
    chart.resume()
    assert [frame["whole"] for _, frame in chart.sent] == [True, True]
    assert not chart.is_ignoring_events


def test_a_click_on_the_map_names_the_item_that_was_hit(page_client: Any) -> None:
    hits: list[tuple[str, int, int]] = []
    drawn = FabricMap("fabric", lambda *hit: hits.append(hit))
    [listener] = [each for each in drawn._event_listeners.values() if each.type == "pick"]
    listener.handler(SimpleNamespace(args={"kind": "cable", "k": "3", "plan": 2}))
    assert hits == [("cable", 3, 2)]
