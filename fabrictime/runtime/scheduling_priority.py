"""Who goes first where services share a machine: what finds dead links before what is merely looked at.

In: a service's name. Out: the calling process's scheduling class and niceness, and how soon one of its
threads makes room for another. On a machine with as many processors as services none of this matters.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Final, TypeVar

__all__ = ["NICE", "REAL_TIME", "aside", "give_way", "keep_precedence", "niceness"]

T = TypeVar("T")

log = logging.getLogger(__name__)

NICE: Final = {
    "links": -15, "act": -15, "prober": -15, "rdma-probe": -15, "worker": -15, "streams": -15, "policy": -10,
    "log": -10, "job": -10, "flows": -10, "page": -10, "sink": 0, "history": 2, "sim": 10,
}  # fmt: skip
"""As nice(2) has it. A job of the testbed stands for programs on machines of their own; a simulated fleet,
which can go slower, goes behind those who must keep up with it. Workers stand level with probers: the kernel
spreads processes over processors by these weights, and leaves a lighter one where it starves. (Five steps
before them, workers tell of a queue a third sooner where two processors are full; but probers send a quarter
less then, and dead links are known later.) The page goes before whoever looks at it: a browser beside it
takes all it gets for drawing. History and what fills it take a seventh of a core: at 10 they fell behind
without end on full processors; at 0, level with the kernel's threads that carry the testbed's packets, links
were told dead or lossy beside two hogs, once in ten minutes. Who may not go before others (CAP_SYS_NICE)
stands at 0 instead, or behind others as `keep_precedence` has it."""
REAL_TIME: Final = frozenset({"log", "links", "policy", "act", "job"})
"""What decides on a flow that lost its path, and what moves it: jobs of the testbed own theirs. Each works
for a millisecond or two on what came and then waits; in the real-time class, sched(7), it is woken at once
and gets done, instead of making room for others twenty times on the way. All have one priority, so that none
interrupts another. Not probers, who only have more to do when they are woken sooner: late ones take several
packets at once."""
RUN_ON_S: Final = (5, 20)
"""s that a thread may run in that class without ever waiting: then it goes on in the ordinary class; and when
it does not even do that, it is killed (RLIMIT_RTTIME)."""
SWITCH_S: Final = 0.0005
"""s that a thread waits at most for another to let go of the interpreter; 5 ms otherwise, for every message
that goes from the thread that reads the log to the one that works on it."""
BEHIND: Final = "FABRICTIME_BEHIND"
"""In the environment of children that may not go before others: they give way then, in the same order."""
LAST: Final = 10
"""Niceness of the last then: no further behind, since whoever looks at the page stands at 0."""


def keep_precedence() -> Callable[[], None]:
    """Go before others from now on, so that children may; without the right to, have them go behind others,
    in the order that they would have had. Returns what makes this process as it was before.

    For a process that is about to enter a user namespace: in there nobody may ask to go first, but whoever
    does may give it away.
    """
    scheduler, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    behind = os.environ.get(BEHIND)

    def let_go() -> None:
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
    return let_go


def _never_run_on() -> None:
    """Have whatever of this process or its children runs on and on leave the real-time class."""
    most = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    soft, hard = (s * 1_000_000 if most < 0 else min(s * 1_000_000, most) for s in RUN_ON_S)
    resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGXCPU, _leave_real_time)


def _leave_real_time(number: int, frame: FrameType | None) -> None:
    log.warning("a thread ran for %d s without a pause: on in the ordinary scheduling class", RUN_ON_S[0])
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))


def niceness(name: str, behind: bool) -> int:
    """Return the niceness of a service; `behind`: with nobody below 0, in the same order."""
    nice, first, last = NICE.get(name, 0), min(NICE.values()), max(NICE.values())
    return round((nice - first) * LAST / (last - first)) if behind else nice


def give_way(name: str) -> None:
    """Set this process's class and niceness to what its service may have, and its threads' patience.

    For the main thread, before there are others. The real-time class is kept by `REAL_TIME` alone, where this
    process was started in it, and never asked for.
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
    """Do `work` in the ordinary class, with this process's niceness; return what it returns, raise what it
    raises.

    For what a process of the real-time class does for longer than a moment, such as loading its code: nobody
    else would get a processor meanwhile, probers least. A thread leaves the class of its own free will, but
    seldom may return to it; so it is another one that does, and ends.
    """

    def leave() -> T:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        return work()

    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(leave).result()
