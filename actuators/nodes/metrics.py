"""The metrics of the drain service: drains in force and waiting, results, and the circuit breaker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from actuators.nodes.actuator import Done
from actuators.nodes.operator import DrainOperator
from schemas.metrics.agent import RESULTS, ActionResult
from schemas.metrics.base import Sample
from schemas.metrics.sources import SOURCES


class DrainMetrics:
    """Counts the reported outcomes of drains and resumes."""

    def __init__(self) -> None:
        self._results: Counter[ActionResult] = Counter(dict.fromkeys(ActionResult, 0))
        self._open, self._is_stopped = 0, False
        self.waiting: list[str] = []
        """The nodes whose drains are due and wait, each with the reason."""
        SOURCES.add(self.samples)

    def count(self, done: Done) -> None:
        """Count the outcome of a step; ignore a step without an outcome."""
        if done.outcome is not None:
            self._results[RESULTS.get(done.outcome, ActionResult.REFUSED)] += 1

    def set_state(self, operator: DrainOperator) -> None:
        """Copy the number of drains in force and the state of the circuit breaker from the operator."""
        self._open = sum(1 for _ in operator.live_repairs())
        self._is_stopped = operator.opened_ns() is not None

    def text(self) -> str:
        """Return the metrics as one line of text."""
        stopped = "; circuit breaker open: no drains until a person resets it" if self._is_stopped else ""
        waiting = f"; {len(self.waiting)} waiting: {'; '.join(self.waiting)}" if self.waiting else ""
        return f"{self._open} drains in force, {self._results.total()} outcomes{stopped}{waiting}"

    def samples(self) -> Iterator[Sample]:
        """Yield the present value of each metric."""
        yield Sample("fabrictime_drains_in_force", self._open)
        yield Sample("fabrictime_drains_waiting", len(self.waiting))
        yield Sample("fabrictime_drains_stopped", int(self._is_stopped))
        for result, count in self._results.items():
            yield Sample("fabrictime_drain_actions_total", count, (result,))
