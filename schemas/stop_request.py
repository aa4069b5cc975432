"""Implements a stop request that SIGTERM and SIGINT set, and that a service can wait for."""

from __future__ import annotations

import os
import select
import signal
import threading
from types import FrameType


class StopRequest:
    """A flag that, when set, also makes `fd` readable, which ends a poll. Signal handlers may set it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_set = False

    def set(self) -> None:
        """Request the service to stop."""
        self._is_set = True
        os.eventfd_write(self.fd, 1)

    def is_set(self) -> bool:
        """Return whether a stop has been requested."""
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for a stop request; return whether a stop has been requested."""
        select.select([self.fd], [], [], max(0.0, timeout_s))
        return self._is_set

    def set_on_signals(self) -> bool:
        """Make SIGTERM and SIGINT set the request; return False outside the main thread, where it fails."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.set()

        if threading.current_thread() is not threading.main_thread():
            return False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        return True
