"""Reads and writes the JSON files of the dashboards, which `grafana.build` makes and the wheel carries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"
PREFIX: Final = "fabrictime-"
"""All uids of dashboards begin with it."""


def read_all(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the dashboards of a folder by uid, by default the built ones. Raises ValueError for none."""
    folder = FOLDER if folder is None else folder
    paths = sorted(folder.glob(f"{PREFIX}*.json"))
    if not paths:
        raise ValueError(f"{folder}: no dashboards, expected those that `make build` writes")
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def write_all(folder: Path, dashboards: Mapping[str, Any]) -> list[Path]:
    """Write each dashboard to a file, and remove files of dashboards that are no more. Return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [_write(folder / f"{uid}.json", dashboard) for uid, dashboard in dashboards.items()]
    _remove(set(folder.glob(f"{PREFIX}*.json")) - set(written))
    return written


def _write(path: Path, dashboard: Any) -> Path:
    path.write_text(json.dumps(dashboard, indent=1) + "\n", encoding="utf-8")
    return path


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink()
