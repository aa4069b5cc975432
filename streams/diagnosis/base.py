"""The interface of explanations: each takes a case and yields candidates.

Each family of verdicts is one file with functions of type `Explanation`. `diagnose.EXPLANATIONS` lists
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from schemas.records import AuditResult, ContentionWindow, DiagnosisEvidence
from schemas.topics import AUDIT, CONTENTION
from streams.diagnosis.candidate import Candidate
from streams.diagnosis.case import Case
from streams.diagnosis.job.ranks import Rank

__all__ = ["Candidate", "Case"]
"""Names of other modules that explanations import from here."""

MAX_NAMED: Final = 8
"""Number of hosts, and of ranks on a host, that a text names."""

Explanation = Callable[[Case], Iterable[Candidate]]


def observation(
    topic: str,
    subject: str,
    quantity: str,
    number: float | None,
    expected: float | None,
    text: str,
    at_ns: int | None = None,
) -> DiagnosisEvidence:
    """Return one piece of evidence. `quantity` includes its unit; `expected` is the value of comparable
    subjects."""
    return {
        "topic": topic,
        "subject": subject,
        "quantity": quantity,
        "number": None if number is None else float(number),
        "expected": None if expected is None else float(expected),
        "at_ns": at_ns,
        "text": text,
    }


def audit_evidence(failures: list[AuditResult]) -> list[DiagnosisEvidence]:
    """Return the first failed checks of a host as evidence."""
    return [
        observation(
            AUDIT.name, result["host"], result["check"], None, None, result["text"], result["checked_ns"]
        )
        for result in failures[:4]
    ]


def window_evidence(window: ContentionWindow) -> DiagnosisEvidence:
    """Return the delay of a contention window as evidence."""
    delay_us, opened_ns = window["delay_ns"] / 1e3, window["opened_ns"]
    return observation(CONTENTION.name, window["link"], "delay_us", delay_us, None, window["text"], opened_ns)


def listed(names: list[str], limit: int) -> str:
    """Return names as text: the first of them, and the number of the others."""
    text = ", ".join(names[:limit])
    return f"{text} and {len(names) - limit} more" if len(names) > limit else text


def ranks_text(ranks: Iterable[Rank], limit: int = MAX_NAMED) -> str:
    """Return the names of ranks as text, those of one host together: `ranks 40 to 47 on h20`."""
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(rank.host, []).append(rank.number)
    return listed([f"{_numbers_text(numbers, limit)} on {host}" for host, numbers in by_host.items()], limit)


def _numbers_text(numbers: list[int], limit: int) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"rank {first}"
    if len(numbers) > 2 and numbers == list(range(first, last + 1)):
        return f"ranks {first} to {last}"
    return f"ranks {listed([str(number) for number in numbers], limit)}"
