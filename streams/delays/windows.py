"""Assigns the messages of one source partition to windows, and decides when a window closes.

Given the offset ranges of published windows, a new owner cuts the same windows regardless of timing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas.kafka.message import Message
from schemas.log_time import STEP_NS, step_windows

NONE = -1
MAX_EMPTY_RUN = 5
"""Largest number of consecutive empty windows published for a gap of a source; a longer gap is skipped."""
FIRST_STEP_WINDOWS = 3
"""Multiple of `step_windows` by which a source's first message must be behind the published windows to show a
step back. A window that silence closed may be ahead of messages that the reader had not received yet."""


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Offsets of a published window's messages: first, and next after the last; both -1 if it was empty."""

    window: int
    first_offset: int
    next_offset: int


@dataclass(slots=True)
class Cut:
    """A closed window of a source, with the offsets of its messages."""

    window: int
    first_offset: int = NONE
    next_offset: int = NONE
    messages: int = 0
    late: int = 0

    @property
    def range(self) -> Range:
        """Number of the window with the offset range of its messages, as published."""
        return Range(self.window, self.first_offset, self.next_offset)


@dataclass(slots=True)
class Placement:
    """The window of a message, with the windows that close before and after the message is added."""

    window: int
    late: bool
    before: list[Cut] = field(default_factory=list)
    after: list[Cut] = field(default_factory=list)


