"""The interface of effectors: the code that moves and paces the flows of one host.

Each effector is one module of this package. The applier uses only this interface.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command: the value in force and the method used, or the error."""

    value: int = 0
    """The source port, or the rate in bit/s, that is in force now."""
    how: str = ""
    """The method used: SOCKET, SQD, HTB and so on."""
    error: str = ""
    """The reason of a failure; empty after a success."""
    maybe_done: bool = False
    """True if a command that failed may be in force nevertheless."""


class Effector(Protocol):
    """Moves and paces the flows of one host. Flows are identified by their keys."""

    def path_of(self, key: str) -> int | None:
        """Return the flow's entropy value; None if no such flow is open."""

    def can(self, key: str) -> frozenset[str]:
        """Return the commands that the flow's endpoint supports: MOVE, PACE."""

    def execute(self, key: str, verb: str, value: int, answer: Callable[[Answer], None]) -> None:
        """Move a flow to a source port (MOVE), or limit its rate (PACE; bit/s, 0 removes the limit).

        `answer` is called exactly once: at once, or within a bounded time.
        """
