"""Keeps the outcomes of runs in a file of JSON lines, so that a long bench can be measured in pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from fabrictime.bench.foreign._draw import Case
from fabrictime.bench.foreign._truth import Answer, Culprit


@dataclass
class Outcome:
    """The data of a run: its case, the times of its fault, and the product's diagnoses."""

    case: Case
    culprit: Culprit
    second: Culprit | None = None
    ready_ns: int = 0
    """The job runs since then, ns since the Unix epoch."""
    begin_ns: int = 0
    end_ns: int = 0
    second_ns: int = 0
    finish_ns: int = 0
    pauses_ns: list[tuple[int, int]] = field(default_factory=list)
    effect: float | None = None
    """Time of an iteration in the fault over that before; None: not known."""
    answers: list[Answer] = field(default_factory=list)
    hang_alerts_ns: list[int] = field(default_factory=list)
    load: float = 0.0
    error: str = ""


class Results:
    """The outcomes in a file; its first line has the seed, which is `seed` in a new file."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.seed = int(json.loads(lines[0])["seed"]) if lines else seed
        self.outcomes = [from_json(json.loads(line)) for line in lines[1:]]
        if not lines:
            path.write_text(json.dumps({"seed": seed}) + "\n", encoding="utf-8")

    def add(self, outcome: Outcome) -> None:
        """Add an outcome to the file."""
        self.outcomes.append(outcome)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")

    def left(self, cases: Sequence[Case], selection: str) -> list[Case]:
        """Return the cases without an outcome, restricted by `selection`.

        A number in `selection` is the largest number of cases; another text must be in the name or cause.
        """
        complete = {outcome.case.name for outcome in self.outcomes if not outcome.error}
        left = [case for case in cases if case.name not in complete]
        if selection.isdigit():
            return left[: int(selection)]
        return [case for case in left if selection in f"{case.name} {case.cause}"]


def from_json(value: dict[str, Any]) -> Outcome:
    """Return an outcome from its line in the file. Raises ValidationError."""
    return _OUTCOME.validate_python(value)


_OUTCOME: Final = TypeAdapter(Outcome)
