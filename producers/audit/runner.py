"""Runs checks of a host, several at once, each within its time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from producers.audit.base import Check, Result, run_check
from producers.audit.host import Host
from schemas.records import AuditStatus

__all__ = ["run_checks"]

AT_ONCE: Final = 8
"""Threads. They wait for devices and commands, and use little processor time."""


def run_checks(checks: Sequence[Check], host: Host) -> Iterator[Result]:
    """Yield each check's result as it ends. One that exceeds its limit is UNKNOWN, and its thread is left.

    A read that a dead device holds up cannot be interrupted, so that the threads are daemons, and every
    check that hangs is replaced by another thread.
    """
    waiting: queue.SimpleQueue[Check] = queue.SimpleQueue()
    for check in checks:
        waiting.put(check)
    done: queue.SimpleQueue[tuple[Check, Result]] = queue.SimpleQueue()
    running: dict[Check, float] = {}
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if waiting.empty():
                    return
                check = waiting.get()
                running[check] = time.monotonic()
            done.put((check, run_check(check, host)))

    def start() -> None:
        threading.Thread(target=work, name="audit check", daemon=True).start()

    for _ in range(min(AT_ONCE, len(checks))):
        start()
    left = {check.check_id for check in checks}
    while left:
        with lock:
            limits = [since_s + check.limit_s for check, since_s in running.items() if check.check_id in left]
        wait_s = max(0.0, min(limits, default=0.05) - time.monotonic()) + 0.01
        try:
            check, result = done.get(timeout=min(wait_s, 0.25))
        except queue.Empty:
            for check in _overdue(running, left, lock):
                left.discard(check.check_id)
                start()
                yield Result(check, AuditStatus.UNKNOWN, f"no end within {check.limit_s:g} s", ())
            continue
        if check.check_id in left:
            left.discard(check.check_id)
            yield result


def _overdue(running: dict[Check, float], left: set[str], lock: threading.Lock) -> list[Check]:
    now_s = time.monotonic()
    with lock:
        return [
            check
            for check, since_s in running.items()
            if check.check_id in left and now_s - since_s > check.limit_s
        ]
