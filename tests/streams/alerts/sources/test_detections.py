"""Detections: each raises, extends and clears one alert."""

from __future__ import annotations

from typing import Any

from streams.alerts.book import AlertBook
from streams.alerts.sources.detections import DetectionAlerts
from streams.runtime.detection import Detection
from streams.runtime.thresholds import Thresholds

S = 1_000_000_000


def detect(at_s: int, *, over: bool = False, kind: str = "AGENT", **fields: Any) -> Detection:
    return Detection(kind, "h1", at_s * S, at_s * S, "prober is late", over, **fields)


def make_book() -> AlertBook:
    book = AlertBook("s0", Thresholds())
    book.log_offset_ns = 7
    return book


def states(book: AlertBook) -> list[tuple[str, int]]:
    return [(record["state"], record["update"]) for _, record in book.take_published()]


def test_a_detection_raises_an_alert_in_fabric_time_and_its_end_clears_it() -> None:
    book = make_book()
    source = DetectionAlerts(book)
    source.ingest(detect(100))
    [alert] = book.open.values()
    assert alert.raised_ns == 100 * S + 7
    source.ingest(detect(130, over=True))
    assert not book.open
    records = [record for _, record in book.take_published()]
    assert [record["state"] for record in records] == ["RAISED", "CLEARED"]
    assert records[1]["cleared_ns"] == 130 * S + 7
    assert "over: prober is late" in records[1]["text"]


def test_only_new_names_update_an_alert() -> None:
    book = make_book()
    source = DetectionAlerts(book)
    source.ingest(detect(100, nics=("h1/a",)))
    source.ingest(detect(101, nics=("h1/a",)))
    source.ingest(detect(102, nics=("h1/b",)))
    assert states(book) == [("RAISED", 0), ("RAISED", 1)]
    [alert] = book.open.values()
    assert alert.nics == ["h1/a", "h1/b"]


def test_the_end_of_an_unknown_state_raises_no_alert() -> None:
    book = make_book()
    DetectionAlerts(book).ingest(detect(100, over=True))
    assert states(book) == []


def test_a_detection_read_again_raises_no_alert_after_it_was_cleared() -> None:
    book = make_book()
    source = DetectionAlerts(book)
    for detection in (detect(100), detect(130, over=True), detect(100), detect(110)):
        source.ingest(detection)
    assert [state for state, _ in states(book)] == ["RAISED", "CLEARED"]
    source.ingest(detect(140))
    assert len(book.open) == 1, "a later one is a new alert"
