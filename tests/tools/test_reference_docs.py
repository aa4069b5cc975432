"""Reference pages: they are current, and hold every command, argument and threshold."""

import click
import pytest

from streams.runtime.thresholds import THRESHOLDS
from tools import reference_docs, topics_doc


@pytest.mark.parametrize("name", ["docs/commands.md", "docs/thresholds.md", "docs/fabrictime.toml"])
def test_the_page_is_current(name):
    made = reference_docs.pages()[name]
    assert (reference_docs.ROOT / name).read_text() == made, "run python tools/reference_docs.py"


def test_each_page_is_marked_as_generated():
    pages = {**reference_docs.pages(), "docs/topics.md": topics_doc.page()}
    for name, text in pages.items():
        assert any("enerated " in line for line in text.splitlines()[:3]), name


def test_every_threshold_has_a_row():
    rows = [line for line in reference_docs.thresholds_page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(THRESHOLDS)


def test_hidden_commands_are_left_out_and_groups_are_opened():
    group = click.Group(commands={"a": click.Command("a"), "b": click.Command("b", hidden=True)})
    root = click.Group(commands={"deep": group, "c": click.Command("c")})
    assert [name for name, _ in reference_docs.leaves(root, "x")] == ["x c", "x deep a"]


def test_the_page_has_the_commands_with_arguments_and_options():
    page = reference_docs.commands_page()
    for line in ("## fabrictime up", "## fabrictime demo", "## fabrictime fabric fault", "| `--observe` |"):
        assert f"\n{line}" in page
    assert "## fabrictime service" not in page


def test_a_cell_is_one_line_without_a_column_of_its_own():
    assert reference_docs.cell("a |\n  b") == "a \\| b"
