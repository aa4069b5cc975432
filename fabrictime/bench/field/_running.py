"""Starts `fabrictime up` for the parts of this bench, on ports and folders of its own, and waits for it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fabrictime.bench._fabric import CannotRun
from fabrictime.runtime import status

POLL_S: Final = 0.2


def settings_text(more: str = "") -> str:
    """Return settings with free ports, so that no other pipeline of the machine is met."""
    return f"[log]\nport = 0\n[history]\nport = 0\n[web]\nport = 0\n{more}"


def wait_for(is_done: Callable[[], bool], limit_s: float) -> float | None:
    """Wait until `is_done`; return the time that took, s, or None if it took longer than `limit_s`."""
    began_s = time.monotonic()
    while time.monotonic() < began_s + limit_s:
        if is_done():
            return time.monotonic() - began_s
        time.sleep(POLL_S)
    return None


def state_of(data: Path) -> dict[str, Any] | None:
    """Return the state of the `up` of a data directory; None while there is none."""
    with contextlib.suppress(ValueError):
        return status.read(data)
    return None


def is_well(data: Path) -> bool:
    """Return whether all services work and no evidence is missing."""
    state = state_of(data)
    return state is not None and not status.wrong(state)


def wait_until_ready(up: subprocess.Popen[bytes], data: Path, output: Path, limit_s: float) -> None:
    """Wait until all services of an `up` work. Raises CannotRun."""
    if wait_for(lambda: up.poll() is not None or is_well(data), limit_s) is None or up.poll() is not None:
        lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise CannotRun(f"fabrictime up: {lines[-1] if lines else f'ended with {up.returncode}'}")
