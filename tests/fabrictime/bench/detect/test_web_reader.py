"""Rows of the page with their times, through the page's own code, and a missing browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fabrictime.bench.detect import web_reader
from fabrictime.bench.detect.web_reader import TopicReader_, browser_missing
from fabrictime.state.fabric_state import FabricState
from tests.fabrictime.fill import fill, fill_health


@pytest.fixture
def reader(state: FabricState) -> TopicReader_:
    """Return a reader without a log; its state is the test's."""
    made = TopicReader_.__new__(TopicReader_)
    made._state, made._seen, made._tab, made._last = state, [], "fabric", None
    return made


def test_each_change_of_the_rows_is_one_sight(reader: TopicReader_, state: FabricState, fabric: Any) -> None:
    fill(state, *fabric.fleet())
    reader.open("fabric")
    assert [sight.rows for sight in reader.news()] == [()]
    link = fabric.up("leaf1", 1)
    fill_health(state, fabric, link, "DOWN", text="it is down")
    [sight] = reader.news()
    assert sight.rows == ((fabric.cable(link), "DOWN", "it is down"),)
    assert reader.news() == []
    fill_health(state, fabric, link, "UP")
    assert [each.rows for each in reader.news()] == [()]
    assert fabric.cable(link) in reader.cables()


def test_the_other_tab_shows_contention_that_is_open(
    reader: TopicReader_, state: FabricState, fabric: Any
) -> None:
    link = fabric.up("leaf1", 1)
    fill(state, *fabric.fleet())
    opened = fabric.contention(link)
    fill(state, ("fabric.contention", link, opened))
    reader.open("contention")
    [sight] = reader.news()
    assert [(row.subject, row.text) for row in sight.rows] == [(link, f"{link}: flows collide")]
    fill(
        state,
        ("fabric.contention", link, {**opened, "state": "CLOSED", "update": 1, "closed_ns": fabric.now_ns}),
    )
    assert reader.news()[-1].rows == ()


def test_a_missing_browser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_reader, "CHROMIUM", "/nowhere/chromium")
    missing = browser_missing()
    assert missing is not None
    assert missing.startswith("/nowhere/chromium is missing")


def test_names_of_the_page_are_ids_again() -> None:
    assert web_reader._id("leaf1:swp1 ⇄ spine1:swp1") == "leaf1:swp1<>spine1:swp1"
    assert web_reader._id("leaf1:swp1 → spine1:swp1") == "leaf1:swp1>spine1:swp1"


def test_the_classes_that_are_read_are_those_of_the_page() -> None:
    web = Path(web_reader.__file__).parents[2] / "web"
    page = "".join(path.read_text(encoding="utf-8") for path in web.rglob("*.py"))
    read = set(re.findall(r"\.(ft-[a-z-]+)", web_reader.WATCH + web_reader.STANDS))
    assert read
    assert {name for name in read if name not in page} == set()
