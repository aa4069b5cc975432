"""The services of this machine's `up` that do not work, for the page's banner.

`up` writes the state of its services each second. Without `up`, the banner lists no services.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

PERIOD_S: Final = 1.0
"""Time between two readings of the state file, s, for all tabs together."""
SHOWN: Final = 3
"""Number of services that the banner names; further ones are counted."""


class ServiceFaults:
    """Reads the services that do not work, with their reasons, from the state that `up` writes."""

    def __init__(self, path: Path | None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock_s = path, clock_s
        self._faults: list[str] = []
        self._read_s = float("-inf")

    def faults(self) -> list[str]:
        """Return a line for each service that does not work."""
        now_s = self._clock_s()
        if self._path is not None and now_s - self._read_s >= PERIOD_S:
            self._read_s = now_s
            self._faults = _read(self._path)
        return self._faults


def _read(path: Path) -> list[str]:
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return [f"{row['name']}: {row['fault']}" for row in state["children"] if row["fault"] is not None]
    except (OSError, ValueError, LookupError, TypeError):
        return []  # `up` is just starting or ends


def banner_text(message: str, faults: Sequence[str]) -> str:
    """Return the banner's text with the services that do not work appended."""
    if not faults:
        return message
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    count = "1 service does" if len(faults) == 1 else f"{len(faults)} services do"
    text = f"{count} not work: {'; '.join(faults[:SHOWN])}{more}."
    return f"{message} {text}" if message else text
