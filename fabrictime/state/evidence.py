"""Decides whether statements about health rest on fresh evidence.

'No alert is active' is only true if probers publish link evidence, workers publish clock windows, and the
links service evaluates the evidence. Each of these sources advances a position in the log every second. The
reader measures the time since the last advance by its own monotonic clock, so wrong log time cannot hide a
silent source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from schemas.log_time import is_log_time_wrong
from schemas.units import seconds_text

FRESH_S: Final = 5.0
"""Time without an advance after which a source's evidence is missing, s: five of any source's periods."""


class Source(StrEnum):
    """A source of evidence about the fleet's health."""

    PROBES = "probes"
    CLOCKS = "clocks"
    LINKS = "links"


_NAMES: Final[Mapping[Source, tuple[str, str]]] = {
    Source.PROBES: ("probe results", "probers stopped"),
    Source.CLOCKS: ("clock window", "stream worker or its topics gone"),
    Source.LINKS: ("evaluation of link health", "links service stopped"),
}
"""For each source: the name of its evidence, and the usual cause of its absence."""


@dataclass(frozen=True, slots=True)
class Age:
    """Time since the newest evidence of a source."""

    seconds: float
    """Time since the position advanced, s. If it has not, the age of the source's newest record, or if that
    is unknown, the time since reading began.
    """
    is_measured: bool = True
    """Whether the reader saw the position advance, or watched long enough to see that it does not."""
    exists: bool = True
    """Whether the source has ever produced evidence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the evidence is fresh enough for statements about health, and the evidence that is missing."""

    missing: tuple[str, ...] = ()
    """A phrase for each kind of evidence that is missing."""
    is_checked: bool = True
    """False if reading began so recently that nothing is known yet."""
    log_fault: str | None = None
    """Reason why the log does not answer; None if it does."""
    ages: Mapping[Source, Age] = field(default_factory=dict, compare=False)
    """The age of each source that is late."""

    @property
    def is_fresh(self) -> bool:
        """Whether the evidence was checked and all of it is fresh."""
        return self.is_checked and not self.missing

    def claim(self, text: str) -> str:
        """Return `text`, a statement about health, or without fresh evidence a line about its absence."""
        return text if self.is_fresh else f"H{self.line[1:]}"

    @property
    def line(self) -> str:
        """One line about the missing evidence; empty if all evidence is fresh."""
        if self.missing:
            return f"health is not known: {'; '.join(self.missing)}"
        return "" if self.is_checked else "health is not known yet: checking for fresh evidence"


CHECKING: Final = Verdict(is_checked=False)


def evaluate(ages: Mapping[Source, Age], log_ahead_s: float = 0.0, fresh_s: float = FRESH_S) -> Verdict:
    """Return the verdict for these ages of the sources' newest evidence.

    `log_ahead_s` is log time minus the hosts' system clocks. `fresh_s` is the age above which evidence is
    missing.
    """
    late = {source: age for source, age in ages.items() if age.is_measured and age.seconds > fresh_s}
    missing = [_missing(source, age) for source, age in late.items()]
    if is_log_time_wrong(log_ahead_s):
        side = "ahead of" if log_ahead_s > 0 else "behind"
        missing.append(f"log time is {abs(log_ahead_s):,.1f} s {side} the hosts' system clocks")
    return Verdict(tuple(missing), all(age.is_measured for age in ages.values()), ages=late)


def _missing(source: Source, age: Age) -> str:
    """Return a phrase for the missing evidence of a source and its age."""
    evidence, cause = _NAMES[source]
    if not age.exists:
        return f"no {evidence} yet ({cause.replace('stopped', 'not started')}?)"
    return f"no fresh {evidence} for {seconds_text(age.seconds)} ({cause}?)"


@dataclass(slots=True)
class _Position:
    """The newest log position of one source, and the monotonic times of its first and its last advance."""

    value: int
    from_s: float
    advanced_s: float | None = None
    age_at_start_s: float = 0.0


class EvidenceAges:
    """Keeps each source's log position and the time of its last advance. Pure: callers pass the time."""

    def __init__(self, fresh_s: float = FRESH_S) -> None:
        self.log_ahead_s = 0.0
        self._fresh_s = fresh_s
        self._positions: dict[Source, _Position] = {}
        self._failed: tuple[str, float] | None = None
        """(reason why the log does not answer, monotonic time since when); None while it answers."""

    def take(self, source: Source, position: int, now_s: float, *, is_done: bool = False) -> bool:
        """Set a source's position. Return whether it is the first position of this source.

        A position below the last one belongs to a log that was replaced. With `is_done`, the source has
        nothing left to process, so an unchanged position does not mean that the source is silent.
        """
        last_position = self._positions.get(source)
        if last_position is None:
            self._positions[source] = _Position(position, now_s, now_s if is_done else None)
            return True
        if position > last_position.value or is_done:
            last_position.advanced_s = now_s
        last_position.value = position
        return False

    def set_age_at_start(self, source: Source, age_s: float) -> None:
        """Set the age, by log time, of a source's last record at the start of reading; only texts use it."""
        self._positions[source].age_at_start_s = max(0.0, age_s)

    def fail(self, reason: str, now_s: float) -> None:
        """Record that the log does not answer, with the reason."""
        self._failed = (reason, now_s if self._failed is None else self._failed[1])

    def succeed(self) -> None:
        """Record that the log answers."""
        self._failed = None

    def verdict(self, now_s: float) -> Verdict:
        """Return the verdict at the monotonic time `now_s`."""
        if self._failed is not None:
            reason, since_s = self._failed
            return Verdict((f"{reason} (for {seconds_text(now_s - since_s)})",), log_fault=reason)
        if len(self._positions) < len(Source):
            return CHECKING
        return evaluate(
            {source: self._age(source, now_s) for source in Source}, self.log_ahead_s, self._fresh_s
        )

    def _age(self, source: Source, now_s: float) -> Age:
        last_position = self._positions[source]
        if last_position.advanced_s is not None:
            return Age(now_s - last_position.advanced_s)
        watched_s = now_s - last_position.from_s
        seconds = watched_s + last_position.age_at_start_s
        return Age(seconds, is_measured=watched_s > self._fresh_s, exists=last_position.value > 0)
