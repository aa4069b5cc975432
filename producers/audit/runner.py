"""Runs checks of a host, several at once, each within its time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from producers.audit.base import Check, Result, run_check
from producers.audit.host.base import Host
from schemas.records import AuditStatus

AT_ONCE: Final = 8
"""Number of threads. They mostly wait for devices and commands, and use little processor time."""
WAKE_S: Final = 0.25


def run_checks(
    requested: Sequence[Check], host: Host, until_s: float = float("inf"), hanging: set[str] | None = None
) -> Iterator[Result]:
    """Yield each check's result as it ends. A check that exceeds its limit is UNKNOWN; its thread goes on.

    At `until_s`, by time.monotonic, all remaining checks are UNKNOWN. A read that a dead device blocks cannot
    be interrupted: so the threads are daemons, and a new thread replaces each one that hangs. `hanging` holds
    the ids of the host's checks that hang; they are not run again.
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
    """Return an UNKNOWN result of a check, with the reason `text`."""
    return Result(check, AuditStatus.UNKNOWN, text, (), took_s)


class _Work:
    """The checks of one run: waiting, running, and done with their results."""

    def __init__(self, checks: Sequence[Check], host: Host, hanging: set[str]) -> None:
        self._host, self._hanging = host, hanging
        self._waiting = list(reversed(checks))
        self._running: dict[Check, float] = {}
        self._lock = threading.Lock()
        self.done: queue.SimpleQueue[tuple[Check, Result]] = queue.SimpleQueue()

    def start(self) -> None:
        """Start a thread that runs waiting checks."""
        threading.Thread(target=self._run, name="audit check", daemon=True).start()

    def stop(self) -> None:
        """Begin no further check. Checks that still run count as hanging until they end."""
        with self._lock:
            self._waiting.clear()
            self._hanging |= {check.check_id for check in self._running}
            self._running.clear()

    def wait_s(self, now_s: float, until_s: float) -> float:
        """Return the seconds from `now_s` to the first end of a running check's limit, or to `until_s`."""
        with self._lock:
            limits = [since_s + check.limit_s for check, since_s in self._running.items()]
        return max(0.0, min([until_s, *limits]) - now_s) + 0.01

    def overdue(self) -> list[tuple[Check, float]]:
        """Remove the running checks that exceeded their limit; return them with the seconds that they ran."""
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
        """Remove and return a waiting check that may run now; None if no check may.

        Only one active check runs at a time, so that its load does not falsify the figures of another check.
        """
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
