"""Formats the end of the tour: one table that fits a terminal, or JSON. Does no I/O."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Final

from fabrictime.demo.iterations import Change
from fabrictime.demo.result import TourResult
from fabrictime.demo.story import Line, Outcome
from schemas.units import ms_text

WIDTH: Final = 80
HEAD: Final = ("fault", "where", "detected", "acted", "right", "action", "iteration, ms")
_INDENT: Final = 23


def rows(outcomes: Sequence[Outcome], *, acting: bool) -> list[tuple[str, ...]]:
    """Return the rows of the table, header first."""
    return [HEAD, *(_row(outcome, acting=acting) for outcome in outcomes)]


def _row(outcome: Outcome, *, acting: bool) -> tuple[str, ...]:
    job = outcome.worst_job
    return (
        outcome.fault,
        outcome.place,
        "missed" if outcome.detected_ms is None else ms_text(outcome.detected_ms),
        _acted(outcome),
        "not only" if outcome.also_named and outcome.named == "yes" else outcome.named,
        _action(outcome, acting=acting),
        "" if job is None else _change(outcome.jobs[job]),
    )


def _acted(outcome: Outcome) -> str:
    after_ms = outcome.detection_to_first_move_ms
    return "" if after_ms is None else f"+{after_ms / 1e3:.2f} s"


def _action(outcome: Outcome, *, acting: bool) -> str:
    if not acting:
        return f"{outcome.planned_flows} wanted"
    if outcome.moved and outcome.paced:
        return f"{outcome.moved + outcome.paced} flows"
    if outcome.moved:
        return f"{outcome.moved} moved"
    return f"{outcome.paced} paced" if outcome.paced else "none"


def _change(change: Change) -> str:
    return " > ".join(
        "-" if ms is None else f"{ms:.0f}" for ms in (change.before_ms, change.worst_ms, change.after_ms)
    )


def notes(outcomes: Sequence[Outcome], *, acting: bool) -> list[str]:
    """Return the sentences that stand below the table."""
    sentences = [
        "detected: from the injection until the verdict is in the log. acted: from there until the first "
        "flow moved or slowed down. right: whether the verdict names the planted link and fault (link only: "
        "another fault; 1 of 2: one of two links; not only: other links as well). "
        "iteration: of the job that suffered more: median before, longest during the fault, median after."
    ]
    for outcome in outcomes:
        if outcome.first_drop_ms is not None:
            sentences.append(_flapping_note(outcome))
    if not acting:
        sentences.append("wanted: flows that the policy would have moved or paced; the mode was OBSERVE.")
    return sentences


def _flapping_note(outcome: Outcome) -> str:
    text = f"{outcome.fault}: the first drop was detected after {ms_text(outcome.first_drop_ms or 0.0)}"
    if not outcome.drops_within_hour:
        return f"{text}; {outcome.drops} drops were detected in all."
    return f"{text}; with drop {outcome.drops_within_hour} within the hour the link counts as FLAPPING."


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each fault that had not ended when the tour ended."""
    return [
        f"{outcome.fault}: {outcome.place} is not healthy again" for outcome in outcomes if not outcome.healed
    ]


def as_json(result: TourResult) -> str:
    """Return the result as one line of JSON."""
    return json.dumps(result.as_dict(), allow_nan=False)


def text_of(line: Line, width: int = WIDTH) -> list[str]:
    """Return a line of the tour's report as wrapped text, with time and label to the left."""
    at = "" if line.at_s is None else f"+{line.at_s:.2f} s"
    return textwrap.wrap(
        line.text,
        width,
        initial_indent=f"  {at:>9}  {line.label:<9} ",
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def paragraph(text: str, width: int = WIDTH) -> list[str]:
    """Return a text of one or more sentences as lines of at most `width` columns."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
