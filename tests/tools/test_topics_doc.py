"""The page of topics and records: it is current, and names types and retention in words."""

import pytest

from schemas.topics import TOPICS
from tools import topics_doc


def test_the_page_is_current():
    assert topics_doc.PAGE.read_text() == topics_doc.page(), "run python tools/topics_doc.py"


def test_every_topic_has_a_section_with_its_record():
    page = topics_doc.page()
    for topic in TOPICS.values():
        assert f"\n## `{topic.name}`\n" in page
        assert f"\n### `{topic.record}`\n" in page


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("long", "long"),
        (["null", "double"], "null or double"),
        ({"type": "array", "items": "string"}, "array of string"),
        ({"type": "enum", "symbols": ["UP", "DOWN"]}, "UP / DOWN"),
        ({"type": "array", "items": {"type": "record", "name": "Hop"}}, "array of `Hop`"),
        ({"type": "long", "min": 0}, "long"),
    ],
)
def test_a_type_is_named_in_plain_english(kind, text):
    assert topics_doc.type_name(kind) == text


def test_records_inside_unions_and_arrays_get_a_table_of_their_own():
    hop = {"type": "record", "name": "Hop", "doc": "One hop.", "fields": []}
    route = {"type": "record", "name": "Route", "doc": "A route.", "fields": []}
    route["fields"] = [{"name": "hops", "type": ["null", {"type": "array", "items": hop}], "doc": "Hops."}]
    lines = topics_doc.record_lines(route, "###")
    assert [line for line in lines if line.startswith("#")] == ["### `Route`", "#### `Hop`"]
    assert "| `hops` | null or array of `Hop` | Hops. |" in lines