class WindowCutter:
    """Cuts one source partition into windows of append time.

    A window closes when a message of a later window arrives. It also closes when the log's clock is
    `silence_ns` past its end, if the source has been silent as long. Messages for a closed window count as
    late and enter the open window.

    Messages with offsets in `published_ranges` are read again: an earlier owner published their windows in
    this order. They go to their window, which closes at its range's end. Messages with offsets before a known
    range that are in no window were lost with their window, when the log refused its record and accepted the
    next record. These messages form a window of their own.

    A message within the ranges that is later than all their windows shows that the topic was deleted and
    recreated: its offsets restart, and the ranges are those of the former topic.

    If append time steps back, the open window closes and the next window has the new time. Window numbers may
    recur.
    """

    def __init__(self, window_ns: int, silence_ns: int, published_ranges: Iterable[Range] = ()) -> None:
        self.window_ns = window_ns
        self.silence_ns = silence_ns
        ranges = list(published_ranges)
        self._known = [window_range for window_range in ranges if window_range.first_offset != NONE]
        self._numbers = {window_range.window for window_range in ranges}
        self._last_known = max(self._numbers, default=NONE)
        self._last_closed = ranges[-1].window if ranges else None
        self._step_windows = step_windows(window_ns)
        self._last_append_ns: int | None = None
        """Append time of the last message; it may be far behind the open window even without a step."""
        self._open: Cut | None = None
        self._replaying: Range | None = None

    @property
    def open_window(self) -> int | None:
        """Number of the window that the next new message would enter; None before the first message."""
        return None if self._open is None else self._open.window

    def place_within(self, messages: Sequence[Message], begin: int) -> int:
        """Add messages from index `begin` on, as long as they enter the open window without closing it.

        Return the index of the first message that must be passed to `place`.
        """
        cut, last_ns = self._open, self._last_append_ns
        if cut is None or last_ns is None or self._known or self._replaying is not None:
            return begin
        start_ns, end_ns = cut.window * self.window_ns, (cut.window + 1) * self.window_ns
        end = begin
        for end in range(begin, len(messages)):
            append_ns = messages[end].append_ns
            if append_ns >= end_ns or append_ns < last_ns - STEP_NS:
                break
            cut.late += append_ns < start_ns
            last_ns = append_ns
        else:
            end = len(messages)
        if end > begin:
            self._last_append_ns = last_ns
            if cut.first_offset == NONE:
                cut.first_offset = messages[begin].offset
            cut.next_offset = messages[end - 1].offset + 1
            cut.messages += end - begin
        return end

    def place(self, append_ns: int, offset: int) -> Placement:
        """Add one message; return its window and the windows that it closes. Offsets must ascend."""
        natural = append_ns // self.window_ns
        stepped_back = self._steps_back(append_ns)
        self._last_append_ns = append_ns
        past_range = self._known_range(offset, natural)
        before = self._end_replay(past_range)
        if past_range is not None:
            if self._replaying is None:
                self._replaying, self._open = past_range, Cut(past_range.window)
            window = past_range.window
        else:
            before += self._restart(natural) if stepped_back else self._advance(natural)
            window = natural if self._open is None else self._open.window
        cut = self._open
        if cut is None:
            cut = self._open = Cut(window)
        late = natural < cut.window
        if cut.first_offset == NONE:
            cut.first_offset = offset
        cut.next_offset = offset + 1
        cut.messages += 1
        cut.late += late
        after = []
        if past_range is not None and offset + 1 >= past_range.next_offset:
            after = [cut]
            self._open, self._replaying = None, None
        return Placement(cut.window, late, before, after)

    def tick(self, log_now_ns: int, quiet_ns: int, caught_up: bool) -> list[Cut]:
        """Return the windows that close because the source is silent.

        `quiet_ns`: time since the last message; `caught_up`: the log holds no further message of this source.
        """
        if self._replaying is not None or not caught_up or quiet_ns < self.silence_ns:
            return []
        present = (log_now_ns - self.silence_ns) // self.window_ns
        last = self._last_closed if self._open is None else self._open.window
        has_messages = self._last_append_ns is not None
        if has_messages and last is not None and present < last - self._step_windows:
            return self._restart(present)
        if self._open is None:
            start = present if self._last_closed is None else self._last_closed + 1
            if start > present:
                return []
            self._open = Cut(max(start, present - MAX_EMPTY_RUN))
        return self._advance(present) if present > self._open.window else []

    def _steps_back(self, append_ns: int) -> bool:
        """Return whether the next message shows a step back of append time.

        Messages of one partition ascend in time except at steps. The first message is compared with the
        published windows.
        """
        if self._last_append_ns is not None:
            return append_ns < self._last_append_ns - STEP_NS
        if self._last_closed is None:
            return False
        return append_ns // self.window_ns < self._last_closed - FIRST_STEP_WINDOWS * self._step_windows

    def _restart(self, window: int) -> list[Cut]:
        """Close the open window if it has messages, and continue at `window`, an earlier window."""
        closed = [self._open] if self._open is not None and self._open.messages else []
        self._open, self._last_closed = Cut(window), window - 1
        return closed

    def _known_range(self, offset: int, natural: int) -> Range | None:
        while self._known and self._known[0].next_offset <= offset:
            self._known.pop(0)
        if self._known and natural > self._last_known:
            self._known.clear()  # the topic was made again
        if not self._known:
            return None
        first_offset = self._known[0].first_offset
        if offset < first_offset:
            self._known.insert(0, Range(self._unused(natural), offset, first_offset))
        return self._known[0]

    def _unused(self, natural: int) -> int:
        """Return the number for a lost window: `natural`, or the next number if `natural` was published."""
        if natural in self._numbers and self._last_closed is not None:
            natural = self._last_closed = max(self._last_closed, *self._numbers) + 1
        self._numbers.add(natural)
        return natural

    def _end_replay(self, past_range: Range | None) -> list[Cut]:
        """Close the replayed window if retention has removed the last message of its range."""
        if self._replaying is None or self._replaying == past_range or self._open is None:
            return []
        cut, self._open, self._replaying = self._open, None, None
        return [cut]

    def _advance(self, window: int) -> list[Cut]:
        """Close the open window and empty windows up to `window`, open `window`; return closed windows."""
        earliest = 0 if self._last_closed is None else self._last_closed + 1
        target = max(window, earliest)
        closed: list[Cut] = []
        if self._open is None:
            gap_start = target if self._last_closed is None else earliest
        elif self._open.window >= target:
            return []
        else:
            closed.append(self._open)
            gap_start = self._open.window + 1
        if target - gap_start <= MAX_EMPTY_RUN:
            closed += [Cut(window) for window in range(gap_start, target)]
        self._open = Cut(target)
        if closed:
            self._last_closed = max(closed[-1].window, target - 1)
        return closed
