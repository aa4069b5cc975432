"""Marks the folders of log and history with their data's format; renames folders of another format."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Final

FORMAT: Final = 2
"""Number of the data format. It rises when readers lose the schemas of earlier records. Folders without a
mark have format 1, from before schemas were released in one file.
"""
MARK: Final = "format"


def set_aside(folders: Iterable[Path]) -> str:
    """Rename the folders with data of another format, and create marked, empty folders in their place.

    Returns a line about the renamed folders, empty if there are none. Raises ValueError if that fails.
    """
    renamed: list[Path] = []
    for folder in folders:
        try:
            _renew(folder.resolve(), renamed)
        except OSError as error:
            moved = f"; its former data are in {' and '.join(map(str, renamed))}" if renamed else ""
            raise ValueError(
                f"{folder}: {error.strerror}, expected a folder that we can rename{moved}"
            ) from error
    if not renamed:
        return ""
    names = " and ".join(map(str, renamed))
    return f"data of another format than {FORMAT}, which is not read: moved to {names}; new data begins"


def _renew(folder: Path, renamed: list[Path]) -> None:
    """Mark a folder; add the new name of its former data to `renamed`. Raises OSError."""
    mark = folder / MARK
    written = (mark.read_text(encoding="utf-8").strip() or "1") if mark.exists() else "1"
    if written == str(FORMAT):
        return
    if folder.exists() and any(folder.iterdir()):
        aside = _free_name(folder.with_name(f"{folder.name}.format-{written}"))
        folder.rename(aside)
        renamed.append(aside)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    new_mark = folder / f"{MARK}.new"  # complete, or not there
    with new_mark.open("w", encoding="utf-8") as file:
        file.write(f"{FORMAT}\n")
        file.flush()
        os.fsync(file.fileno())
    new_mark.rename(mark)


def _free_name(path: Path) -> Path:
    names = (path if number == 1 else path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(name for name in names if not name.exists())
