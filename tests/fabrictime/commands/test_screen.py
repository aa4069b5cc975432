"""Tables and live views of the commands."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from fabrictime.commands.screen import keep_live, table_of, terminal


def test_a_table_wraps_named_columns_only_and_takes_brackets_as_they_are() -> None:
    rows = [("h1[a]", "7", "one two three"), (Text("h2"), "12", "")]
    output = io.StringIO()
    Console(file=output, width=18).print(
        table_of(("host", "n", "text"), rows, wrapped=("text",), right=("n",))
    )
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    assert lines[0] == "host    n  text"
    assert lines[1] == "h1[a]   7  one two"
    assert lines[2] == "           three"
    assert lines[3] == "h2     12"


def test_output_that_is_no_terminal_has_the_given_width() -> None:
    assert terminal(123).width == 123


def test_a_live_view_goes_on_until_it_is_interrupted() -> None:
    pictures = iter(["first", "second"])

    def wait() -> None:
        if waits:
            raise KeyboardInterrupt
        waits.append(1)

    waits: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        keep_live(Console(file=io.StringIO()), lambda: next(pictures), wait)
    assert list(pictures) == []
