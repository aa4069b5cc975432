"""Waits for conditions and for the end of programs."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any


def wait_for(is_done: Callable[[], object], limit_s: float, poll_s: float = 0.1) -> float | None:
    """Wait until `is_done()` is true; return the seconds waited, or None after `limit_s`."""
    began_s = time.monotonic()
    while not is_done():
        if time.monotonic() > began_s + limit_s:
            return None
        time.sleep(poll_s)
    return time.monotonic() - began_s


def wait_until(is_done: Callable[[], object], limit_s: float, name: str, poll_s: float = 0.05) -> None:
    """Wait until `is_done()` is true. Raises TimeoutError, with a message that begins with `name`."""
    if wait_for(is_done, limit_s, poll_s) is None:
        raise TimeoutError(f"{name}: not within {limit_s:g} s")


def end_child(child: subprocess.Popen[Any], request: signal.Signals, limit_s: float) -> None:
    """Send `request` to a child process, and kill it if it has not ended after `limit_s`."""
    child.send_signal(request)
    try:
        child.wait(limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
