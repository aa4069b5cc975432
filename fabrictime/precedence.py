"""Who goes first where services share a machine: what finds dead links before what is merely looked at.

In: a service's name. Out: the calling process's niceness, and how soon one of its threads makes room for
another.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

__all__ = ["NICE", "give_way"]

NICE: Final = {
    "links": -15, "act": -15, "policy": -10, "log": -10, "prober": -5, "rdma-probe": -5, "worker": 5,
    "streams": 5, "page": 10, "history": 10, "sim": 10,
}  # fmt: skip
"""As nice(2) has it; a simulated fleet, which can go slower, goes behind those who must keep up with it.
Without the right to go before others (CAP_SYS_NICE) only the latter."""
SWITCH_S: Final = 0.0005
"""s that a thread waits at most for another to let go of the interpreter; 5 ms otherwise, for every message
that goes from the thread that reads the log to the one that works on it."""


def give_way(name: str) -> None:
    """Set this process's niceness to what its service may have, and its threads' patience."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE.get(name, 0))
    sys.setswitchinterval(SWITCH_S)
