"""Who goes first where services share a machine: what finds dead links before what is merely looked at.

In: a service's name. Out: the calling process's niceness, and how soon one of its threads makes room for
another. On a machine with as many processors as services none of this matters.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

__all__ = ["NICE", "give_way", "keep_precedence", "niceness"]

NICE: Final = {
    "links": -15, "act": -15, "prober": -15, "rdma-probe": -15, "policy": -10, "log": -10, "job": -10,
    "worker": -3, "streams": -3, "page": 5, "history": 10, "sim": 10,
}  # fmt: skip
"""As nice(2) has it. A job of the testbed stands for programs on machines of their own; a simulated fleet,
which can go slower, goes behind those who must keep up with it. Who may not go before others (CAP_SYS_NICE)
stands at 0 instead, or behind others as `keep_precedence` has it."""
SWITCH_S: Final = 0.0005
"""s that a thread waits at most for another to let go of the interpreter; 5 ms otherwise, for every message
that goes from the thread that reads the log to the one that works on it."""
BEHIND: Final = "FABRICTIME_BEHIND"
"""In the environment of children that may not go before others: they give way then, in the same order."""
LAST: Final = 10
"""Niceness of the last then: no further behind, since whoever looks at the page stands at 0."""


def keep_precedence() -> None:
    """Go before others from now on, so that children may; without the right to, have them go behind others,
    in the order that they would have had.

    For a process that is about to enter a user namespace: in there nobody may ask to go first, but whoever
    does may give it away.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(NICE.values()))
    except PermissionError:
        os.environ[BEHIND] = "1"


def niceness(name: str, behind: bool) -> int:
    """Return the niceness of a service; `behind`: with nobody below 0, in the same order."""
    nice, first, last = NICE.get(name, 0), min(NICE.values()), max(NICE.values())
    return round((nice - first) * LAST / (last - first)) if behind else nice


def give_way(name: str) -> None:
    """Set this process's niceness to what its service may have, and its threads' patience."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness(name, BEHIND in os.environ))
    sys.setswitchinterval(SWITCH_S)
