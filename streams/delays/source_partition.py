"""Sorts the messages of one source partition into closed windows of samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from native.core import NicWindow, ProbeColumns
from streams.delays.counters import NicCounters, NicState
from streams.delays.windows import Cut, Range, WindowCutter

__all__ = ["ClosedWindow", "NicSamples", "Source"]


@dataclass(slots=True)
class NicSamples:
    """One prober in one window: its counters and its samples."""

    counters: NicCounters
    samples: NicWindow
    loss: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ClosedWindow:
    """A window that is ready for publication. `tokens` identify the messages to acknowledge afterwards."""

    source: str
    cut: Cut
    nics: dict[str, NicSamples] = field(default_factory=dict)
    bytes: int = 0
    rejected: int = 0
    duplicates: int = 0
    tokens: list[Any] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Samples of all probers."""
        return sum(nic.samples.samples for nic in self.nics.values())


class Source:
    """The open window of one source partition, and the states of its probers."""

    def __init__(
        self,
        name: str,
        window_ns: int,
        silence_ns: int,
        known: Iterable[Range] = (),
        states: dict[str, NicState] | None = None,
    ) -> None:
        self.name = name
        self._cutter = WindowCutter(window_ns, silence_ns, known)
        self._states: dict[str, NicState] = dict(states or {})
        self._filling = ClosedWindow(name, Cut(-1))
        self.open_samples = 0

    def add(
        self, append_ns: int, offset: int, size_bytes: int, batch: ProbeColumns | None, token: Any
    ) -> list[ClosedWindow]:
        """Add the next message (`batch` None: it was rejected); return the windows that it closes."""
        placement = self._cutter.place(append_ns, offset)
        closed = self._close(placement.before)
        window = self._filling
        window.bytes += size_bytes
        window.tokens.append(token)
        if batch is None:
            window.rejected += 1
        else:
            self._take(window, batch, append_ns)
        return closed + self._close(placement.after)

    def skip(self, append_ns: int, offset: int, token: Any) -> list[ClosedWindow]:
        """Skip a tombstone: it belongs to the offset range and is not counted."""
        placement = self._cutter.place(append_ns, offset)
        closed = self._close(placement.before)
        self._filling.tokens.append(token)
        return closed + self._close(placement.after)

    def tick(self, log_now_ns: int, quiet_ns: int, caught_up: bool) -> list[ClosedWindow]:
        """Return the windows that close because the source is silent, see `WindowCutter.tick`."""
        return self._close(self._cutter.tick(log_now_ns, quiet_ns, caught_up))

    def _take(self, window: ClosedWindow, batch: ProbeColumns, append_ns: int) -> None:
        nic = window.nics.get(batch.nic)
        if nic is None:
            counters = NicCounters(batch.nic, self._states.get(batch.nic))
            nic = window.nics[batch.nic] = NicSamples(counters, NicWindow(batch.nic))
        lost = int(batch.lost.sum())
        if not nic.counters.take(batch.run, batch.batch, batch.clock_ns, batch.system_ns, lost, append_ns):
            window.duplicates += 1
            return
        if nic.counters.state is not None:
            self._states[batch.nic] = nic.counters.state
        nic.samples.add(batch)
        self.open_samples += len(batch.sent)

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
