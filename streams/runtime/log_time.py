"""Log time: a reader's estimate of the log's clock, and append time without the steps of that clock.

`LogClock` estimates the log's clock between messages. `SteadyTime` continues at the reader's own pace where
the append time of a partition jumps. So a wrong clock of the log is not mistaken for a silence of all agents,
and its correction does not stop evaluation. `LogTime` applies `SteadyTime` to the log's clock and to all
partitions of a reader, so that none waits for a clock to catch up. A worker that reads the past, and a
replay, use append times unchanged.
"""

from __future__ import annotations

from typing import Final

from schemas.kafka.message import Place
from schemas.log_time import STEP_NS

JUMP_NS: Final = 10_000_000_000
"""Smallest jump ahead that is no silence of the partition. A shorter one may be, for a late reader."""
HOLD_NS: Final = 10_000_000_000
"""Time after a step for which an offset of fabric time that does not fit counts as from before the step."""
MAX_APART_NS: Final = 10_000_000_000
"""Largest difference between a partition's first message and the log's clock that is not taken for a step:
the partition may be read late."""


class LogClock:
    """An estimate of the log's clock from append times; it is behind by the last minute's smallest delay.

    An append time plus the time since its observation can only be behind the log's clock, so the greatest
    sum is the best estimate. Observations are dropped after one to two spans. If all observations of a second
    are more than a second behind, either the reader is late or the log's clock stepped back. Only a step sets
    append times back within a partition; then the estimate follows at once.
    """

    SPAN_NS = 30_000_000_000
    FOLLOW_NS = 1_000_000_000
    """Time for which all observations must be behind before the estimate follows."""

    def __init__(self, start_ns: int, monotonic_ns: int) -> None:
        self._ahead = [start_ns - monotonic_ns, None]
        self._turned_ns = monotonic_ns
        self._seen = False
        self._behind_since_ns: int | None = None
        """Monotonic time since which all observations have been far behind; None if the latest was not."""
        self._behind = 0
        """The best estimate from those observations."""
        self._has_step = False
        """Whether append times went back within a partition since then."""
        self._newest: dict[Place, tuple[int, int]] = {}
        """Maps partition to the offset and append time of its newest message."""
        self.observed_ns = monotonic_ns
        """Monotonic time of the last observation, or of the start."""

    def observe(self, append_ns: int, monotonic_ns: int, place: Place, offset: int) -> None:
        """Add the append time of a message that was observed at `monotonic_ns`."""
        ahead = append_ns - monotonic_ns
        self.observed_ns = monotonic_ns
        newest = self._newest.get(place)
        has_step = False
        if newest is None or offset > newest[0]:  # a second reader of the partition may read its past
            has_step = newest is not None and append_ns < newest[1] - STEP_NS
            self._newest[place] = offset, append_ns
        if not self._seen:
            self._ahead, self._turned_ns, self._seen = [ahead, None], monotonic_ns, True
            return
        if self._stepped_back(ahead, monotonic_ns, has_step):
            self._ahead, self._turned_ns, self._behind_since_ns = [self._behind, None], monotonic_ns, None
        elif monotonic_ns - self._turned_ns > self.SPAN_NS:
            self._ahead, self._turned_ns = [ahead, self._ahead[0]], monotonic_ns
        elif self._ahead[0] is None or ahead > self._ahead[0]:
            self._ahead[0] = ahead

    def _stepped_back(self, ahead: int, monotonic_ns: int, has_step: bool) -> bool:
        """Return whether all observations of the last `FOLLOW_NS` are far behind because of a step."""
        best = max(earlier_ahead for earlier_ahead in self._ahead if earlier_ahead is not None)
        if ahead >= best - STEP_NS:
            self._behind_since_ns, self._has_step = None, False
            return False
        if self._behind_since_ns is None:
            self._behind_since_ns, self._behind = monotonic_ns, ahead
        self._behind = max(self._behind, ahead)
        self._has_step |= has_step
        return self._has_step and monotonic_ns - self._behind_since_ns >= self.FOLLOW_NS

    def now_ns(self, monotonic_ns: int) -> int:
        """Return the estimated time of the log's clock at `monotonic_ns`, in ns since the Unix epoch."""
        return monotonic_ns + max(ahead for ahead in self._ahead if ahead is not None)


