"""Counts a prober's batches per window: gaps of its batch counter, restarts and jumps of its clock.

`NicState` is carried from window to window; `ClockFits` records hold it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from schemas.records import NicWindow

MISSING_KEPT: Final = 64
"""Maximum of missing batch numbers kept, so that a late batch is counted, not a duplicate."""


@dataclass(frozen=True, slots=True)
class JumpLimit:
    """Limit of a clock's change against the system clock between two flushes; a larger change is a jump."""

    floor_ns: float
    rate_ppm: float

    def exceeded(self, step_ns: float, elapsed_ns: float) -> bool:
        """Return whether (clock - system) changing by `step_ns` within `elapsed_ns` is a jump."""
        return abs(step_ns) > self.floor_ns + self.rate_ppm * 1e-6 * abs(elapsed_ns)


@dataclass(slots=True)
class NicState:
    """A prober's run id, batch number, clock and system time after its last batch."""

    run: int
    batch: int
    clock_ns: int
    system_ns: int
    missing: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, nic_window: NicWindow) -> NicState:
        """Build the state from an element of `ClockFits.nics`."""
        return cls(
            nic_window["run"], nic_window["last_batch"], nic_window["clock_ns"], nic_window["system_ns"]
        )


@dataclass(slots=True)
class NicCounters:
    """Counts one prober's batches, gaps, restarts and clock jumps in one window."""

    nic: str
    state: NicState | None
    batches: int = 0
    lost: int = 0
    lost_batches: int = 0
    restarts: int = 0
    append_ns: int = 0
    _reads: list[tuple[int, int]] = field(default_factory=list)
    """(clock_ns, system_ns) at the flushes; the first is the last one of the previous window."""

    def __post_init__(self) -> None:
        if self.state is not None:
            self.state = replace(self.state, missing=set(self.state.missing))
            self._reads.append((self.state.clock_ns, self.state.system_ns))

    def take(self, run: int, batch: int, clock_ns: int, system_ns: int, lost: int, append_ns: int) -> bool:
        """Count one batch. Return False for a duplicate, which a producer's retry may cause."""
        state = self.state
        if state is None or run != state.run:
            self.restarts += state is not None
            state = self.state = NicState(run, batch, clock_ns, system_ns)
        elif batch > state.batch >= 0:
            if batch > state.batch + 1:
                self._count_gap(state, batch)
            state.batch = batch
        elif batch in state.missing:
            state.missing.remove(batch)
            self.lost_batches = max(0, self.lost_batches - 1)
        elif state.batch < 0:
            state.batch = batch
        else:
            return False
        self.batches += 1
        self.lost += lost
        if batch == state.batch:
            state.clock_ns, state.system_ns = clock_ns, system_ns
            self.append_ns = append_ns
            self._reads.append((clock_ns, system_ns))
        return True

    def _count_gap(self, state: NicState, batch: int) -> None:
        """Count the batch numbers between the prober's last batch and `batch` as missing."""
        gap = range(state.batch + 1, batch)
        self.lost_batches += len(gap)
        state.missing.update(gap[:MISSING_KEPT])
        while len(state.missing) > MISSING_KEPT:
            state.missing.remove(min(state.missing))

    def clock_jump_ns(self, limit: JumpLimit) -> int:
        """Return the clock's largest lasting step against the system clock, ns; 0 if within `limit`.

        A single odd reading, of a process paused between reading both clocks, ends with the next flush. Each
        reading is replaced first by the median of itself and its two neighbours, which keeps steps.
        """
        ahead = [clock - system for clock, system in self._reads]
        if not ahead or max(ahead) - min(ahead) <= limit.floor_ns:
            return 0  # no two readings differ by a jump
        smooth = [*ahead[:1], *(sorted(ahead[i : i + 3])[1] for i in range(len(ahead) - 2)), *ahead[-1:]]
        largest = 0
        for i in range(1, len(ahead)):
            step = smooth[i] - smooth[i - 1]
            elapsed = self._reads[i][1] - self._reads[i - 1][1]
            if abs(step) > abs(largest) and limit.exceeded(step, elapsed):
                largest = step
        return largest
