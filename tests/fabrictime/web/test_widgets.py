"""Widgets that change without a rendering: one message per client and loop iteration."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from fabrictime.web.widgets import Chips, LiveTable, LiveText

COLUMNS = [("name", "name", "left"), ("rate", "rate", "right")]


@pytest.fixture
def scripts(page_client: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(page_client, "run_javascript", found.append)
    return found


def states(script: str) -> dict[int, dict[str, Any]]:
    """Return the states in a script, by element."""
    listed = script.partition(" of ")[2].partition(") try")[0]
    return dict(json.loads(listed))


async def test_many_changes_are_one_message_with_the_last_state_of_each(
    page_client: Any, scripts: list[str]
) -> None:
    with page_client:
        texts = [LiveText() for _ in range(1000)]
    for each in texts:
        each._on_ready()
    await asyncio.sleep(0)
    scripts.clear()
    for number in range(3):
        for each in texts:
            each.set_text(f"figure {number}")
    await asyncio.sleep(0)
    [script] = scripts
    found = states(script)
    assert len(found) == 1000
    assert {state["content"] for state in found.values()} == {"figure 2"}


async def test_an_unchanged_text_sends_nothing(page_client: Any, scripts: list[str]) -> None:
    with page_client:
        text = LiveText("same")
    text._on_ready()
    await asyncio.sleep(0)
    scripts.clear()
    text.set_text("same")
    await asyncio.sleep(0)
    assert scripts == []


async def test_a_broken_row_holds_up_no_other_element(
    page_client: Any, scripts: list[str], caplog: Any
) -> None:
    with page_client:
        broken, text = LiveTable(COLUMNS), LiveText("good")
    for each in (broken, text):
        each._on_ready()
    broken.put([{"id": 1, "name": "no rate"}])
    await asyncio.sleep(0)
    assert list(states(scripts[-1])) == [text.id]
    assert "cannot send the state of" in caplog.text


def test_a_table_formats_its_cells_and_a_click_finds_its_row(page_client: Any) -> None:
    picked: list[Any] = []
    table = LiveTable(COLUMNS, {"rate": lambda row: [("ft-bad", f"{row['rate']}/s", "")]}, picked.append)
    table.put([{"id": 7, "name": None, "rate": 5}])
    assert table.state() == {"rows": [["7", ["", [("ft-bad", "5/s", "")]]]]}
    [listener] = [each for each in table._event_listeners.values() if each.type == "pick"]
    for row in ("7", "8"):
        listener.handler(SimpleNamespace(args=row))
    assert [row["id"] for row in picked] == [7], "a row that is gone is no click"


def test_an_empty_list_is_shown_as_such(page_client: Any) -> None:
    chips = Chips()
    assert chips.state() == {"chips": []}
    chips.put([("a", "A", "/a")])
    assert chips.state() == {"chips": [("a", "A", "/a")]}
