"""Decides whether statements about health rest on fresh evidence.

'No alert is active' is only true if probers publish link evidence, workers publish clock windows, and the
links service evaluates the evidence. Each of these advances a position in the log every second. The reader
measures the time since the last advance by its own monotonic clock, so wrong log time cannot hide a silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fabrictime.state.units import seconds_text
from schemas.log_time import is_log_time_wrong

FRESH_S: Final = 5.0
"""s without an advance after which evidence is missing: five times the usual period of every source."""


class Source(StrEnum):
    """A source of evidence."""

    PROBES = "probes"
    CLOCKS = "clocks"
    LINKS = "links"


_NAMES: Final[Mapping[Source, tuple[str, str]]] = {
    Source.PROBES: ("probe results", "probers stopped"),
    Source.CLOCKS: ("clock window", "stream worker stopped"),
    Source.LINKS: ("evaluation of link health", "links service stopped"),
}
"""The evidence of each source, and the usual cause of its absence."""


@dataclass(frozen=True, slots=True)
class Age:
    """Time since a source's last evidence."""

    seconds: float
    """s since it advanced; if it has not, s since reading began or since its last record."""
    is_measured: bool = True
    """Whether it advanced while the reader watched, or the reader watched for long enough."""
    exists: bool = True
    """Whether there has ever been any."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether statements about health may be made."""

    missing: tuple[str, ...] = ()
    """A phrase for each kind of evidence that is missing."""
    is_checked: bool = True
    """False: reading began so recently that nothing is known yet."""
    log_fault: str | None = None
    """Why the log does not answer."""

    @property
    def is_fresh(self) -> bool:
        """Whether all evidence is fresh."""
        return self.is_checked and not self.missing

    def claim(self, text: str) -> str:
        """Return a statement about health; without fresh evidence, name it instead."""
        return text if self.is_fresh else f"H{self.line[1:]}"

    @property
    def line(self) -> str:
        """One line for people; empty if all evidence is fresh."""
        if self.missing:
            return f"health is not known: {'; '.join(self.missing)}"
        return "" if self.is_checked else "health is not known yet: checking for fresh evidence"


CHECKING: Final = Verdict(is_checked=False)


def evaluate(ages: Mapping[Source, Age], log_ahead_s: float = 0.0, fresh_s: float = FRESH_S) -> Verdict:
    """Return the verdict for the age of each source.

    `log_ahead_s`: log time minus the hosts' system clocks. `fresh_s`: age above which evidence is missing.
    """
    late = {source: age for source, age in ages.items() if age.is_measured and age.seconds > fresh_s}
    missing = [_missing(source, age) for source, age in late.items()]
    if is_log_time_wrong(log_ahead_s):
        side = "ahead of" if log_ahead_s > 0 else "behind"
        missing.append(f"log time is {abs(log_ahead_s):,.1f} s {side} the hosts' system clocks")
    return Verdict(tuple(missing), all(age.is_measured for age in ages.values()))


def _missing(source: Source, age: Age) -> str:
    """Return the evidence that a source lacks, and since when."""
    evidence, cause = _NAMES[source]
    if not age.exists:
        return f"no {evidence} yet ({cause.replace('stopped', 'not started')}?)"
    return f"no fresh {evidence} for {seconds_text(age.seconds)} ({cause}?)"


@dataclass(slots=True)
class _Position:
    """The position of one source as the reader saw it."""

    value: int
    from_s: float
    advanced_s: float | None = None
    age_at_start_s: float = 0.0


class EvidenceAges:
    """Follows the positions of all sources. Pure: callers pass the monotonic time."""

    def __init__(self, fresh_s: float = FRESH_S) -> None:
        self.log_ahead_s = 0.0
        self._fresh_s = fresh_s
        self._positions: dict[Source, _Position] = {}
        self._failed: tuple[str, float] | None = None
        """Why the log does not answer, and since when."""

    def take(self, source: Source, position: int, now_s: float, *, is_done: bool = False) -> bool:
        """Take a source's position; return whether it is the first one.

        A position that falls belongs to a log that was replaced. `is_done`: there is nothing left to
        process, so a position that stands still shows no silence.
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
        """Set the age of a source's last record when reading began, by log time; text alone shows it."""
        self._positions[source].age_at_start_s = max(0.0, age_s)

    def fail(self, reason: str, now_s: float) -> None:
        """Note that the log does not answer."""
        self._failed = (reason, now_s if self._failed is None else self._failed[1])

    def succeed(self) -> None:
        """Note that the log answers."""
        self._failed = None

    def verdict(self, now_s: float) -> Verdict:
        """Return the verdict at `now_s`."""
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
