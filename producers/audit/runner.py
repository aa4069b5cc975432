"""Runs checks of a host, several at once, each within its time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from producers.audit.base import Check, Result, run_check
from producers.audit.host import Host
from schemas.records import AuditStatus

AT_ONCE: Final = 8
"""Threads. They wait for devices and commands, and use little processor time."""
WAKE_S: Final = 0.25


def run_checks(
    requested: Sequence[Check], host: Host, until_s: float = float("inf"), hanging: set[str] | None = None
) -> Iterator[Result]:
    """Yield each check's result as it ends. One that exceeds its limit is UNKNOWN, and its thread is left.

    At `until_s`, a time of time.monotonic, all checks that remain are UNKNOWN. A read that a dead device
    holds up cannot be interrupted, so that the threads are daemons, and every check that hangs is replaced
    by another thread. `hanging` holds the ids of the host's checks that hang: they are not run again.
    """
    hanging = set() if hanging is None else hanging
    checks = [check for check in requested if check.check_id not in hanging]
    yield from (
        unknown(check, "it still hangs from a former run") for check in requested if check not in checks
    )
    work = _Work(checks, host, hanging)
    if time.monotonic() < until_s:
        for _ in range(min(AT_ONCE, len(checks))):
            work.start()
    left = {check.check_id: check for check in checks}
    while left:
        now_s = time.monotonic()
        if now_s >= until_s:
            work.stop()
            yield from (unknown(check, "the run's time limit was reached") for check in left.values())
            return
        try:
            check, result = work.done.get(timeout=work.wait_s(now_s, min(until_s, now_s + WAKE_S)))
        except queue.Empty:
            for check, took_s in work.overdue():
                if left.pop(check.check_id, None) is not None:
                    work.start()
                    yield unknown(check, f"no end within {check.limit_s:g} s", took_s)
            continue
        if left.pop(check.check_id, None) is not None:
            yield result


def unknown(check: Check, text: str, took_s: float = 0.0) -> Result:
    """Return the result of a check without an outcome."""
    return Result(check, AuditStatus.UNKNOWN, text, (), took_s)


class _Work:
    """The checks of one run: those that wait, those that run, and the results."""

    def __init__(self, checks: Sequence[Check], host: Host, hanging: set[str]) -> None:
        self._host, self._hanging = host, hanging
        self._waiting = list(reversed(checks))
        self._running: dict[Check, float] = {}
        self._lock = threading.Lock()
        self.done: queue.SimpleQueue[tuple[Check, Result]] = queue.SimpleQueue()

    def start(self) -> None:
        """Start a thread."""
        threading.Thread(target=self._run, name="audit check", daemon=True).start()

    def stop(self) -> None:
        """Begin no further check. Those that run count as hanging until they end."""
        with self._lock:
            self._waiting.clear()
            self._hanging |= {check.check_id for check in self._running}
            self._running.clear()

    def wait_s(self, now_s: float, until_s: float) -> float:
        """Return s until a check exceeds its limit, or `until_s`."""
        with self._lock:
            limits = [since_s + check.limit_s for check, since_s in self._running.items()]
        return max(0.0, min([until_s, *limits]) - now_s) + 0.01

    def overdue(self) -> list[tuple[Check, float]]:
        """Return the checks that exceeded their limit, with their s, and forget them."""
        now_s = time.monotonic()
        with self._lock:
            overdue_checks = [
                (check, now_s - since_s)
                for check, since_s in self._running.items()
                if now_s - since_s > check.limit_s
            ]
            for check, _ in overdue_checks:
                del self._running[check]
                self._hanging.add(check.check_id)
        return overdue_checks

    def _next(self) -> Check | None:
        """Take a check that may run now: one load at a time, so that none spoils another's figures."""
        is_loaded = any(check.active for check in self._running)
        for index in range(len(self._waiting) - 1, -1, -1):
            if not (is_loaded and self._waiting[index].active):
                return self._waiting.pop(index)
        return None

    def _run(self) -> None:
        while True:
            with self._lock:
                check = self._next()
                if check is None:
                    return
                since_s = self._running[check] = time.monotonic()
            result = run_check(check, self._host)
            with self._lock:
                is_late = self._running.pop(check, None) is None
                self._hanging.discard(check.check_id)
            self.done.put((check, replace(result, took_s=time.monotonic() - since_s)))
            if is_late:
                return  # another thread has taken this one's place
