"""Reads the cases of `tests/field/`, one TOML file each, and the lists of case ids in the same folder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

FOLDER: Final = Path(__file__).resolve().parents[3] / "tests" / "field"
OPEN: Final = FOLDER / "open.txt"
"""List of the cases that are wrong today."""
WRONG_AT_FIRST: Final = FOLDER / "wrong_at_first_run.txt"
"""List of the cases that were wrong when their batch was run for the first time."""
COLLECTED: Final = "collected"
"""Beginning of the names of batches that were found by search; others were handed over or composed."""
FRESH: Final = "fresh"
"""Batch of the cases that were collected after the last change of the code that they test."""

Kind = Literal["audit", "imports", "hosts"]
Table = Mapping[str, Any]
"""A table of TOML, as its reader returns it."""


class BadCase(ValueError):
    """The file is not a valid case; the message is one line."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The right result of one check. A field that is None, or empty, is not compared."""

    check: str
    verdicts: tuple[str, ...]
    """Any of PASSED, WARNING, FAILED, SKIPPED, UNKNOWN. WARNING: failed, but the check only warns."""
    subjects: tuple[str, ...] | None = None
    """Subjects of the findings that fail, all of them."""
    contains: tuple[str, ...] = ()
    """Texts that the result must contain, whatever their case."""
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """An input of a field case with its expected result."""

    case_id: str
    kind: Kind
    check: str
    """The check, or the format of an import, or the kind of a host: at most three cases have the same."""
    source: str
    batch: str
    table: Table = field(repr=False, compare=False)
    """The whole file."""

    @property
    def is_collected(self) -> bool:
        """Whether the case was found by search in public sources."""
        return self.batch.startswith((COLLECTED, FRESH))


def load(folder: Path = FOLDER) -> dict[str, Case]:
    """Return all cases by id, which is the file's name. Raises BadCase, OSError."""
    cases: dict[str, Case] = {}
    for path in sorted(folder.rglob("*.toml")):
        case = _case(path)
        if case.case_id in cases:
            raise BadCase(f"{path}: another file has the id {case.case_id!r}")
        cases[case.case_id] = case
    return cases


def _case(path: Path) -> Case:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        kind, source = table["kind"], table["source"]
        if kind not in ("audit", "imports", "hosts"):
            raise BadCase(f"{path}: kind {kind!r}, expected audit, imports or hosts")
        name = table[{"audit": "check", "imports": "format", "hosts": "model"}[kind]]
        return Case(path.stem, kind, name, source, table["batch"], table)
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise BadCase(f"{path}: {error}, expected a case as CONTRIBUTING.md describes it") from None


def expected(tables: Iterable[Table], check: str = "") -> list[Expected]:
    """Return the expected results that tables of a case state; `check` is the default check of a table."""
    return [
        Expected(
            table.get("check", check),
            _texts(table["verdict"]),
            tuple(table["subjects"]) if "subjects" in table else None,
            _texts(table.get("contains", ())),
            _texts(table.get("lacks", ())),
        )
        for table in tables
    ]


def _texts(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def ids(path: Path) -> set[str]:
    """Return the ids of a list: the first word of each line, except comment lines, which begin with #."""
    if not path.is_file():
        return set()
    lines = path.read_text(encoding="utf-8").splitlines()
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


def text_fault(contains: Iterable[str], lacks: Iterable[str], text: str) -> str:
    """Return an error text if a result's text lacks or contains the wrong words; empty if it is right.

    The case of letters is ignored.
    """
    lower = text.lower()
    for part in contains:
        if part.lower() not in lower:
            return f"does not contain {part!r}: {text[:200]}"
    for part in lacks:
        if part.lower() in lower:
            return f"contains {part!r}: {text[:200]}"
    return ""
