"""Texts of link-health records: names of subjects, counts and times."""

from __future__ import annotations

import pytest

from schemas.ids import host_of
from streams.links.evidence.path_table import PathTable
from streams.links.health.text import clock_text, count_text, subject_text


class Table:
    """The part of a path table that names subjects: one NIC, and two parallel cables."""

    def __init__(self) -> None:
        self.index = {"h1/eth1": 1}
        self.nics = {"h1/eth1": None}
        self.parallel_cables = {("leaf1", "spine1"): {("u1", "p1"), ("u2", "p2")}}


@pytest.mark.parametrize(
    ("name", "kind", "bad", "text"),
    [
        ("h1/eth1", "NIC", [], "NIC h1/eth1"),
        ("h1", "HOST", [], "host h1"),
        ("leaf2:u1<>spine3:p1", "LINK", [], "leaf2 to spine3"),
        ("leaf2:u1<>spine3:p1", "LINK", ["spine3:p1>leaf2:u1"], "spine3 to leaf2"),
        ("leaf1:u1<>spine1:p1", "LINK", [], "leaf1:u1 to spine1:p1"),
        ("a1:p1<>h1:eth1", "LINK", [], "h1/eth1 to a1"),
    ],
)
def test_a_subject_is_named_for_people(name: str, kind: str, bad: list[str], text: str) -> None:
    table: PathTable = Table()  # type: ignore[assignment]
    assert subject_text(table, name, kind, bad) == text


def test_counts_and_times_are_written_out() -> None:
    assert [count_text(n, "path") for n in (0, 1, 1204)] == ["0 paths", "1 path", "1,204 paths"]
    assert clock_text(1_700_000_000_123_456_789) == "22:13:20.123"
    assert host_of("h1/eth1") == "h1"
