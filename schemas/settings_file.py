"""Reads settings, fleet and topology files: TOML, or JSON if the name ends in .json in any case.

Every reader of such a file uses `read_tables`, so that all of them accept and refuse the same files.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from schemas.input_error import InputError

MAX_DEPTH: Final = 32
"""Tables and lists nested deeper are refused: no setting needs them, and later code recurses over them."""
MAX_TEXT: Final = 200
"""An error quotes at most this many characters of a parser's message."""

_ROW: Final = re.compile(
    r'([A-Za-z0-9_-]+)[ \t]*=[ \t]*(?:"([^"\\\x00-\x1f\x7f]*)"|(0|[1-9][0-9]{0,17}))[ \t]*'
)


class BadFile(InputError):
    """The file cannot be read; the text is one line without the path."""


def read_tables(path: Path, rows: str = "") -> dict[str, Any]:
    """Return the content of a file. Raises BadFile.

    `rows`: name of the array of tables that a large file consists of; files of only that array parse faster.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
    except UnicodeDecodeError as error:
        raise BadFile(f"not UTF-8 at byte {error.start}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise BadFile(f"{getattr(error, 'strerror', None) or error}") from None
    kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
    try:
        content: Any = json.loads(text) if kind == "JSON" else _toml(text, rows)
    except RecursionError:
        raise BadFile(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise BadFile(f"not a {kind} file: {' '.join(str(error).split())[:MAX_TEXT]}") from None
    if not isinstance(content, dict):
        raise BadFile(f"expected tables at the top level, found {_KINDS.get(type(content), 'a value')}")
    if _too_deep(content):
        raise BadFile(f"nested deeper than {MAX_DEPTH} levels")
    return content


_KINDS: Final[dict[type, str]] = {
    list: "a list",
    type(None): "null",
    int: "a number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}


def _toml(text: str, rows: str) -> dict[str, Any]:
    regular = parse_rows(text.split("\n"), rows) if rows else None
    return tomllib.loads(text) if regular is None else {rows: regular}


def parse_rows(lines: Iterable[str], name: str) -> list[dict[str, str | int]] | None:
    """Return the tables of a TOML text with nothing but `[[name]]` tables of plain strings and numbers.

    Return None for any other text, valid or not: it needs the full parser, which is 10 times slower.
    """
    header = f"[[{name}]]"
    rows: list[dict[str, str | int]] = []
    row: dict[str, str | int] | None = None
    match = _ROW.fullmatch
    for line in lines:
        if line == header:
            row = {}
            rows.append(row)
        elif (parts := match(line)) and row is not None and parts[1] not in row:
            text = parts[2]
            row[parts[1]] = int(parts[3]) if text is None else text
        elif line and not (line[0] == "#" and line.isprintable()):
            return None
    return rows or None


def _too_deep(content: object) -> bool:
    level: list[object] = [content]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
