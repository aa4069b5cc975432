"""Keeps reports of RAS services about a job, and finds communicators that make no progress in them.

A service counts the operations that each rank launched, and knows neither their times nor their ends. So only
the comparison of reports shows progress. A rank that is behind may itself wait in another communicator; the
ranks at the root wait nowhere.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.records import CollectiveBatch, CommunicatorReport, RankCondition, RankState

MAX_REPORTS: Final = 512
"""Largest number of reports that are kept: 17 minutes of a job without progress."""
MIN_GROWTH_REPORTS: Final = 3
Place = tuple[str, int, str]
"""Host, process and GPU of a rank."""


class Report(NamedTuple):
    """A report of one RAS service; reports sort by time."""

    end_ns: int
    key: tuple[str, str, str, int]
    """Host, boot and name of the service, and number of its record."""
    append_ns: int
    ended: bool
    communicators: tuple[CommunicatorReport, ...]
    states: tuple[RankState, ...]

    @property
    def launched(self) -> dict[str, int]:
        """Numbers of operations that ranks launched, by communicator; unknown numbers are left out."""
        return {one["communicator"]: one["launched"] for one in self.communicators if one["launched"] >= 0}


@dataclass(slots=True)
class RasWait:
    """Communicators of a job in which no operation is launched, as of the newest report."""

    at_ns: int
    since_ns: int
    """End of the first report since which nothing was launched in these communicators."""
    communicators: list[CommunicatorReport]
    late: list[RankState]
    """Ranks at the root: they launched fewer operations than others, and wait nowhere."""
    unresponsive: list[RankState]
    """Ranks whose service has not answered since then."""
    dead: list[RankState]
    usual_ns: float
    """Usual time between two operations of these communicators, ns; 0 if it is not known."""
    is_mismatch: bool = False
    """Whether the ranks call operations in different orders, or wait for each other in a circle."""

    @property
    def is_level(self) -> bool:
        """Whether all ranks launched the same operations."""
        return not (self.late or self.unresponsive or self.dead or self.is_mismatch)


@dataclass(slots=True)
class RasHistory:
    """The reports of a job's RAS services by time, whatever the order of arrival."""

    reports: list[Report] = field(default_factory=list)

    def take(self, record: CollectiveBatch, append_ns: int) -> None:
        """Add a RAS service's record; a record that was added before changes nothing."""
        key = (record["host"], record["boot"], record["process"], record["batch"])
        report = Report(
            record["end_ns"],
            key,
            append_ns,
            record["ended"],
            tuple(record["reports"]),
            tuple(record["ranks"]),
        )
        if any(known.key == key for known in self.reports):
            return
        insort(self.reports, report, key=_order)
        del self.reports[:-MAX_REPORTS]

    def forget(self, oldest_ns: int) -> None:
        """Drop the reports appended before `oldest_ns`, except since which the job makes no progress."""
        while len(self.reports) > 1 and self.reports[0].append_ns < oldest_ns:
            if self.reports[0].launched == self.reports[-1].launched:
                return
            del self.reports[0]

    @property
    def newest_ns(self) -> int | None:
        """End of the newest report, ns; None if there is none."""
        return self.reports[-1].end_ns if self.reports else None

    @property
    def ranks(self) -> int:
        """Number of ranks of the job's largest communicator in the newest report; 0 without a report."""
        rows = self.reports[-1].communicators if self.reports else ()
        return max((one["ranks"] for one in rows), default=0)

    @property
    def has_ended(self) -> bool:
        """Whether the newest record of every RAS service is its last."""
        newest = {report.key[:3]: report.ended for report in self.reports}
        return bool(newest) and all(newest.values())

    def wait(self, end_ns: int) -> RasWait | None:
        """Return the communicators without progress at `end_ns`; None if all progress or none is reported."""
        reports = [report for report in self.reports if report.end_ns <= end_ns and not report.ended]
        return _wait(reports) if reports else None


def _order(report: Report) -> tuple[int, tuple[str, str, str, int]]:
    return report.end_ns, report.key