class SteadyTime:
    """Steady time of one partition: append time plus a correction, which is 0 until append time steps.

    If append time then gains more than `return_ns` on the reader's clock, the step counts as undone. None: a
    late reader may see such a gain, so only a jump of append time undoes the step.
    """

    def __init__(self, return_ns: int | None = None) -> None:
        self.correction_ns = 0
        self._return_ns = return_ns
        self._stepped_ahead_ns = 0
        """Append time minus monotonic time at the last step."""
        self._append_ns: int | None = None
        self._monotonic_ns = self._steady_ns = 0
        self._offset_ns: int | None = None
        self._stepped_ns: int | None = None
        """Monotonic time of the last step."""

    def of(self, append_ns: int, monotonic_ns: int, *, is_past: bool = False) -> int:
        """Return the steady time of the partition's next message, received at `monotonic_ns`.

        `is_past`: the reader catches up, so the message's time does not show the present log time.
        """
        if is_past:
            self._steady_ns = max(self._steady_ns, append_ns + self.correction_ns)
            return self._steady_ns
        if self._append_ns is not None:
            moved_ns, elapsed_ns = append_ns - self._append_ns, monotonic_ns - self._monotonic_ns
            returned_ns = append_ns - monotonic_ns - self._stepped_ahead_ns
            if moved_ns < -STEP_NS or moved_ns > elapsed_ns + JUMP_NS:
                self._step(self._steady_ns + elapsed_ns - append_ns, append_ns, monotonic_ns)
            elif self._return_ns is not None and self.correction_ns > 0 and returned_ns > self._return_ns:
                self._step(self.correction_ns - returned_ns, append_ns, monotonic_ns)
        self._append_ns, self._monotonic_ns = append_ns, monotonic_ns
        self._steady_ns = max(self._steady_ns, append_ns + self.correction_ns)
        return self._steady_ns

    def _step(self, correction_ns: int, append_ns: int, monotonic_ns: int) -> None:
        self.correction_ns = 0 if abs(correction_ns) < STEP_NS else correction_ns
        self._stepped_ns, self._stepped_ahead_ns = monotonic_ns, append_ns - monotonic_ns

    def offset_ns(self, log_offset_ns: int, monotonic_ns: int) -> int:
        """Return fabric time minus steady time, ns. `log_offset_ns`: fabric time minus append time.

        After a step of append time, `log_offset_ns` changes only some seconds later.
        """
        offset_ns = log_offset_ns - self.correction_ns
        stepped = self._stepped_ns is not None and monotonic_ns - self._stepped_ns < HOLD_NS
        if self._offset_ns is None or not stepped or abs(offset_ns - self._offset_ns) < STEP_NS:
            self._offset_ns = offset_ns
        return self._offset_ns


class LogTime:
    """The steady times of the log's clock and of partitions, from the end of a reader's recovery on.

    Pure: callers pass log time and monotonic time.
    """

    def __init__(self, log_ns: int, monotonic_ns: int) -> None:
        # a reader that was late for over a minute takes that for a step, until it has caught up
        self._clock = SteadyTime(return_ns=STEP_NS)
        self._clock.of(log_ns, monotonic_ns)
        self._places: dict[Place, SteadyTime] = {}

    def now_ns(self, log_ns: int, monotonic_ns: int) -> int:
        """Return the steady time, ns, when the log's clock is at `log_ns`."""
        return self._clock.of(log_ns, monotonic_ns)

    def of(self, place: Place, append_ns: int, now_ns: int, monotonic_ns: int) -> int:
        """Return the steady time of a partition's next message. `now_ns`: steady time of the log's clock."""
        steady = self._places.get(place)
        if steady is None:
            steady = self._places[place] = SteadyTime()
            if abs(append_ns - now_ns) > MAX_APART_NS:
                steady.of(now_ns, monotonic_ns)
        return min(steady.of(append_ns, monotonic_ns), now_ns)  # no message waits for the clock

    def shifted_ns(self, append_ns: int) -> int:
        """Return the steady time of a message that may be much older than the log's clock."""
        return append_ns + self._clock.correction_ns

    def offset_ns(self, log_offset_ns: int, monotonic_ns: int) -> int:
        """Return fabric time minus steady time, ns. `log_offset_ns`: fabric time minus append time."""
        return self._clock.offset_ns(log_offset_ns, monotonic_ns)

    def fabric_ns(self, log_ns: int, log_offset_ns: int, monotonic_ns: int) -> int:
        """Return fabric time when the log's clock is at `log_ns`.

        `log_offset_ns`: fabric time minus append time, as last published. When append time steps, this offset
        follows some seconds later; fabric time continues steadily meanwhile.
        """
        return self.now_ns(log_ns, monotonic_ns) + self.offset_ns(log_offset_ns, monotonic_ns)
