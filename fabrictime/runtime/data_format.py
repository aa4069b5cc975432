"""Marks the folders of log and history with the format of their data. Folders with data of another format are
renamed.
"""

from __future__ import annotations

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
    """Rename the folders with data of another format, and create marked, empty ones in their place.

    Returns a line about the renamed folders, empty if there are none. Raises ValueError if a folder cannot be
    renamed or marked.
    """
    renamed = [aside for folder in folders if (aside := _renewed(folder.resolve())) is not None]
    if not renamed:
        return ""
    names = " and ".join(map(str, renamed))
    return f"data of another format than {FORMAT}, which is not read: moved to {names}; new data begins"


def _renewed(folder: Path) -> Path | None:
    """Mark a folder. Return the new path of its former data if that has another format, else None."""
    mark, aside = folder / MARK, None
    try:
        written = mark.read_text(encoding="utf-8").strip() if mark.exists() else "1"
        if written == str(FORMAT):
            return None
        if folder.exists() and any(folder.iterdir()):
            aside = _free_name(folder.with_name(f"{folder.name}.format-{written}"))
            folder.rename(aside)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.write_text(f"{FORMAT}\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}, expected a folder that we can rename") from error
    return aside


def _free_name(path: Path) -> Path:
    names = (path if number == 1 else path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(name for name in names if not name.exists())
