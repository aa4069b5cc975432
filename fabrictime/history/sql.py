"""Parses the SQL of a request and decides whether the endpoint runs it; needs no engine.

The engine's grants limit a reader to the project's tables. This module enforces the rest: one statement per
request, no change of role, no file access by a function or INTO OUTFILE. The scanner refuses all syntax that
it might read differently from the engine: heredocs, nested comments, `#` comments, non-ASCII outside quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SYNTAX_ERROR: Final = 62
ACCESS_DENIED: Final = 497

HEAD_BYTES: Final = 256 * 1024
"""Number of bytes within which an INSERT must name its format; the data follows after that."""

READ_STATEMENTS: Final = frozenset(
    {"SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS", "SET", "USE", "("}
)
DENIED_CALLS: Final = frozenset(
    {"file", "python", "executable", "executablepool", "fuzzjson", "catboostevaluate", "filecluster", "local"}
)
LIMITS: Final = frozenset({"MAX_EXECUTION_TIME", "MAX_MEMORY_USAGE", "MAX_RESULT_BYTES"})
"""Settings that a reader's statement may not contain. Parameters of a request can only lower them."""
FORBIDDEN_KEYWORDS: Final = frozenset({"OUTFILE", "INFILE", "DIALECT", "APPLY"})
"""Keywords that no statement may contain. APPLY calls functions without parentheses, past `DENIED_CALLS`."""

_TOKEN: Final = re.compile(
    r"""
      (?P<space>[ \t\r\n\f\v]+)
    | (?P<comment>--[^\n]*|/\*(?:(?!/\*|\*/)[\s\S])*\*/)
    | (?P<string>'(?:[^'\\]|\\[\s\S]|'')*')
    | (?P<quoted>"(?:[^"\\]|\\[\s\S]|"")*"|`(?:[^`\\]|\\[\s\S]|``)*`)
    | (?P<token>[A-Za-z_0-9]+)
    | (?P<mark>[-+%=<>!?:,.;(){}\[\]|&^~@]|/(?!\*)|\*(?!/))
    """,
    re.VERBOSE,
)


class Refused(Exception):
    """The endpoint refuses to run the statement. `code` is ClickHouse's error number for the reason."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Token:
    """A token of SQL. `kind` is string, quoted, token or mark; `end` is the position after the token."""

    kind: str
    text: str
    end: int


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement of a request. If `format` is set, the statement is an INSERT: `text` ends before FORMAT,
    and `data` holds the rows.
    """

    text: str
    keyword: str
    format: str | None = None
    data: bytes | memoryview = b""


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of `text` without white space and comments. Raises Refused if it is not plain SQL."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Refused(
                SYNTAX_ERROR, f"Syntax error at position {at}: {text[at : at + 20]!r} is not taken here"
            )
        at = match.end()
        kind = match.lastgroup or ""
        if kind not in ("space", "comment"):
            yield Token(kind, match.group(), at)


def parse(body: bytes, more: bytes = b"") -> Statement:
    """Return the statement in `body`, which continues in `more`. The data of a large INSERT is not copied.

    Raises Refused without a statement, for more than one, or for one that reads or writes files.
    """
    head = body[:HEAD_BYTES].decode("latin-1")
    first = next(tokens(head), None)
    if first is None:
        raise Refused(SYNTAX_ERROR, "Empty query")
    keyword = first.text.upper()
    if keyword == "INSERT":
        cut = _insert_data(head)
        if cut is not None:
            end, start, name = cut
            statement = body[:end].decode("latin-1")
            _check(statement)
            own = memoryview(body)[start:]
            data = own if not more else memoryview(more) if not len(own) else bytes(own) + b"\n" + more
            return Statement(_text(body[:end]), keyword, name, data)
    text = _text(body + b"\n" + more if more else body)
    return Statement(_check(text), keyword)


def check_reader(statement: Statement) -> None:
    """Raise Refused for a statement that the user `reader` may not run."""
    if statement.keyword not in READ_STATEMENTS:
        raise Refused(ACCESS_DENIED, f"reader: {statement.keyword[:32]} is not for readers")
    for token in tokens(statement.text):
        name = token.text.strip('`"').upper()
        if token.kind in ("token", "quoted") and (name in LIMITS or "\\" in name):
            raise Refused(ACCESS_DENIED, f"reader: {token.text[:40]} is not for readers")
    if statement.keyword == "SET" and any(
        token.kind != "string" and token.text.strip('`"').upper() == "ROLE"
        for token in tokens(statement.text)
    ):
        raise Refused(ACCESS_DENIED, "reader: SET ROLE is not for readers")


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(SYNTAX_ERROR, f"query is not UTF-8 at byte {error.start}") from error


def _insert_data(head: str) -> tuple[int, int, str] | None:
    """Return (end of the statement, start of the data, format) of an INSERT; None if it has no FORMAT."""
    depth = 0
    stream = tokens(head)
    for token in stream:
        if token.kind == "mark":
            depth += token.text in "([{"
            depth -= token.text in ")]}"
        elif token.kind == "token" and depth == 0:
            keyword = token.text.upper()
            if keyword in ("VALUES", "SELECT", "WITH"):
                return None
            if keyword == "FORMAT":
                name = next(stream, None)
                if name is None or name.kind != "token":
                    raise Refused(SYNTAX_ERROR, "INSERT … FORMAT: expected the name of a format")
                gap = re.compile(r"[ \t\f]*\r?\n?").match(head, name.end)
                return token.end - len("FORMAT"), gap.end() if gap else name.end, name.text
    return None


def _check(text: str) -> str:
    """Return `text` up to its closing semicolon. Raises Refused for a second statement, a forbidden keyword,
    or a call of a denied function.
    """
    end = len(text)
    closed = False
    before: Token | None = None
    for token in tokens(text):
        if closed:
            raise Refused(SYNTAX_ERROR, "Multi-statements are not allowed")
        if token.kind == "mark" and token.text == ";":
            closed, end = True, token.end - 1
        if token.kind == "token" and token.text.upper() in FORBIDDEN_KEYWORDS:
            raise Refused(ACCESS_DENIED, f"{token.text}: not allowed on this endpoint")
        if token.text == "(" and before is not None and before.kind in ("token", "quoted"):
            name = before.text.strip('`"').lower()
            if name in DENIED_CALLS or "\\" in name:
                raise Refused(ACCESS_DENIED, f"{name}(): not allowed on this endpoint")
        before = token
    return text[:end]
