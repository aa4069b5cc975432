"""Runs several services as parts of one process: the main part in this thread, each other in a thread.

A host's agent is one process, because each process costs 40 MB for the same interpreter and libraries. A part
that fails is restarted alone, after the supervisor's pauses, and the process reports its fault meanwhile. A
part with a watchdog that hangs ends the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from fabrictime.runtime.supervisor import CONFIG_EXIT, REFUSED_DELAYS_S, RESTART_DELAYS_S, STEADY_S
from schemas.process_part import Part, own_process
from schemas.service_notifier import ServiceNotifier

_log = logging.getLogger(__name__)

Service = Callable[[Part], int | None]
"""Runs until its part's stop request, and returns its exit code."""
CLOSE_S: Final = 3.0
"""Time for the parts to send their last records, within the supervisor's stop time-out."""


class PartNotifiers:
    """Merges the status and fault of all parts into one. Only the main part reports that it is ready."""

    def __init__(self, main: str, notifier: ServiceNotifier) -> None:
        self._main, self._notifier = main, notifier
        self._lock = threading.Lock()
        self._texts: dict[str, dict[str, str]] = {"STATUS": {}, "X_FAULT": {}}

    def of(self, part: str) -> ServiceNotifier:
        """Return the notifier of a part."""
        return _PartNotifier(partial(self.take, part))

    def take(self, part: str, state: str) -> None:
        """Process a notification (such as `STATUS=line`) of a part."""
        variable, _, value = state.partition("=")
        if variable in self._texts:
            with self._lock:
                texts = self._texts[variable]
                texts[part] = value
                rest = [f"{name}: {text}" for name, text in texts.items() if text and name != self._main]
                state = f"{variable}={'; '.join(filter(None, [texts.get(self._main), *rest]))}"
                self._notifier.notify(state)
        elif part == self._main or variable == "WATCHDOG":
            self._notifier.notify(state)


class _PartNotifier(ServiceNotifier):
    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take

    def notify(self, state: str) -> None:
        """Pass a message to the notifier of all parts."""
        self._take(state)


def run_parts(main: tuple[str, Service], parts: Mapping[str, Service]) -> int:
    """Run the parts until the main part ends, and return its exit code."""
    name, service = main
    process = own_process()
    notifiers = PartNotifiers(name, process.notifier)
    threads = [
        threading.Thread(target=_keep, args=(part, run, Part(process.stop, notifiers.of(part))), daemon=True)
        for part, run in parts.items()
    ]
    for thread in threads:
        thread.start()
    try:
        return service(Part(process.stop, notifiers.of(name))) or 0
    finally:
        process.stop.set()
        until_s = time.monotonic() + CLOSE_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))


def _keep(name: str, service: Service, part: Part) -> None:
    """Run a part, and restart it whenever it ends, until a stop is requested."""
    failures = 0
    while not part.stop.is_set():
        began_s = time.monotonic()
        fault, delays_s = _fault_of(name, service, part)
        if part.stop.is_set():
            return
        failures = 0 if time.monotonic() - began_s > STEADY_S else failures
        part.notifier.notify(f"X_FAULT={fault}")
        part.stop.wait(delays_s[min(failures, len(delays_s) - 1)])
        failures += 1
        part.notifier.notify("X_FAULT=")


def _fault_of(name: str, service: Service, part: Part) -> tuple[str, tuple[float, ...]]:
    """Run a part until it ends; return (its fault as text, the pauses in s before further starts)."""
    try:
        code = service(part) or 0
    except Exception as error:  # noqa: BLE001  # any failure of a part, so that the others continue
        _log.exception("%s failed", name)
        return f"{type(error).__name__}: {error}", RESTART_DELAYS_S
    if code == CONFIG_EXIT:
        return "cannot start, see its log", REFUSED_DELAYS_S
    return f"ended with exit code {code}", RESTART_DELAYS_S
