"""Decides when a timed stage must query the log's end offsets, because messages may be late. Pure.

A query costs some milliseconds, so it does not precede each advance. Messages may be late if the owner is
new, if the worker stalls, if a broker stalls and no message arrives, or if messages arrive slowly.
"""

from __future__ import annotations

from typing import Final

from streams.runtime.pipeline_constants import INPUT_DELAY_NS
from streams.runtime.units import NS_PER_MS, NS_PER_S

STALL_NS: Final = 100 * NS_PER_MS
"""Time between two advances from which the worker stalls, ns: twice the interval between them."""
SILENT_NS: Final = NS_PER_S
"""Interval of the questions of a stage without a new message, ns."""
STALLED_NS: Final = 2 * INPUT_DELAY_NS
"""Time after a stall for which the stage asks before each advance, ns."""
SLOW_AGE_NS: Final = INPUT_DELAY_NS // 2
"""Age of a message at its arrival from which inputs are slow, ns."""
SLOW_NS: Final = 10 * NS_PER_S
"""Time after the start and after a slow message for which the stage asks before each advance, ns."""


class InputLateness:
    """Decides whether unread messages of a stage's inputs may be late. All times are monotonic."""

    def __init__(self, now_ns: int) -> None:
        self._fresh_ns = self._advanced_ns = now_ns
        self._asked_ns, self._until_ns = 0, now_ns + SLOW_NS

    def note_message(self, age_ns: int, now_ns: int) -> None:
        """Note that a message of age `age_ns` arrived at `now_ns`."""
        if age_ns < SLOW_AGE_NS:
            self._fresh_ns = now_ns
        else:
            self._until_ns = now_ns + SLOW_NS

    def note_question(self, now_ns: int) -> None:
        """Note that the inputs have been read to the end offsets that the log had at `now_ns`."""
        self._asked_ns = self._advanced_ns = now_ns

    def is_possible(self, now_ns: int) -> bool:
        """Return whether messages may be late at an advance; call this before each advance."""
        if now_ns - self._advanced_ns > STALL_NS:
            self._until_ns = max(self._until_ns, now_ns + STALLED_NS)
        self._advanced_ns = now_ns
        is_silent = now_ns - self._fresh_ns > INPUT_DELAY_NS and now_ns - self._asked_ns > SILENT_NS
        return is_silent or now_ns < self._until_ns
