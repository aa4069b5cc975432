"""The result of a tour, for its table, for JSON and for benchmarks. Does no I/O.

Each verdict was compared with the fault that the tour planted, never with other verdicts of the pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fabrictime.demo.story import Outcome


@dataclass(frozen=True, slots=True)
class TourResult:
    """The result of one tour. `acting`: whether decisions were carried out."""

    seed: int
    """Seed of the draws; the same seed draws the same faults on the same fabric."""
    acting: bool
    took_s: float
    web: str | None
    outcomes: tuple[Outcome, ...]

    @property
    def right(self) -> int:
        """Number of faults whose verdict is correct."""
        return sum(outcome.is_right for outcome in self.outcomes)

    @property
    def right_in_time(self) -> int:
        """Number of faults whose verdict is correct and came within three seconds."""
        return sum(outcome.is_in_time for outcome in self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-ready dict, as `fabrictime demo --json` prints it."""
        p95_s = move_p95_s([self])
        return {
            "mode": "ACT" if self.acting else "OBSERVE",
            "seed": self.seed,
            "took_s": round(self.took_s, 1),
            "web": self.web,
            "healed": all(outcome.healed for outcome in self.outcomes),
            "detected": sum(outcome.detected_ms is not None for outcome in self.outcomes),
            "right": self.right,
            "right_in_time": self.right_in_time,
            "detection_to_first_move_s_p95": p95_s if math.isfinite(p95_s) else None,
            "steps": [_step(outcome) for outcome in self.outcomes],
        }


def move_p95_s(results: Sequence[TourResult]) -> float:
    """Return the 95th percentile, s, of the time from a fault's detection to the first move of a flow.

    A detected fault without a move counts as infinite. The percentile is the smallest time that at least 95%
    of the faults do not exceed; it is NaN if no fault was detected.
    """
    moves_ms = [
        math.inf if outcome.detection_to_first_move_ms is None else outcome.detection_to_first_move_ms
        for result in results
        for outcome in result.outcomes
        if outcome.detected_ms is not None
    ]
    if not moves_ms:
        return math.nan
    return sorted(moves_ms)[math.ceil(0.95 * len(moves_ms)) - 1] / 1e3


def _step(outcome: Outcome) -> dict[str, Any]:
    values = asdict(outcome) | {
        "worst_job": outcome.worst_job,
        "right": outcome.is_right,
        "right_in_time": outcome.is_in_time,
        "detection_to_first_move_ms": outcome.detection_to_first_move_ms,
    }
    return {name: _rounded(value) for name, value in values.items()}


def _rounded(value: Any) -> Any:
    """Return a JSON-ready value with all floats rounded to two decimals, as further digits are noise."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return round(value, 2) if isinstance(value, float) else value
