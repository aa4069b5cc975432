"""Form of the `.avsc` files: one line for each field, and named ranges."""

import json

import pytest

from schemas import codec
from tools import format_schemas

FIELDS = [
    {"name": "share", "type": "double", "doc": "0 to 1", "default": 0, "min": 0, "max": 1, "max_items": 4},
    {"name": "level", "type": "int", "doc": "of a kind", "min": 3, "max": 5},
]
INNER = {"type": "record", "name": "Inner", "doc": "Inner.", "fields": FIELDS}
OUTER = {
    "type": "record",
    "name": "Outer",
    "fields": [{"name": "parts", "type": {"type": "array", "items": INNER}, "doc": "ü"}],
}


@pytest.mark.parametrize("name", codec.record_names())
def test_the_file_is_formatted(name):
    text = (format_schemas.ROOT / "schemas" / f"{name}.avsc").read_text()
    assert text == format_schemas.text_of(json.loads(text)), "run python tools/format_schemas.py"


def test_each_field_has_a_line_and_a_range_its_name():
    text = format_schemas.text_of(OUTER)
    assert [line.strip()[:16] for line in text.splitlines()] == [
        '{"type": "record',
        '{"name": "parts"',
        '{"name": "share"',
        '{"name": "level"',
        ']}}, "doc": "ü"}',
        "]}",
    ]
    assert '"default": 0, "range": "share", "max_items": 4}' in text
    assert '"min": 3, "max": 5}' in text
    assert format_schemas.text_of(json.loads(text)) == text


def test_a_named_range_is_read_as_its_limits():
    read = json.loads(format_schemas.text_of(OUTER), object_hook=codec._with_limits)
    assert read == OUTER


def test_the_check_names_a_file_and_leaves_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "schemas").mkdir()
    path = tmp_path / "schemas" / "Outer.avsc"
    path.write_text(json.dumps(OUTER, indent=2))
    monkeypatch.setattr(format_schemas, "ROOT", tmp_path)
    assert format_schemas.main(["--check"]) == 1
    assert capsys.readouterr().out.startswith("Outer.avsc: run ")
    assert path.read_text() == json.dumps(OUTER, indent=2)
    assert format_schemas.main([]) == format_schemas.main(["--check"]) == 0
    assert path.read_text() == format_schemas.text_of(OUTER)
