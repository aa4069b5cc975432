"""Settings files: encodings, suffixes, files that are no table, and the fast reader of large fleets."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.settings_file import BadFile, parse_rows, read_tables


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.toml", b"[a]\nb = 1\n"),
        ("mark.toml", b"\xef\xbb\xbf[a]\nb = 1\n"),
        ("windows.toml", b"[a]\r\nb = 1\r\n"),
        ("no_suffix", b"[a]\nb = 1\n"),
        ("plain.json", b'{"a": {"b": 1}}'),
        ("upper.JSON", b'\xef\xbb\xbf{"a": {"b": 1}}'),
    ],
)
def test_encodings_and_suffixes_of_real_tools_are_read(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert read_tables(path) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.json", b"[]", "expected tables at the top level, found a list"),
        ("f.json", b"null", "expected tables at the top level, found null"),
        ("f.json", b"3", "expected tables at the top level, found a number"),
        ("f.json", b"[" * 100_000, "nested deeper than 32 levels"),
        ("f.json", b'{"a":' * 40 + b"1" + b"}" * 40, "nested deeper than 32 levels"),
        ("f.toml", b"a = " + b"[" * 100_000, "nested deeper than 32 levels"),
        ("f.json", b"{", "not a JSON file: Expecting property name"),
        ("f.toml", b"a = 1" * 9, "not a TOML file: Expected newline"),
        ("f.toml", b"a = '\xff'", "not UTF-8 at byte 5"),
    ],
)
def test_other_content_is_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadFile, match=message) as refused:
        read_tables(path)
    assert "\n" not in str(refused.value)


def test_paths_that_cannot_be_opened_are_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "none", tmp_path / "a\0b"):
        with pytest.raises(BadFile):
            read_tables(path)


LINES = st.sampled_from(
    ["[[nics]]", "[[nics]] ", "[nics]", "", "# text", "# a\x0cb = 1", "\t"]
    + [
        f'{key} = "{value}"'
        for key in ("host", "rail", "a-b")
        for value in ("h1", "a\tb", "é", "a\\n", "\u2028")
    ]
    + [
        "rail = 7",
        "rail = 007",
        "rail = 1_0",
        "rail=-1",
        'rack = "a" # why',
        "a.b = 1",
        'a = "x" "',
        "rack = ''",
    ]
)


@given(st.lists(LINES, max_size=8))
def test_the_fast_reader_agrees_with_the_full_parser_or_leaves_the_text_to_it(lines):
    fast = parse_rows(lines, "nics")
    if fast is not None:
        assert {"nics": fast} == tomllib.loads("\n".join(lines))


def test_the_fast_reader_takes_a_regular_fleet():
    text = '# fleet\n[[nics]]\nhost = "h1"\nrail = 0\n\n[[nics]]\nhost = "h2"\n'
    assert parse_rows(text.split("\n"), "nics") == [{"host": "h1", "rail": 0}, {"host": "h2"}]
