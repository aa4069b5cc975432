"""The consequence of late evidence as text: figures that are old, and figures that are current. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fabrictime.state.evidence import Age, Source, Verdict
from schemas.units import seconds_text

LINKS: Final = "links and alerts"
DELAYS: Final = "delays and clocks"


@dataclass(frozen=True, slots=True)
class HistoryAge:
    """The age of the newest window in the history, s; None if unknown, for the reason `fault`.

    `is_read` is whether the history has answered, or is not queried at all.
    """

    seconds: float | None = None
    fault: str = ""
    stale_after_s: float = 5.0
    is_read: bool = True

    @property
    def is_late(self) -> bool:
        """Whether the newest window in the history is too old for its figures to be shown as current."""
        return self.seconds is not None and self.seconds > self.stale_after_s


CURRENT: Final = HistoryAge()


def consequence(verdict: Verdict, history: HistoryAge = CURRENT, log_age_s: float | None = None) -> str:
    """Return a sentence about the figures that are old; empty if all are current.

    `log_age_s` is the age of the newest record if the log does not answer.
    """
    if verdict.log_fault is not None:
        age = "old" if log_age_s is None else f"{seconds_text(log_age_s)} old"
        return f"Links and alerts are {age}: the log does not answer."
    states = {LINKS: _links(verdict), DELAYS: _delays(verdict, history)}
    late = {name: text for name, text in states.items() if text}
    if not late:
        return ""
    current = [name for name in states if name not in late and (name != DELAYS or history.is_read)]
    if len(set(late.values())) == 1 and len(late) == len(states):
        return f"Links, alerts, delays and clocks {next(iter(late.values()))}."
    parts = [f"{name} {text}" for name, text in late.items()] + [f"{name} are current" for name in current]
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _links(verdict: Verdict) -> str:
    return _late_text(verdict.ages[name] for name in (Source.PROBES, Source.LINKS) if name in verdict.ages)


def _delays(verdict: Verdict, history: HistoryAge) -> str:
    if history.fault:
        return "are not available"
    ages = [verdict.ages[Source.CLOCKS]] if Source.CLOCKS in verdict.ages else []
    if history.is_late and history.seconds is not None:
        ages.append(Age(history.seconds))
    return _late_text(ages)


def _late_text(ages: Iterable[Age]) -> str:
    late = list(ages)
    if not late:
        return ""
    if not all(age.exists for age in late):
        return "are not measured yet"
    return f"are {seconds_text(max(age.seconds for age in late))} old"
