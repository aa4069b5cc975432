"""The good time of a job: per quantity, its best sustained value so far, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from streams.diagnosis.rules import BASELINE_INTERVALS, BASELINE_MIN, MAX_BASELINES


@dataclass(slots=True)
class _Baseline:
    """One quantity."""

    first: int
    """Number of the interval in which it was noted first."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_INTERVALS))
    best: float | None = None
    restored: bool = False
    """Whether `best` is of a time before this owner of the job."""


class Baselines:
    """Quantity to its best sustained value; less is better.

    Sustained is the median of a few intervals in sequence. A lucky interval does not set it, and a long slow
    time does not raise it.
    """

    def __init__(self, keys: int = MAX_BASELINES) -> None:
        self._keys = keys
        self._baselines: OrderedDict[Hashable, _Baseline] = OrderedDict()
        self._restored: dict[str, float] = {}
        self._interval = 0

    def restore(self, name: str, value: float) -> None:
        """Set the best value of the next quantity of a name, the first item of its key: a new owner of the
        job knows it from the last `Diagnosis`."""
        self._restored[name] = value

    def __len__(self) -> int:
        """Return the number of quantities."""
        return len(self._baselines)

    def end_interval(self) -> None:
        """Count an interval, by which the age of quantities is compared."""
        self._interval += 1

    def is_younger(self, key: Hashable, other: Hashable) -> bool:
        """Return whether a quantity was first noted long after another one; also if it never was."""
        baseline, older = self._baselines.get(key), self._baselines.get(other)
        return baseline is None or (older is not None and baseline.first > older.first + BASELINE_INTERVALS)

    def is_restored(self, key: Hashable) -> bool:
        """Return whether a quantity's best value is that of the job's former owner."""
        baseline = self._baselines.get(key)
        return baseline is not None and baseline.restored

    def note(self, key: Hashable, value: float) -> None:
        """Add an interval's value of a quantity; the quantity noted longest ago makes place for a new one."""
        baseline = self._baselines.setdefault(key, _Baseline(self._interval))
        self._baselines.move_to_end(key)
        if self._restored and isinstance(key, tuple) and baseline.best is None:
            baseline.best = self._restored.pop(key[0], None)
            baseline.restored = baseline.best is not None
        if len(self._baselines) > self._keys:
            self._baselines.popitem(last=False)
        baseline.recent.append(value)
        if len(baseline.recent) >= BASELINE_MIN:
            sustained = _median(baseline.recent)
            if baseline.best is None or sustained < baseline.best:
                baseline.best, baseline.restored = sustained, False

    def good(self, key: Hashable) -> float | None:
        """Return a quantity's best sustained value; None: too few intervals so far."""
        baseline = self._baselines.get(key)
        return None if baseline is None else baseline.best


def _median(values: Iterable[float]) -> float:
    """Return the median of at least one value; `statistics.median` takes three times as long."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
