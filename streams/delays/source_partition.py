"""Collects the messages of one source partition into windows of samples, and closes the windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from native.core import NicWindow, ProbeBatches
from schemas.kafka.message import Message
from streams.delays.counters import NicCounters, NicState
from streams.delays.windows import Cut, Range, WindowCutter


@dataclass(slots=True)
class NicSamples:
    """The counters and samples of one prober in one window."""

    counters: NicCounters
    samples: NicWindow


@dataclass(slots=True)
class ClosedWindow:
    """A closed window of one source, ready for publication. `offsets`: its messages' offsets, to be
    acknowledged after publication.
    """

    source: str
    cut: Cut
    nics: dict[str, NicSamples] = field(default_factory=dict)
    bytes: int = 0
    rejected: int = 0
    duplicates: int = 0
    offsets: list[int] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Number of samples in the window, summed over all probers."""
        return sum(nic.samples.samples for nic in self.nics.values())


class Source:
    """The open window of one source partition, and the states of its probers."""

    def __init__(
        self,
        name: str,
        window_ns: int,
        silence_ns: int,
        published_ranges: Iterable[Range] = (),
        states: dict[str, NicState] | None = None,
    ) -> None:
        self.name = name
        self._cutter = WindowCutter(window_ns, silence_ns, published_ranges)
        self._states: dict[str, NicState] = dict(states or {})
        self._filling = ClosedWindow(name, Cut(-1))
        self.open_samples = 0

    @property
    def open_window(self) -> int | None:
        """Number of the window that is open now; None before the first message."""
        return self._cutter.open_window

    @property
    def first_open_offset(self) -> int | None:
        """Offset of the open window's first message; None while the window is empty."""
        return self._filling.offsets[0] if self._filling.offsets else None

    def add_messages(self, messages: Sequence[Message], batches: ProbeBatches) -> list[ClosedWindow]:
        """Add the next messages, in order of their offsets; return the windows that they close.

        `batches` has the batch of each message. A message whose batch is invalid counts as rejected. A
        tombstone belongs to the offset range and is not counted.
        """
        closed: list[ClosedWindow] = []
        begin = 0
        while begin < len(messages):
            end = self._cutter.place_within(messages, begin)
            if end > begin:
                self._fill(messages, batches, begin, end)
            else:
                end = begin + 1
                placement = self._cutter.place(messages[begin].append_ns, messages[begin].offset)
                closed += self._close(placement.before)
                self._fill(messages, batches, begin, end)
                closed += self._close(placement.after)
            begin = end
        return closed

    def tick(self, log_now_ns: int, quiet_ns: int, caught_up: bool) -> list[ClosedWindow]:
        """Return the windows that close because the source is silent; arguments as in `WindowCutter.tick`."""
        return self._close(self._cutter.tick(log_now_ns, quiet_ns, caught_up))

    def _fill(self, messages: Sequence[Message], batches: ProbeBatches, begin: int, end: int) -> None:
        """Add messages with the indices from `begin` to `end` - 1 to the open window."""
        window = self._filling
        for number in range(begin, end):
            message = messages[number]
            window.offsets.append(message.offset)
            value = message.value
            if value is not None:
                window.bytes += len(value)
                self._take(window, batches, number, message.append_ns)

    def _take(self, window: ClosedWindow, batches: ProbeBatches, number: int, append_ns: int) -> None:
        head = batches.head(number)
        if head is None:
            window.rejected += 1
            return
        name, run, batch, clock_ns, system_ns, lost, samples = head
        nic = window.nics.get(name)
        if nic is None:
            counters = NicCounters(name, self._states.get(name))
            nic = window.nics[name] = NicSamples(counters, NicWindow(name))
        counters = nic.counters
        if not counters.take(run, batch, clock_ns, system_ns, lost, append_ns):
            window.duplicates += 1
            return
        if counters.state is not None:
            self._states[name] = counters.state
        nic.samples.add_message(batches, number)
        self.open_samples += samples

    def _close(self, cuts: list[Cut]) -> list[ClosedWindow]:
        closed = []
        for cut in cuts:
            if cut.messages:
                window, self._filling = self._filling, ClosedWindow(self.name, Cut(-1))
                window.cut = cut
                self.open_samples = 0
            else:
                window = ClosedWindow(self.name, cut)
            closed.append(window)
        return closed
