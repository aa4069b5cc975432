"""Sets the scheduling priority of services that share a machine: detection before storage and display.

A service gets a scheduling class, a niceness and a switch interval for its threads. With a processor per
service, none of these has an effect.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

NICE: Final = {
    "links": -15,
    "act": -15,
    "agent": -15,
    "prober": -15,
    "rdma-probe": -15,
    "worker": -15,
    "streams": -15,
    "policy": -10,
    "log": -10,
    "job": -10,
    "flows": -10,
    "collectives": -10,
    "web": -10,
    "sink": 0,
    "drains": -10,
    "notify": 0,
    "history": 2,
    "auditor": 2,
    "sim": 10,
}
"""Niceness per service, nice(2). Jobs of the testbed stand for programs on machines of their own. A simulated
fleet runs behind the services that must keep up with it. Workers have the niceness of probers, because the
kernel spreads processes by weight and leaves a lighter one where it starves. (At five steps more, workers
detect a queue a third sooner on two full processors, but probers send a quarter less and dead links are
detected later.) The page runs before the browser that displays it. History and its sink take a seventh of a
core: at 10 they lagged without end on full processors; at 0, level with kernel threads that carry the
testbed's packets, links looked dead or lossy once in ten minutes beside two busy programs. A user without
CAP_SYS_NICE gets 0 instead, or the order of `keep_priority`."""
REAL_TIME: Final = frozenset({"log", "links", "policy", "act", "job"})
"""Services in the real-time class, sched(7): those that decide on and move a flow without a path, and the
testbed's jobs. Each works for a millisecond or two and then waits. In that class a service is woken at once
and finishes without twenty interruptions. All have one priority, so none interrupts another. Probers stay
outside, since they read several packets at once if they are woken later."""
RUN_ON_S: Final = (5, 20)
"""How long, s, a thread may run in the real-time class without waiting. After the first it continues in the
ordinary class; after the second, if it is still in the class, it is killed (RLIMIT_RTTIME)."""
SWITCH_S: Final = 0.0005
"""How long, s, a thread waits at most for another to release the interpreter. The default of 5 ms would delay
every message that goes from the thread that reads the log to the one that processes it."""
BEHIND: Final = "FABRICTIME_BEHIND"
"""Variable of children that may not have raised priorities: they get lowered ones in that order."""
LAST: Final = 10
"""Largest niceness of a service with lowered priorities; a browser that displays the page has 0."""
SESSION: Final = Path("/proc/self/autogroup")
"""Niceness of this process's session, sched(7). Where the kernel groups processes by session, a niceness
counts only within one: beside a busy job of another session, all services together got half of a processor,
and fits came 5 to 8 s late."""
SESSION_NICE: Final = -4
"""Niceness that gives the services two thirds of the processors beside one busy session: fits come within a
second, and jobs keep their pace. At -10, a job of three ranks ran at half its pace at times."""
SESSION_TRIES: Final = 20
"""Number of attempts, 50 ms apart, to write the niceness until the kernel accepts it."""


def raise_session() -> Callable[[], None]:
    """Raise the priority of this process's session over other sessions; return a function that undoes this.

    Change nothing if this is not permitted, or if the kernel does not group processes by session (autogroup).
    """
    state = SESSION.read_text().split() if SESSION.exists() else []  # "/autogroup-25 nice 0", or nothing
    if not state:
        return lambda: None
    former = int(state[-1])
    if former > SESSION_NICE:
        _set_session(SESSION_NICE)
    return partial(_set_session, former)


def _set_session(nice: int) -> None:
    for _ in range(SESSION_TRIES):
        try:
            SESSION.write_text(str(nice))
        except PermissionError:
            return
        except BlockingIOError:  # one change in 100 ms by all who lack CAP_SYS_ADMIN
            time.sleep(0.05)
        else:
            return


def keep_priority() -> Callable[[], None]:
    """Raise this process's priority, which its children inherit; return a function that restores it.

    If this is not permitted, its children get lower priorities in the same order. Call it before entering a
    user namespace, in which a process may only lower its priority.
    """
    scheduler, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    behind = os.environ.get(BEHIND)

    def restore() -> None:
        if scheduler == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        if behind is None:
            os.environ.pop(BEHIND, None)

    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
        _never_run_on()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(NICE.values()))
    except PermissionError:
        os.environ[BEHIND] = "1"
    return restore


def _never_run_on() -> None:
    """Make threads of this process and its children leave the real-time class if they run without waiting."""
    hard_limit = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    soft, hard = (s * 1_000_000 if hard_limit < 0 else min(s * 1_000_000, hard_limit) for s in RUN_ON_S)
    resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGXCPU, _leave_real_time)


def _leave_real_time(number: int, frame: FrameType | None) -> None:
    log.warning("a thread ran for %d s without a pause: on in the ordinary scheduling class", RUN_ON_S[0])
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))


def niceness(name: str, behind: bool) -> int:
    """Return the niceness of a service; with `behind`, services keep their order but none is below 0."""
    nice, first, last = NICE.get(name, 0), min(NICE.values()), max(NICE.values())
    return round((nice - first) * LAST / (last - first)) if behind else nice


def apply_priority(name: str) -> None:
    """Set class and niceness of this process for its service, and the switch interval of its threads.

    Call it in the main thread, before other threads exist. A service in `REAL_TIME` keeps the real-time class
    if it was started in that class, and never requests it.
    """
    if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        if name in REAL_TIME:
            _never_run_on()
        else:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness(name, BEHIND in os.environ))
    sys.setswitchinterval(SWITCH_S)


def aside(work: Callable[[], T]) -> T:
    """Run `work` in the ordinary scheduling class with this process's niceness; pass on its result or error.

    Real-time processes use it for long work, such as loading code, which would keep probers from the
    processor. A thread can leave the class but seldom return to it, so another thread runs the work and ends.
    """

    def leave() -> T:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        return work()

    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(leave).result()
