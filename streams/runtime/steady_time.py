"""Log append time without its steps, for logic that compares times of one partition with each other.

`SteadyTime` continues at the reader's own pace where append time jumps. So a wrong clock of the log neither
looks like a silence of all agents, nor stops evaluation after its return.
"""

from __future__ import annotations

from typing import Final

from schemas.log_time import STEP_NS

__all__ = ["SteadyFabricTime", "SteadyTime"]

JUMP_NS: Final = 10_000_000_000
"""Jump ahead that cannot be a silence of the partition; a shorter one may be, if the reader catches up."""
HOLD_NS: Final = 10_000_000_000
"""Time after a step in which an offset of fabric time that does not fit is one of the time before it."""


class SteadyTime:
    """Steady time of one partition: append time plus a correction, which is 0 until append time steps."""

    def __init__(self) -> None:
        self.correction_ns = 0
        self._append_ns: int | None = None
        self._monotonic_ns = self._steady_ns = 0
        self._offset_ns: int | None = None
        self._stepped_ns: int | None = None
        """Monotonic time of the last step."""

    def of(self, append_ns: int, monotonic_ns: int) -> int:
        """Return the steady time of the partition's next message, received at `monotonic_ns`."""
        if self._append_ns is not None:
            moved_ns, elapsed_ns = append_ns - self._append_ns, monotonic_ns - self._monotonic_ns
            if moved_ns < -STEP_NS or moved_ns > elapsed_ns + JUMP_NS:
                self._stepped_ns = monotonic_ns
                self.correction_ns = self._steady_ns + elapsed_ns - append_ns
                if abs(self.correction_ns) < STEP_NS:
                    self.correction_ns = 0
        self._append_ns, self._monotonic_ns = append_ns, monotonic_ns
        self._steady_ns = max(self._steady_ns, append_ns + self.correction_ns)
        return self._steady_ns

    def offset_ns(self, log_offset_ns: int, monotonic_ns: int) -> int:
        """Return fabric time minus steady time, given fabric time minus append time.

        That follows a step of append time some seconds later.
        """
        offset_ns = log_offset_ns - self.correction_ns
        stepped = self._stepped_ns is not None and monotonic_ns - self._stepped_ns < HOLD_NS
        if self._offset_ns is None or not stepped or abs(offset_ns - self._offset_ns) < STEP_NS:
            self._offset_ns = offset_ns
        return self._offset_ns


class SteadyFabricTime:
    """Fabric time by the log's clock, which goes on at the reader's pace where log time steps.

    Append time steps at once, and the offset from it to fabric time follows some seconds later. Without this,
    fabric time would be wrong by the step in between.
    """

    def __init__(self) -> None:
        self._steady = SteadyTime()

    def now_ns(self, log_ns: int, log_offset_ns: int, monotonic_ns: int) -> int:
        """Return fabric time when the log's clock is at `log_ns`.

        `log_offset_ns`: fabric time minus append time, as last published.
        """
        steady_ns = self._steady.of(log_ns, monotonic_ns)
        return steady_ns + self._steady.offset_ns(log_offset_ns, monotonic_ns)
