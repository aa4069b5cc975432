"""Reads and writes the dashboards' JSON files, which `grafana.build` creates and the wheel contains."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"
PREFIX: Final = "fabrictime-"
"""Prefix of the uid of every dashboard."""
PAGE: Final = "page"
"""Variable of each dashboard that holds the live page's address in the viewer's browser."""
PAGE_URL: Final = "http://127.0.0.1:8480"


def read_all(folder: Path | None = None, page_url: str = PAGE_URL) -> dict[str, dict[str, Any]]:
    """Return the dashboards in a folder by uid, by default the built ones, with links to the live page.

    `page_url` is the page's address. Raises ValueError if the folder has no dashboards, or if `page_url` is
    not http(s)://host.
    """
    parts = urlsplit(page_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(f"page URL {page_url!r}: expected http://host:port")
    folder = FOLDER if folder is None else folder
    paths = sorted(folder.glob(f"{PREFIX}*.json"))
    if not paths:
        raise ValueError(f"{folder}: no dashboards, expected those that `make build` writes")
    boards = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    for board in boards.values():
        for variable in board.get("templating", {}).get("list", []):
            if variable["name"] == PAGE:
                variable["query"] = page_url.rstrip("/")
    return boards


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