def _wait(reports: Sequence[Report]) -> RasWait | None:
    newest = reports[-1]
    since = {
        one["communicator"]: _unchanged_since(reports, one["communicator"]) for one in newest.communicators
    }
    waiting = _waiting(newest, since)
    if not waiting:
        return None
    names = {one["communicator"] for one in waiting}
    states = [state for state in newest.states if state["communicator"] in names]
    late, is_circle = _roots(states)
    begin_ns = max(since[name] for name in names)
    return RasWait(
        at_ns=newest.end_ns,
        since_ns=begin_ns,
        communicators=waiting,
        late=late,
        unresponsive=_unresponsive(reports, states, begin_ns),
        dead=[state for state in states if state["state"] in _DEAD],
        usual_ns=_usual_ns(reports, names, begin_ns),
        is_mismatch=is_circle or any(0 < one["ranks"] <= one["behind"] for one in waiting),
    )


def _waiting(newest: Report, since: Mapping[str, int]) -> list[CommunicatorReport]:
    """Return the communicators without progress: those with trouble, else all; none while the job progresses.

    A communicator that the job has given up may be listed for long.
    """
    if any(since[name] == newest.end_ns for name in newest.launched):
        return []
    troubled = [one for one in newest.communicators if one["behind"] or one["reported"] < one["ranks"]]
    candidates = troubled or [one for one in newest.communicators if one["launched"] >= 0]
    return [one for one in candidates if since[one["communicator"]] < newest.end_ns]


_DEAD: Final = (RankCondition.DEAD, RankCondition.ABORTED, RankCondition.ERROR)


def _unchanged_since(reports: Sequence[Report], communicator: str) -> int:
    """Return the end, ns, of the first report since which a communicator's counts are unchanged."""
    newest = _counts(reports[-1], communicator)
    since_ns = reports[-1].end_ns
    for report in reversed(reports):
        counts = _counts(report, communicator)
        if counts is not None and counts != newest:
            break
        since_ns = report.end_ns if counts is not None else since_ns
    return since_ns


def _counts(report: Report, communicator: str) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """Return a report's counts of a communicator: launched by the first rank, and by each rank behind it."""
    row = next((one for one in report.communicators if one["communicator"] == communicator), None)
    if row is None:
        return None
    behind = sorted(
        (state["rank"], state["operations"])
        for state in report.states
        if state["communicator"] == communicator and state["behind"]
    )
    return row["launched"], tuple(behind)


def _roots(states: Sequence[RankState]) -> tuple[list[RankState], bool]:
    """Return the ranks that are behind and wait nowhere, and whether ranks instead wait in a circle."""
    behind = [state for state in states if state["behind"]]
    late = {_place(state) for state in behind}
    waiting = {
        _place(state)
        for state in states
        if not state["behind"] and state["state"] == RankCondition.RUNNING and state["operations"] >= 0
    }
    roots = late - waiting
    if late and not roots:
        return behind, True
    by_place = {_place(state): state for state in reversed(behind) if _place(state) in roots}
    return sorted(by_place.values(), key=lambda state: state["rank"]), False


def _place(state: RankState) -> Place:
    if not state["process"]:
        return state["communicator"], -1, str(state["rank"])
    return state["host"], state["process"], state["gpu"] or ""


def _unresponsive(reports: Sequence[Report], states: Sequence[RankState], since_ns: int) -> list[RankState]:
    """Return the ranks that did not answer in any of at least two reports since `since_ns`."""
    recent = [set(_without_answer(report.states)) for report in reports if report.end_ns >= since_ns]
    always = set.intersection(*recent) if len(recent) > 1 else set[tuple[str, int]]()
    return [state for state in states if (state["communicator"], state["rank"]) in always]


def _without_answer(states: Sequence[RankState]) -> Iterator[tuple[str, int]]:
    for state in states:
        if state["state"] == RankCondition.UNRESPONSIVE:
            yield state["communicator"], state["rank"]


def _usual_ns(reports: Sequence[Report], names: set[str], until_ns: int) -> float:
    """Return the usual time between operations before `until_ns`, ns; 0 after too few reports."""
    before = [report for report in reports if report.end_ns <= until_ns]
    if len(before) < MIN_GROWTH_REPORTS:
        return 0.0
    first, last = before[0], before[-1]
    shared = first.launched.keys() & last.launched.keys() & names
    grown = max((last.launched[name] - first.launched[name] for name in shared), default=0)
    return (last.end_ns - first.end_ns) / grown if grown > 0 else 0.0
