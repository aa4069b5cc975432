"""Reads and writes baseline files."""

from __future__ import annotations

from pathlib import Path

from schemas.settings_file import BadFile, read_tables
from streams.audit.baseline import Baseline, BaselineError, parse, to_toml

__all__ = ["load_baseline", "write_baseline"]


def load_baseline(path: Path) -> Baseline:
    """Return the baseline of a TOML or JSON file. Raises BaselineError with one line."""
    where = f"baseline {path}"
    try:
        return parse(read_tables(path), where)
    except BadFile as error:
        raise BaselineError(f"{where}: {error}") from None


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a TOML file, complete or not at all. Raises BaselineError."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(to_toml(baseline), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise BaselineError(f"baseline {path}: {error.strerror}, expected a file to write") from None
