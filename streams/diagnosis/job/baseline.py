"""Keeps the baseline of a job: the best sustained value of each quantity so far, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from streams.diagnosis.rules import BASELINE_INTERVALS, BASELINE_MIN, MAX_BASELINES


@dataclass(slots=True)
class _Baseline:
    """Baseline of one quantity: its recent values and its best sustained value."""

    first: int
    """Number of the interval in which the quantity was first noted."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_INTERVALS))
    best: float | None = None
    restored: bool = False
    """Whether `best` was learned by an earlier owner of the job."""


class Baselines:
    """Maps quantity to its best sustained value; smaller is better.

    A sustained value is the median of a few consecutive intervals. A lucky interval does not set it, and a
    long slow time does not raise it.
    """

    def __init__(self, keys: int = MAX_BASELINES) -> None:
        self._keys = keys
        self._baselines: OrderedDict[Hashable, _Baseline] = OrderedDict()
        self._restored: dict[str, float] = {}
        self._interval = 0

    def restore(self, name: str, value: float) -> None:
        """Set the best value of the quantity, yet to be noted, whose key has `name` as its first item.

        A new owner of the job knows the value from the last `Diagnosis`.
        """
        self._restored[name] = value

    def __len__(self) -> int:
        """Return the number of quantities."""
        return len(self._baselines)

    def end_interval(self) -> None:
        """Count an interval; ages of quantities are measured in intervals."""
        self._interval += 1

    def is_younger(self, key: Hashable, other: Hashable) -> bool:
        """Return whether quantity `key` was first noted long after quantity `other`, or never."""
        baseline, older = self._baselines.get(key), self._baselines.get(other)
        return baseline is None or (older is not None and baseline.first > older.first + BASELINE_INTERVALS)

    def is_restored(self, key: Hashable) -> bool:
        """Return whether a quantity's best value was restored from the job's former owner."""
        baseline = self._baselines.get(key)
        return baseline is not None and baseline.restored

    def note(self, key: Hashable, value: float | None) -> None:
        """Add an interval's value of a quantity, if known. Full memory drops the least recently noted key."""
        if value is None:
            return
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

    def value(self, key: Hashable) -> float | None:
        """Return a quantity's best sustained value; None after too few intervals."""
        baseline = self._baselines.get(key)
        return None if baseline is None else baseline.best

    def growth(self, key: Hashable) -> float | None:
        """Return the ratio of a quantity's present sustained value to its best one; None if unknown."""
        baseline = self._baselines.get(key)
        return _median(baseline.recent) / baseline.best if baseline is not None and baseline.best else None


def _median(values: Iterable[float]) -> float:
    """Return the median of at least one value, in a third of the time of `statistics.median`."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
