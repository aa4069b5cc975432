"""Reads and writes the dashboards' JSON files, which `grafana.build` creates and the wheel contains."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"
PREFIX: Final = "fabrictime-"
"""Prefix of the uid of every dashboard."""


def read_all(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the dashboards in a folder by uid, by default those built. Raises ValueError if it has none."""
    folder = FOLDER if folder is None else folder
    paths = sorted(folder.glob(f"{PREFIX}*.json"))
    if not paths:
        raise ValueError(f"{folder}: no dashboards, expected those that `make build` writes")
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def write_all(folder: Path, dashboards: Mapping[str, Any]) -> list[Path]:
    """Write each dashboard to a file, and remove the files of any others. Return the paths."""
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
