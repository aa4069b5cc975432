"""Notifies the service manager (systemd) that started this process."""

from __future__ import annotations

import os

from sdnotify import SystemdNotifier


class ServiceNotifier(SystemdNotifier):  # type: ignore[misc]  # it has no types
    """A notifier that opens no socket if no service manager runs; sdnotify's own notifier leaves one open."""

    def __init__(self) -> None:
        self.debug, self.socket = False, None
        if os.environ.get("NOTIFY_SOCKET"):
            super().__init__()
