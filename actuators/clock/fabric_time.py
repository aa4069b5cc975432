"""Provides fabric time from a clock page of this machine, else from the system clock.

All pages of a machine hold the same time. Simulated hosts have their own time, which may be slower.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from actuators.clock.page import (
    COPY_AT,
    COPY_BYTES,
    MAGIC,
    PAGE_BYTES,
    SEQUENCE_AT,
    Content,
    unpack,
)
from native.core.hostclock import PageWriter, raw_ns
from schemas.records import ClockSync

_REFRESH_NS: Final = 200_000_000


class FabricTime:
    """A callable that returns fabric time. It reads a page again every 200 ms."""

    def __init__(self, pages: Sequence[Path]) -> None:
        self._pages = list(pages)
        self._content: Content | None = None
        self._refresh_raw_ns = 0

    def __call__(self) -> int:
        """Return fabric time in ns since the Unix epoch."""
        now_ns = raw_ns()
        if now_ns >= self._refresh_raw_ns:
            self._refresh_raw_ns = now_ns + _REFRESH_NS
            self._content = self._refresh(now_ns)
        content = self._content
        if content is None or now_ns >= content.expires_raw_ns:
            return time.time_ns()
        time_ns, rest = content.slewed.fabric_ns(now_ns)
        return time_ns + round(rest)

    @property
    def known(self) -> bool:
        """True if a page provides the time; False if the system clock does."""
        return self._content is not None

    def _refresh(self, now_ns: int) -> Content | None:
        for path in self._pages[:2]:
            content = _read(path)
            if (
                content is not None
                and content.state != ClockSync.UNSYNCED
                and now_ns < content.expires_raw_ns
            ):
                return content
        self._pages = [*self._pages[2:], *self._pages[:2]]  # try other pages next time
        return None


class SimulatedHostTime:
    """A callable that returns the time of simulated hosts, as last reported by their simulation.

    The time never runs ahead of the simulation, so no decision expires early for simulated hosts. Until the
    first report, the time is that of the system clock.
    """

    def __init__(self) -> None:
        self._now_ns: int | None = None

    def __call__(self) -> int:
        """Return the simulated hosts' time in ns since the Unix epoch."""
        return time.time_ns() if self._now_ns is None else self._now_ns

    def take(self, now_ns: int) -> None:
        """Set the time that the simulation reports. A restarted simulation may start at any time."""
        self._now_ns = now_ns


def _read(path: Path) -> Content | None:
    """Return the content of the page at `path`; None if the page cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_size == PAGE_BYTES and os.pread(fd, len(MAGIC), 0) == MAGIC:
                page = PageWriter(fd, PAGE_BYTES, SEQUENCE_AT, COPY_AT, COPY_BYTES)
                try:
                    content = unpack(page.read())
                finally:
                    page.close()
                return None if content is None or content.retired else content
        finally:
            os.close(fd)
    return None
