"""Each verdict has a page with the same sections, and each page a verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fabrictime.postmortem.verdict import VERDICTS
from schemas.records import Verdict

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "verdicts"
ALL = sorted({*map(str, Verdict), *VERDICTS})
SECTIONS = ["Meaning", "Evidence", "Do", "Another verdict"]


def page_name(verdict):
    return f"{verdict.lower().replace('_', '-')}.md"


@pytest.mark.parametrize("verdict", ALL)
def test_each_verdict_has_a_page(verdict):
    page = (FOLDER / page_name(verdict)).read_text()
    heading, *sections = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    assert heading.endswith(f" ({verdict})")
    assert sections == SECTIONS
    parts = re.split(r"^#+ .*$", page, flags=re.MULTILINE)
    assert all(part.strip() for part in parts[2:])


def test_no_page_is_left_over():
    expected = {*map(page_name, ALL), "incidents.md"}
    assert {path.name for path in FOLDER.iterdir()} == expected
